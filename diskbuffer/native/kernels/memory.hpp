// Memory that other processes and threads write to, and integers wherever they begin.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstring>

namespace diskbuffer {

// Processes of this machine share maps, so all integers are in its own byte order; the format is little-endian.
static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "stores are little-endian");
static_assert(std::atomic<int64_t>::is_always_lock_free);

// Read an aligned word that somebody else may just be writing; what was written before it is seen, too.
inline int64_t load_acquire(const int64_t* at) { return __atomic_load_n(at, __ATOMIC_ACQUIRE); }

// Write an aligned word after all that was written before.
inline void store_release(int64_t* at, int64_t value) { __atomic_store_n(at, value, __ATOMIC_RELEASE); }

// Read a number wherever it begins.
template <typename T>
inline T load(const void* at) {
    T value;
    std::memcpy(&value, at, sizeof value);
    return value;
}

// Write a number wherever it begins.
template <typename T>
inline void store(void* at, T value) {
    std::memcpy(at, &value, sizeof value);
}

// Bring the cache line at an address into the caches, whatever the address.
inline void prefetch(const void* at) { __builtin_prefetch(at, 0, 3); }

}  // namespace diskbuffer
