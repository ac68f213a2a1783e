// Chunks of rows: one block of Blosc, and a CRC32C after it. `diskbuffer.store.format.codec` describes them.
#pragma once

#include <cstdint>

namespace diskbuffer {

constexpr int64_t HEADER = 16;   // bytes of Blosc's header
constexpr int64_t CHECKSUM = 4;  // bytes of the CRC32C at a chunk's end

// What is wrong with a chunk; 0 is nothing.
enum Reason : int { NOTHING_WRONG, BAD_ENTRY, BAD_CHECKSUM, BAD_HEADER, BAD_STREAM, BAD_PICTURE };

// Decode the first `wanted` of a chunk's `chunk_bytes` bytes to `target`; return 0 or a Reason.
//
// The chunk's `size` bytes are not trusted: nothing is read outside of them, nor written outside of `wanted` bytes of `target` and
// `chunk_bytes` of `scratch`. `wanted` is at most `chunk_bytes`; with 0, only the checksum and the header are verified.
int decode(const uint8_t* chunk, int64_t size, int64_t chunk_bytes, int64_t wanted, uint8_t* target, uint8_t* scratch) noexcept;

}  // namespace diskbuffer
