// Blocks of LZ4 (github.com/lz4/lz4, doc/lz4_Block_format.md), decoded and encoded for pictures, whose matches are long and lie one
// pixel, one line or one frame back.
#pragma once

#include <cstdint>

namespace diskbuffer {

// Decode the first `n_bytes` bytes of a block of `size` bytes; return how many there are, negative if it is malformed.
//
// The block is not trusted: no byte is read outside of it, nor written outside of these.
int64_t decode_lz4(const uint8_t* block, int64_t size, uint8_t* target, int64_t n_bytes) noexcept;

}  // namespace diskbuffer
