// Words of `_heads` and entries of `_segments`, as docs/format.md describes them: numbers in mapped files that say whether they are what
// was written there.
#pragma once

#include <cstddef>
#include <cstdint>

#include "libraries.hpp"
#include "memory.hpp"
#include "mix.hpp"

namespace diskbuffer {

constexpr uint64_t HEAD_NUMBER = (uint64_t{1} << 40) - 1;  // the bits of a word of `_heads` that have its number; the others are a hash
constexpr int64_t HEAD_WORDS = 4;                          // of an environment: rows, low, synced, reserved

// Return a word of `_heads`, which is never 0, as files are where nothing was written. `field` is its place in the environment.
inline uint64_t head_word(uint64_t salt, uint64_t environment, uint64_t field, uint64_t number) {
    return number | (mix(mix(salt + HEAD_WORDS * environment + field) + number) & ~HEAD_NUMBER) | (HEAD_NUMBER + 1);
}

inline bool is_head_word(uint64_t salt, uint64_t environment, uint64_t field, uint64_t word) {
    return word == head_word(salt, environment, field, word & HEAD_NUMBER);
}

// Have a number count, with one aligned store, which whoever sees sees all that was stored before.
inline void set_head(int64_t* heads, uint64_t salt, uint64_t environment, uint64_t field, uint64_t number) {
    store_release(heads + HEAD_WORDS * environment + field, static_cast<int64_t>(head_word(salt, environment, field, number)));
}

// An entry of `_segments`. What is written when a segment is begun ends with `begun`, what is written when it is complete with `complete`.
struct Entry {
    int64_t environment;   // + 1, and the history above 32 bits; 0: never begun. Stored last
    int64_t first;         // position of its first row
    int64_t episode;       // position where the episode of that row starts
    int64_t steps_before;  // of the environment
    int64_t begun;         // CRC32C of the four
    int64_t end;           // position behind its last row
    int64_t steps;         // of the store, by its newest row
    int64_t complete;      // CRC32C of the seven
};
static_assert(sizeof(Entry) == 64);

enum EntryState : uint8_t {
    NEVER = 0,     // not begun
    OPEN = 1,      // begun
    COMPLETE = 2,  // its end counts
    UNENDED = 3,   // open, and has an end that does not verify
    DAMAGED = 4,   // does not verify
};

// Return the number that the checksums of a segment's entry start from.
inline uint32_t entry_seed(uint64_t salt, uint64_t segment) { return static_cast<uint32_t>(mix(salt + mix(segment))); }

inline int64_t begun_checksum(const Entry& entry, uint64_t salt, uint64_t segment) {
    return crc32c(entry_seed(salt, segment), &entry, offsetof(Entry, begun));
}

inline int64_t complete_checksum(const Entry& entry, uint64_t salt, uint64_t segment) {
    return crc32c(entry_seed(salt, segment), &entry, offsetof(Entry, complete));
}

inline EntryState state_of(const Entry& entry, uint64_t salt, uint64_t segment) {
    if (entry.environment == 0) return NEVER;
    if (entry.begun != begun_checksum(entry, salt, segment)) return DAMAGED;
    if (entry.end == 0 && entry.steps == 0 && entry.complete == 0) return OPEN;
    return entry.complete == complete_checksum(entry, salt, segment) ? COMPLETE : UNENDED;
}

// Have an entry not count.
inline void empty_entry(Entry* entry) {
    store_release(&entry->environment, 0);
    store_release(&entry->complete, 0);
    store_release(&entry->end, 0);
    store_release(&entry->steps, 0);
}

// Begin an entry in a mapped file, from what another has up to `steps_before`; it has no end.
inline void begin_entry(Entry* entry, Entry values, uint64_t salt, uint64_t segment) {
    empty_entry(entry);
    store_release(&entry->first, values.first);
    store_release(&entry->episode, values.episode);
    store_release(&entry->steps_before, values.steps_before);
    store_release(&entry->begun, begun_checksum(values, salt, segment));
    store_release(&entry->environment, values.environment);
}

// Complete an entry that was begun, also one that was complete: until all is stored it is open.
inline void complete_entry(Entry* entry, int64_t end, int64_t steps, uint64_t salt, uint64_t segment) {
    Entry values = *entry;
    values.end = end;
    values.steps = steps;
    store_release(&entry->complete, 0);
    store_release(&entry->end, end);
    store_release(&entry->steps, steps);
    store_release(&entry->complete, complete_checksum(values, salt, segment));
}

// Copy an entry that another process may be writing: whatever counts in the copy was there with all that it needs.
inline Entry copy_entry(const Entry* entry) {
    Entry values;
    values.complete = load_acquire(&entry->complete);
    values.end = load_acquire(&entry->end);
    values.steps = load_acquire(&entry->steps);
    values.environment = load_acquire(&entry->environment);
    values.first = load_acquire(&entry->first);
    values.episode = load_acquire(&entry->episode);
    values.steps_before = load_acquire(&entry->steps_before);
    values.begun = load_acquire(&entry->begun);
    return values;
}

}  // namespace diskbuffer
