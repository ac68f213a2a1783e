#include "recoding.hpp"

#include <algorithm>
#include <cstring>

#include "libraries.hpp"
#include "memory.hpp"
#include "picture_chunks.hpp"

namespace diskbuffer {

namespace {

constexpr int64_t BLOCK = HEADER + 8;  // where the block of LZ4 begins: behind its offset and its size

// Compress rows by `PictureEncoder`, checksum and all; a chunk that does not become smaller is stored. Return its size.
int64_t encode_pictures(const uint8_t* rows, int64_t chunk_bytes, const Method& method, PictureEncoder& encoder, uint8_t* target) {
    const int64_t room = chunk_bytes - BLOCK - 2 * CHECKSUM;
    const int64_t block_bytes = encoder.encode(rows, chunk_bytes, target + BLOCK, room, method.pixel_line_frame);
    BloscHeader header{2, 1, LZ4 << 5, 1, static_cast<uint32_t>(chunk_bytes), static_cast<uint32_t>(chunk_bytes), 0};
    int64_t size;
    if (block_bytes == 0) {
        header.flags |= MEMCPYED;
        std::memcpy(target + HEADER, rows, chunk_bytes);
        size = HEADER + chunk_bytes;
    } else {
        store(target + HEADER, static_cast<uint32_t>(HEADER + 4));
        store(target + HEADER + 4, static_cast<uint32_t>(block_bytes));
        size = BLOCK + block_bytes;
    }
    header.compressed_bytes = static_cast<uint32_t>(size);
    store(target, header);
    store(target + size, crc32c(0, target, size));
    return size + CHECKSUM;
}

// Compress decoded rows as a method says; return the chunk's size, 0 or less if it failed.
int64_t encode_by(const Method& method, uint8_t* rows, int64_t chunk_bytes, int64_t before, PictureEncoder& encoder, uint8_t* target) {
    if (std::strcmp(method.compressor, "pictures") != 0)
        return encode(rows, chunk_bytes, method.compressor, method.level, method.item_bytes, target);
    const int64_t size = encode_pictures(rows, chunk_bytes, method, encoder, target);
    return decodes_to(target, size, rows, chunk_bytes) ? size : before;  // so that a mistake of ours would cost space, and not rows
}

}  // namespace

int64_t encode_chunks(const uint8_t* rows, int64_t first, int64_t ring, int64_t chunk_bytes, const char* compressor, int level,
                      uint8_t* target, Entry* entries, int64_t n) noexcept {
    int64_t offset = 0;
    for (int64_t i = 0; i < n; i++) {
        const int64_t size = encode(rows + (first + i * chunk_bytes) % ring, chunk_bytes, compressor, level, 1, target + offset);
        if (size <= 0) return -1;
        entries[i] = {offset, size};
        offset += size;
    }
    return offset;
}

void decode_chunks(const uint8_t* shard, const Entry* entries, int64_t n, int64_t chunk_bytes, uint8_t* target, uint8_t* wrong) noexcept {
    for (int64_t i = 0; i < n; i++)
        wrong[i] = decode(shard + entries[i].offset, entries[i].size, chunk_bytes, chunk_bytes, target + i * chunk_bytes, nullptr);
}

int64_t encode_rings(const RingChunk* chunks, int64_t n, int64_t ring_bytes, int64_t chunk_bytes, const char* compressor, int level,
                     uint8_t* scratch, uint8_t* target, int64_t* sizes) noexcept {
    int64_t offset = 0;
    for (int64_t i = 0; i < n; i++) {
        const RingChunk& chunk = chunks[i];
        const uint8_t* rows = chunk.ring + chunk.first;
        const int64_t before_end = std::min(chunk.size, ring_bytes - chunk.first);
        if (before_end < chunk_bytes) {
            std::memcpy(scratch, rows, before_end);
            std::memcpy(scratch + before_end, chunk.ring, chunk.size - before_end);
            std::memset(scratch + chunk.size, 0, chunk_bytes - chunk.size);
            rows = scratch;
        }
        sizes[i] = encode(rows, chunk_bytes, compressor, level, 1, target + offset);
        if (sizes[i] <= 0) return -1;
        offset += sizes[i];
    }
    return offset;
}

int64_t recode_chunks(const uint8_t* shard, const Entry* entries, int64_t n, int64_t chunk_bytes, const Method& method,
                      Workspace& workspace, Stored& stored, uint8_t* target, Entry* moved) noexcept {
    const bool copies = std::strcmp(method.compressor, "copy") == 0;
    int64_t offset = 0;
    for (int64_t i = 0; i < n; i++) {
        const uint8_t* source = shard + entries[i].offset;
        const int64_t before = entries[i].size;
        const bool is_stored = before >= chunk_bytes, copied = copies || (is_stored && stored.tries <= 0 && stored.shrank == 0);
        uint8_t *rows = workspace.scratch(), *to = target + offset;
        if (decode(source, before, chunk_bytes, copied ? 0 : chunk_bytes, rows, rows + chunk_bytes)) return -1 - i;
        int64_t size = before;
        if (!copied) {
            size = encode_by(method, rows, chunk_bytes, before, workspace.pictures, to);
            if (size <= 0) return -1 - i;
            if (is_stored) stored.tries--, stored.shrank += size < chunk_bytes;
        }
        if (size >= before) {
            size = before;
            std::memcpy(to, source, size);
        }
        moved[i] = {offset, size};
        offset += size;
    }
    return offset;
}

bool decodes_to(const uint8_t* chunk, int64_t size, uint8_t* rows, int64_t chunk_bytes) noexcept {
    if (load<BloscHeader>(chunk).flags & MEMCPYED) return std::memcmp(rows, chunk + HEADER, chunk_bytes) == 0;
    uint8_t* decoded = rows + chunk_bytes;
    const auto block = reinterpret_cast<const char*>(chunk + BLOCK);
    const int64_t bytes = libraries.lz4_decompress_partial(block, reinterpret_cast<char*>(decoded), size - CHECKSUM - BLOCK, chunk_bytes,
                                                           chunk_bytes);
    return bytes == chunk_bytes && std::memcmp(rows, decoded, chunk_bytes) == 0;
}

int64_t copy_pictures(const uint8_t* shard, const Entry* entries, int64_t n, int64_t row_bytes, uint8_t* target, Entry* moved) noexcept {
    int64_t offset = 0;
    for (int64_t i = 0; i < n; i++) {
        const uint8_t* source = shard + entries[i].offset;
        const int64_t size = entries[i].size;
        if (size > PICTURE_HEADER + row_bytes + CHECKSUM || verify_picture(source, size)) return -1 - i;
        std::memcpy(target + offset, source, size);
        moved[i] = {offset, size};
        offset += size;
    }
    return offset;
}

}  // namespace diskbuffer
