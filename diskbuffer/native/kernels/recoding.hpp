// Compressing many chunks: of rows for a live shard, and of a live shard again for a sealed one.
#pragma once

#include <cstdint>

#include "codec.hpp"
#include "entries.hpp"
#include "lz4_encoder.hpp"

namespace diskbuffer {

// How a column's chunks are compressed for sealed shards: by a compressor of Blosc, by `PictureEncoder` ("pictures"), or not again ("copy").
struct Method {
    const char* compressor;
    int level;
    int64_t item_bytes;
    int64_t pixel_line_frame[3];  // bytes, for pictures
};

// Of the chunks that LZ4 could not make smaller while they were live: how many are still tried until the others are copied, and how many
// became smaller, after which all are tried.
struct Stored {
    int64_t tries, shrank;
};

// What compressing works with: one for each thread, of `workspace_bytes`, aligned as an int64.
struct Workspace {
    PictureEncoder pictures;

    // Return room for two chunks, behind this.
    uint8_t* scratch() { return reinterpret_cast<uint8_t*>(this + 1); }
};

inline int64_t workspace_bytes(int64_t chunk_bytes) { return sizeof(Workspace) + 2 * chunk_bytes; }

// Compress the chunks of a ring of `ring` bytes, from byte `first` on, to `target`; `entries` become where they are. Return the bytes
// written, -1 if it failed.
int64_t encode_chunks(const uint8_t* rows, int64_t first, int64_t ring, int64_t chunk_bytes, const char* compressor, int level,
                      uint8_t* target, Entry* entries, int64_t n) noexcept;

// Decode `n` chunks of a shard, all of each, one after the other to `target`; wrong[i] becomes 0, or the Reason why chunk i cannot be. Their
// places are inside of the shard.
void decode_chunks(const uint8_t* shard, const Entry* entries, int64_t n, int64_t chunk_bytes, uint8_t* target, uint8_t* wrong) noexcept;

// A chunk of rows in a ring: where the ring is, the chunk's first byte in it, and its bytes, fewer than others have where rows are missing.
struct RingChunk {
    const uint8_t* ring;
    int64_t first, size;
};

// Compress chunks of rings of `ring_bytes`, one after the other, to `target`; missing rows become zeros. `sizes` become the chunks'.
// `scratch` has room for a chunk. Return the bytes written, -1 if it failed.
int64_t encode_rings(const RingChunk* chunks, int64_t n, int64_t ring_bytes, int64_t chunk_bytes, const char* compressor, int level,
                     uint8_t* scratch, uint8_t* target, int64_t* sizes) noexcept;

// Compress chunks of a live shard again, to `target`; one that would be no smaller than it was is copied. `moved` become where they are.
// Return the bytes written, or -1 - i where chunk i cannot be decoded.
int64_t recode_chunks(const uint8_t* shard, const Entry* entries, int64_t n, int64_t chunk_bytes, const Method& method,
                      Workspace& workspace, Stored& stored, uint8_t* target, Entry* moved) noexcept;

// Return whether liblz4, which every reader has, decodes a chunk of pictures to `rows`, behind which there is room for as many bytes.
bool decodes_to(const uint8_t* chunk, int64_t size, uint8_t* rows, int64_t chunk_bytes) noexcept;

// Copy pictures of a live shard, which lose only once, to `target`. No chunk is larger than `row_bytes` by more than its checksums. Return
// the bytes written, or -1 - i where chunk i is damaged.
int64_t copy_pictures(const uint8_t* shard, const Entry* entries, int64_t n, int64_t row_bytes, uint8_t* target, Entry* moved) noexcept;

}  // namespace diskbuffer
