#include "codec.hpp"

#include <cstring>

#include "libraries.hpp"
#include "lz4.hpp"
#include "memory.hpp"

namespace diskbuffer {

namespace {

constexpr int64_t MOST = INT32_MAX;  // bytes that LZ4 and Blosc take: their sizes are 32 bits with a sign
constexpr int64_t LONG_MATCHES = 4;  // how many times as small as its contents a block is at least that `decode_lz4` decodes faster

// Decode the first bytes of a chunk that is one block of LZ4: its offset, and there its size before it.
int decode_block(const uint8_t* chunk, int64_t body, int64_t chunk_bytes, int64_t n_bytes, uint8_t* target) {
    const int64_t word = sizeof(uint32_t), offset = load<uint32_t>(chunk + HEADER);
    if (offset < HEADER + word || offset + word > body) return BAD_HEADER;
    const uint8_t* block = chunk + offset + word;
    const int64_t size = load<uint32_t>(chunk + offset);
    if (size > body - offset - word) return BAD_HEADER;
    if (size == chunk_bytes) {  // compression did not make it smaller, so it was stored
        std::memcpy(target, block, n_bytes);
        return NOTHING_WRONG;
    }
    const auto by_liblz4 = [&]() -> int64_t {
        const auto source = reinterpret_cast<const char*>(block);
        return libraries.lz4_decompress_partial(source, reinterpret_cast<char*>(target), size, n_bytes, n_bytes);
    };
    const int64_t decoded = size * LONG_MATCHES <= chunk_bytes ? decode_lz4(block, size, target, n_bytes) : by_liblz4();
    return decoded == n_bytes ? NOTHING_WRONG : BAD_STREAM;
}

}  // namespace

int decode(const uint8_t* chunk, int64_t size, int64_t chunk_bytes, int64_t n_bytes, uint8_t* target, uint8_t* scratch) noexcept {
    const int64_t body = size - CHECKSUM;
    if (body < HEADER || body > HEADER + chunk_bytes || body > MOST) return BAD_HEADER;
    if (crc32c(0, chunk, body) != load<uint32_t>(chunk + body)) return BAD_CHECKSUM;
    const auto header = load<BloscHeader>(chunk);
    if (header.bytes != chunk_bytes || header.compressed_bytes != body || header.block_bytes == 0) return BAD_HEADER;
    if (header.flags & MEMCPYED) {
        if (body != HEADER + chunk_bytes) return BAD_HEADER;
        std::memcpy(target, chunk + HEADER, n_bytes);
        return NOTHING_WRONG;
    }
    if (header.flags >> 5 == LZ4 && header.item_bytes == 1 && header.block_bytes == chunk_bytes && !(header.flags & SHUFFLED))
        return decode_block(chunk, body, chunk_bytes, n_bytes, target);
    uint8_t* whole = n_bytes == chunk_bytes ? target : scratch;
    if (libraries.blosc_decompress(chunk, whole, chunk_bytes, 1) != chunk_bytes) return BAD_STREAM;
    if (whole == scratch) std::memcpy(target, scratch, n_bytes);
    return NOTHING_WRONG;
}

int64_t encode(const uint8_t* rows, int64_t chunk_bytes, const char* compressor, int level, int64_t item_bytes, uint8_t* target) noexcept {
    const int64_t size = libraries.blosc_compress(level, item_bytes > 1, item_bytes, chunk_bytes, rows, target, HEADER + chunk_bytes,
                                                  compressor, chunk_bytes, 1);
    if (size <= 0) return size;
    store(target + size, crc32c(0, target, size));
    return size + CHECKSUM;
}

}  // namespace diskbuffer
