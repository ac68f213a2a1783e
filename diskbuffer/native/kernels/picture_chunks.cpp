#include "picture_chunks.hpp"

#include <cstring>

#include "libraries.hpp"
#include "memory.hpp"

namespace diskbuffer {

int verify_picture(const uint8_t* chunk, int64_t size) noexcept {
    const int64_t body = size - CHECKSUM;
    if (body <= PICTURE_HEADER) return BAD_PICTURE;
    return crc32c(0, chunk, body) == load<uint32_t>(chunk + body) ? NOTHING_WRONG : BAD_CHECKSUM;
}

int decode_file(const uint8_t* file, int64_t size, int64_t width, int64_t height, uint8_t* target, const WebP& webp) noexcept {
    const int64_t line_bytes = 3 * width, row_bytes = line_bytes * height;
    if (size == row_bytes) {  // the row itself
        std::memcpy(target, file, row_bytes);
        return NOTHING_WRONG;
    }
    int file_width = 0, file_height = 0;
    if (size <= 0 || size > row_bytes || !webp.get_info(file, size, &file_width, &file_height)) return BAD_PICTURE;
    if (file_width != width || file_height != height) return BAD_PICTURE;
    return webp.decode_into(file, size, target, row_bytes, static_cast<int>(line_bytes)) ? NOTHING_WRONG : BAD_PICTURE;
}

int decode_picture(const uint8_t* chunk, int64_t size, int64_t width, int64_t height, uint8_t* target, const WebP& webp) noexcept {
    if (const int wrong = verify_picture(chunk, size)) return wrong;
    return decode_file(chunk + PICTURE_HEADER, size - PICTURE_HEADER - CHECKSUM, width, height, target, webp);
}

}  // namespace diskbuffer
