// Checksums of rows, and of lengths, as docs/format.md describes them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "libraries.hpp"
#include "mix.hpp"

namespace diskbuffer {

// Return what is stored for a segment's length: the rows, and their hash in the upper 32 bits; 0 for none.
inline int64_t length_word(uint64_t seed, uint64_t rows) {
    return rows == 0 ? 0 : static_cast<int64_t>((mix(seed + rows) & ~0xFFFFFFFFull) | rows);
}

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

// A row of a column: its bytes, or, without an address, their CRC32C.
struct RowPlace {
    const uint8_t* row;
    int64_t crc;
};

// A row that any environment may have, and what its checksum starts from.
struct RowOrigin {
    uint64_t salt;
    uint64_t environment;
    uint64_t position;
};

// Compute a word of the checksums of `n` rows that lie anywhere: row i of column c is at places[i * n_columns + c].
void checksum_places(const RowOrigin* origins, uint64_t word, const RowPlace* places, const int64_t* row_bytes, int64_t n_columns,
                     uint32_t* checksums, int64_t n) noexcept;

// Copy `n` rows to addresses. Row i lies in the file which[i], which ends at ends[which[i]]; changes[which[i]] is combined, by exclusive
// or, with what that changes in the file's CRC32C.
void replace_rows(const uint8_t* rows, int64_t row_bytes, uint8_t* const* targets, int64_t n, const uint8_t* const* ends,
                  const int64_t* which, int64_t* changes) noexcept;

}  // namespace diskbuffer
