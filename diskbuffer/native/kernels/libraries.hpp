// Functions of c-blosc, LZ4 and CRC32C, which numcodecs and google-crc32c carry; each module sets their addresses when it is imported.
#pragma once

#include <cstddef>
#include <cstdint>

namespace diskbuffer {

struct Libraries {
    uint32_t (*crc32c_extend)(uint32_t crc, const uint8_t* data, size_t size);
    int (*blosc_decompress)(const void* source, void* target, size_t target_size, int threads);
    int (*blosc_compress)(int level, int shuffle, size_t item, size_t size, const void* source, void* target, size_t target_size,
                          const char* compressor, size_t block, int threads);
    int (*lz4_decompress_partial)(const char* source, char* target, int size, int n_bytes, int room);
};

inline Libraries libraries{};

inline uint32_t crc32c(uint32_t crc, const void* data, size_t size) {
    return libraries.crc32c_extend(crc, static_cast<const uint8_t*>(data), size);
}

}  // namespace diskbuffer
