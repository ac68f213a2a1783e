#include "checksums.hpp"

#include <array>
#include <cstring>

namespace diskbuffer {

void checksum_rows(uint64_t salt, uint64_t stream, uint64_t first, uint64_t apart, uint64_t word, const Rows* columns, int64_t n_columns,
                   uint32_t* checksums, int64_t n) noexcept {
    size_t total = 0;
    for (int64_t c = 0; c < n_columns; c++) total += columns[c].row_bytes;
    for (int64_t i = 0; i < n; i++) {
        uint32_t crc = row_seed(salt, stream, first + i * apart, word);
        for (int64_t c = 0; c < n_columns; c++) crc = crc32c(crc, columns[c].first + i * columns[c].row_bytes, columns[c].row_bytes);
        checksums[i] = pad(crc, total);
    }
}

namespace {

// Continue a checksum with bytes of which only the CRC32C is known. A CRC is linear: zeros tell what becomes of `crc`.
uint32_t extend(uint32_t crc, uint32_t known, int64_t size) {
    static const uint8_t zeros[4096] = {};
    uint32_t of_zeros = 0;
    for (int64_t left = size; left > 0; left -= sizeof(zeros)) {
        const size_t n = left < int64_t{sizeof(zeros)} ? left : sizeof(zeros);
        crc = crc32c(crc, zeros, n);
        of_zeros = crc32c(of_zeros, zeros, n);
    }
    return crc ^ of_zeros ^ known;
}

}  // namespace

void checksum_places(const RowOrigin* origins, uint64_t word, const RowPlace* places, const int64_t* row_bytes, int64_t n_columns,
                     uint32_t* checksums, int64_t n) noexcept {
    size_t total = 0;
    for (int64_t c = 0; c < n_columns; c++) total += row_bytes[c];
    for (int64_t i = 0; i < n; i++) {
        uint32_t crc = row_seed(origins[i].salt, origins[i].environment, origins[i].position, word);
        for (int64_t c = 0; c < n_columns; c++) {
            const RowPlace& place = places[i * n_columns + c];
            crc = place.row ? crc32c(crc, place.row, row_bytes[c]) : extend(crc, static_cast<uint32_t>(place.crc), row_bytes[c]);
        }
        checksums[i] = pad(crc, total);
    }
}

namespace {

using Matrix = std::array<uint32_t, 32>;  // over the integers modulo 2: what becomes of each bit of a remainder

uint32_t apply(const Matrix& matrix, uint32_t remainder) {
    uint32_t product = 0;
    for (int bit = 0; bit < 32; bit++)
        if (remainder >> bit & 1) product ^= matrix[bit];
    return product;
}

// Return what CRC32C makes of bytes, from a start, without its inversions: linear in both.
uint32_t remainder_of(uint32_t start, const uint8_t* data, size_t size) { return ~crc32c(~start, data, size); }

// Return what 2**k zero bytes make of a remainder, for each k.
std::array<Matrix, 40> powers_of_zero_bytes() {
    const uint8_t zero = 0;
    std::array<Matrix, 40> powers;
    for (int bit = 0; bit < 32; bit++) powers[0][bit] = remainder_of(1u << bit, &zero, 1);
    for (size_t k = 1; k < powers.size(); k++)
        for (int bit = 0; bit < 32; bit++) powers[k][bit] = apply(powers[k - 1], powers[k - 1][bit]);
    return powers;
}

}  // namespace

void replace_rows(const uint8_t* rows, int64_t row_bytes, uint8_t* const* targets, int64_t n, const uint8_t* const* ends,
                  const int64_t* which, int64_t* changes) noexcept {
    static const std::array<Matrix, 40> powers = powers_of_zero_bytes();
    for (int64_t i = 0; i < n; i++) {
        const uint8_t* row = rows + i * row_bytes;
        uint32_t change = remainder_of(0, targets[i], row_bytes) ^ remainder_of(0, row, row_bytes);
        uint64_t after = ends[which[i]] - targets[i] - row_bytes;
        for (int k = 0; after != 0; after >>= 1, k++)
            if (after & 1) change = apply(powers[k], change);
        std::memcpy(targets[i], row, row_bytes);
        changes[which[i]] ^= change;
    }
}

}  // namespace diskbuffer
