// Blocks of memory: rows copied to addresses, and what is mapped compared with what it was.
#pragma once

#include <cstdint>
#include <vector>

namespace diskbuffer {

// Copy `n` rows, one after the other, to addresses.
void scatter(const uint8_t* rows, int64_t row_bytes, uint8_t* const* targets, int64_t n) noexcept;

// Find the bytes that are not zero in `n` runs of bytes: which run each is in, and its place there.
void find_set(const uint8_t* const* runs, const int64_t* counts, int64_t n, std::vector<int64_t>& which, std::vector<int64_t>& places);

// Memory that may have changed, and a copy of what it was. Another process may just be writing there, so words are aligned.
struct Watched {
    const uint8_t* now;
    const uint8_t* before;
    int64_t size;
};
static_assert(sizeof(Watched) == 3 * sizeof(int64_t));

// Return whether memory is what it was.
bool is_unchanged(const Watched& watched) noexcept;

}  // namespace diskbuffer
