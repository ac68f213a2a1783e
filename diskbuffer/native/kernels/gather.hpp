// Copying and decoding the rows of a batch, from mapped files into its memory.
//
// A chunk is decoded straight into the batch where its first rows are wanted, and only as far as they are; otherwise into a scratch
// that stays in the CPU's cache, from which other samples of the same chunk are served, too, as runs come sorted. Of a chunk that is
// stored as it is, only the rows that are wanted are read: their own checksums verify them, not the chunk's.
#pragma once

#include <atomic>
#include <cstdint>

#include "runs.hpp"

namespace diskbuffer {

// The first chunk of a batch that one of its threads could not read.
struct Progress {
    std::atomic<int> reason{0};  // a Reason; the following are set by the thread that set it
    int64_t target = 0, run = 0, chunk = 0;
};

// Memory of one thread: room for two chunks, the largest of which has `largest` bytes.
struct Scratch {
    uint8_t* memory;
    int64_t largest;
};

// Gather runs `begin` to `end` of a batch, up to the first chunk that cannot be read.
void gather_runs(const Batch& batch, int64_t begin, int64_t end, Scratch scratch, Progress& progress) noexcept;

}  // namespace diskbuffer
