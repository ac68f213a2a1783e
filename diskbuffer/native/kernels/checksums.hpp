// Checksums of rows, and of lengths, as docs/format-1.md describes them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "libraries.hpp"
#include "mix.hpp"

namespace diskbuffer {

// Return what is stored for a segment's length: the rows in the lower 32 bits; the lowest of the upper ones is set where no reset step can
// follow the last row; the others are a hash of these. 0 where there are no rows.
inline int64_t length_word(uint64_t seed, uint64_t rows, bool no_reset) {
    const uint64_t hashed = rows | static_cast<uint64_t>(no_reset) << 32;
    return rows == 0 ? 0 : static_cast<int64_t>((mix(seed + hashed) & ~0x1FFFFFFFFull) | hashed);
}

// Return whether no reset step can follow the last row of a segment, by what is stored for its length.
inline bool is_no_reset(int64_t length_word) { return length_word >> 32 & 1; }

// Return the number that a row's checksum starts from; `word` is 0 for its observation, 1 for its step.
inline uint32_t row_seed(uint64_t salt, uint64_t stream, uint64_t position, uint64_t word) {
    return static_cast<uint32_t>(mix(salt + mix(mix(position) + 2 * stream + word)));
}

// Continue a checksum with zeros, up to the next multiple of 8 of the `size` bytes before.
inline uint32_t pad(uint32_t crc, size_t size) {
    static const uint8_t zeros[8] = {};
    return crc32c(crc, zeros, -size & 7);
}

// Where a column's rows begin, and how many bytes each has.
struct Rows {
    const uint8_t* first;
    int64_t row_bytes;
};

// Compute a word of the checksums of `n` rows, at positions `first`, `first + apart`, ...
void checksum_rows(uint64_t salt, uint64_t stream, uint64_t first, uint64_t apart, uint64_t word, const Rows* columns, int64_t n_columns,
                   uint32_t* checksums, int64_t n) noexcept;

// Copy `n` rows to addresses. Row i lies in the file which[i], which ends at ends[which[i]]; changes[which[i]] is combined, by exclusive
// or, with what that changes in the file's CRC32C.
void replace_rows(const uint8_t* rows, int64_t row_bytes, uint8_t* const* targets, int64_t n, const uint8_t* const* ends,
                  const int64_t* which, int64_t* changes) noexcept;

}  // namespace diskbuffer
