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

// Copy bytes that somebody else may just be writing; whoever reads them finds out afterwards whether they were.
inline void copy_shared(uint8_t* target, const uint8_t* source, int64_t bytes) {
#ifdef __SANITIZE_THREAD__
    for (int64_t k = 0; k < bytes; k++) target[k] = __atomic_load_n(source + k, __ATOMIC_RELAXED);
#else
    std::memcpy(target, source, bytes);
#endif
}

// Copy bytes; a number, or a few, at once.
inline void copy_bytes(uint8_t* target, const uint8_t* source, int64_t bytes) {
    switch (bytes) {
        case 1: *target = *source; break;
        case 4: std::memcpy(target, source, 4); break;
        case 8: std::memcpy(target, source, 8); break;
        case 16: std::memcpy(target, source, 16); break;
        default: std::memcpy(target, source, bytes);
    }
}

// Tell the processor that a thread looks at the same word again and again.
inline void pause_processor() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

// Bring the cache line at an address into the caches, whatever the address.
inline void prefetch(const void* at) { __builtin_prefetch(at, 0, 3); }

}  // namespace diskbuffer
