// Blocks of memory: rows copied to addresses, and what is mapped compared with what it was.
#pragma once

#include <cstdint>

namespace diskbuffer {

// Copy `n` rows, one after the other, to addresses.
void scatter(const uint8_t* rows, int64_t row_bytes, uint8_t* const* targets, int64_t n) noexcept;

// Memory that may have changed, and a copy of what it was. Another process may just be writing there, so words are aligned.
struct Watched {
    const uint8_t* now;
    const uint8_t* before;
    int64_t size;
};
static_assert(sizeof(Watched) == 3 * sizeof(int64_t));

// Return whether memory is what it was.
bool is_unchanged(const Watched& watched) noexcept;

// Add how often there is each value of a byte in each of `places`: `counts`, (places, 256). A row has `outer` times the places, one
// after the other, with `inner` bytes each.
void count_bytes(const uint8_t* bytes, int64_t outer, int64_t places, int64_t inner, int64_t* counts) noexcept;

}  // namespace diskbuffer
