// Entries of the index at a shard's end.
#pragma once

#include <cstdint>

#include "memory.hpp"

namespace diskbuffer {

// Where a chunk is in its shard. Both numbers are EMPTY where it is in the tail only.
struct Entry {
    int64_t offset, size;

    static constexpr int64_t EMPTY = -1;
    bool is_empty() const { return offset == EMPTY || size == EMPTY; }
};
static_assert(sizeof(Entry) == 2 * 8);

// Read an entry, which a writer may just be writing, its size last; chunks come before their entries.
inline Entry load_entry(const Entry* entry) {
    if (reinterpret_cast<uintptr_t>(entry) % alignof(Entry) != 0) return load<Entry>(entry);  // written by others, once
    const int64_t size = load_acquire(&entry->size);
    return {load_acquire(&entry->offset), size};
}

// Write an entry whose chunk is written already, and that others may be reading: it is empty until both numbers are there.
inline void store_entry(Entry* entry, Entry value) {
    store_release(&entry->size, Entry::EMPTY);
    store_release(&entry->offset, value.offset);
    store_release(&entry->size, value.size);
}

}  // namespace diskbuffer
