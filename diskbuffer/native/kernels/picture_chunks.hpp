// Chunks that are one picture each, compressed with a loss. `diskbuffer.store.format.pictures` describes them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "codec.hpp"

namespace diskbuffer {

constexpr int64_t PICTURE_HEADER = 4;  // bytes: the CRC32C of the row that the picture was made of

// libwebp's functions, WebPGetInfo and WebPDecodeRGBInto; each returns 0 where it failed.
struct WebP {
    int (*get_info)(const uint8_t* file, size_t size, int* width, int* height);
    uint8_t* (*decode_into)(const uint8_t* file, size_t size, uint8_t* target, size_t room, int line_bytes);
};

// Verify the checksum of a chunk of `size` bytes, without decoding it; return 0 or a Reason.
int verify_picture(const uint8_t* chunk, int64_t size) noexcept;

// Decode the WebP file, or the row as it is, of a chunk without its checksums, to `target`, (height, width, 3); return 0 or BAD_PICTURE.
int decode_file(const uint8_t* file, int64_t size, int64_t width, int64_t height, uint8_t* target, const WebP& webp) noexcept;

// Decode a chunk of `size` bytes to `target`, (height, width, 3); return 0 or a Reason. The chunk is not trusted.
int decode_picture(const uint8_t* chunk, int64_t size, int64_t width, int64_t height, uint8_t* target, const WebP& webp) noexcept;

}  // namespace diskbuffer
