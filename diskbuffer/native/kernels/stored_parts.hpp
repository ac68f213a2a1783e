// What a plan reads, taken out of the store's files as it is stored. `diskbuffer.reading.gather.stored_parts` describes the result.
#pragma once

#include <cstdint>

#include "runs.hpp"

namespace diskbuffer {

// A chunk that runs want, by the first run that wants it.
struct StoredChunk {
    int64_t run, number;
};

// The chunks that runs want of a column, each once.
struct ChunkList {
    int64_t n;        // -1 where one is damaged: whoever gathers it says what is wrong
    int64_t bytes;    // of those that are in shards
    int64_t of_tail;  // how many are in the tail only
};

// List the chunks of a column, in order; `firsts` becomes, for each run, the place in the list of its first chunk.
ChunkList list_chunks(const Batch& batch, const Target& target, StoredChunk* list, int32_t* firsts) noexcept;

// Copy `n` chunks of a list to `blob`, which has room for `room` bytes of them, a multiple of 8, and after these for entries: `before` that
// are left as they are, and one for each chunk. Return where the chunks end, a multiple of 8; -1 where they cannot be copied.
//
// A chunk that is in the tail only is made in `scratch`, which has room for one, and for one that is compressed behind it.
int64_t copy_chunks(const Batch& batch, const Target& target, const StoredChunk* list, int64_t n, uint8_t* blob, int64_t room,
                    int64_t before, uint8_t* scratch) noexcept;

// List the rows of a flat column; `firsts` becomes, for each run, the first byte of its own. Return how many bytes there are, -1 where some lie
// outside of their file.
int64_t list_rows(const Batch& batch, const Target& target, int32_t* firsts) noexcept;

// Copy the rows of a flat column to where `list_rows` says.
void copy_rows(const Batch& batch, const Target& target, const int32_t* firsts, uint8_t* blob) noexcept;

}  // namespace diskbuffer
