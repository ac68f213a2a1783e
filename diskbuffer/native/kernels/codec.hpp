// Chunks of rows: one block of Blosc, and a CRC32C after it. `diskbuffer.store.format.codec` describes them.
#pragma once

#include <cstdint>

namespace diskbuffer {

constexpr int64_t HEADER = 16;   // bytes of Blosc's header
constexpr int64_t CHECKSUM = 4;  // bytes of the CRC32C at a chunk's end

constexpr int MEMCPYED = 0x2, SHUFFLED = 0x5;  // flags of Blosc's header
constexpr int LZ4 = 1;                         // the compressor's number, in the upper three bits of the flags

struct BloscHeader {
    uint8_t version, compressor_version, flags, item_bytes;
    uint32_t bytes, block_bytes, compressed_bytes;
};
static_assert(sizeof(BloscHeader) == HEADER);

// What is wrong with a chunk; 0 is nothing.
enum Reason : int { NOTHING_WRONG, BAD_ENTRY, BAD_CHECKSUM, BAD_HEADER, BAD_STREAM, BAD_PICTURE, OUTSIDE };

// Decode the first `n_bytes` of a chunk's `chunk_bytes` bytes to `target`; return 0 or a Reason.
//
// The chunk's `size` bytes are not trusted: nothing is read outside of them, nor written outside of `n_bytes` bytes of `target` and
// `chunk_bytes` of `scratch`. `n_bytes` is at most `chunk_bytes`; with 0, only the checksum and the header are verified.
int decode(const uint8_t* chunk, int64_t size, int64_t chunk_bytes, int64_t n_bytes, uint8_t* target, uint8_t* scratch) noexcept;

// Compress rows as one block, checksum and all, to `target`, which has room for HEADER + chunk_bytes + CHECKSUM. Items of several bytes
// are shuffled. Return the chunk's size, 0 or less if it failed.
int64_t encode(const uint8_t* rows, int64_t chunk_bytes, const char* compressor, int level, int64_t item_bytes, uint8_t* target) noexcept;

}  // namespace diskbuffer
