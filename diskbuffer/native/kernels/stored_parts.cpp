#include "stored_parts.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "codec.hpp"
#include "memory.hpp"

namespace diskbuffer {

namespace {

constexpr int LIVE_LEVEL = 1;  // of LZ4, as chunks of live shards are compressed

// Copy the rows of a chunk that is in the tail yet, as far as there are any.
void copy_chunk_of_tail(const Target& target, const Run& run, int64_t number, uint8_t* out) {
    const int64_t position = run.position - run.row + number * target.chunk_rows;
    for (int64_t row = 0; row < target.chunk_rows; row++)
        copy_shared(out + row * target.row_bytes, target.tail_row(run.stream, position + row), target.row_bytes);
}

}  // namespace

ChunkList list_chunks(const Batch& batch, const Target& target, StoredChunk* list, int32_t* firsts) noexcept {
    ChunkList found{0, 0, 0};
    int64_t file = -1, lane = -1, store = -1, begin = 0, until = 0;  // chunks of a lane that are the last ones of the list
    for (int64_t r = 0; r < batch.n_runs; r++) {
        const Run& run = batch.runs[r];
        const Wanted wanted = wanted_of(target, run);
        firsts[r] = 0;
        if (wanted.count <= 0) continue;
        const int64_t row = run.row + wanted.cut, first = row / target.chunk_rows;
        if (run.file != file || run.lane != lane || run.store != store || first > until || first < begin)
            file = run.file, lane = run.lane, store = run.store, begin = until = first;
        firsts[r] = static_cast<int32_t>(found.n - (until - first));
        const Shard shard(target, batch.source(r, target.column));
        if (!shard.has(target, row, wanted.count)) return {-1, 0, 0};
        for (const Chunk chunk : Chunks(target, shard, run, std::max(row, until * target.chunk_rows), row + wanted.count)) {
            const Entry entry = load_entry(chunk.entry);
            if (entry.is_empty())
                found.of_tail++;
            else if (shard.contains(entry))
                found.bytes += entry.size;
            else
                return {-1, 0, 0};
            list[found.n++] = {r, chunk.number};
            until = chunk.number + 1;
        }
    }
    return found;
}

int64_t copy_chunks(const Batch& batch, const Target& target, const StoredChunk* list, int64_t n, uint8_t* blob, int64_t room,
                    int64_t before, uint8_t* scratch) noexcept {
    int64_t end = 0;
    // Entries are written behind all chunks at first, in the place that they have when no chunk becomes smaller.
    auto* const entries = reinterpret_cast<Entry*>(blob + room) + before;
    for (int64_t k = 0; k < n; k++) {
        const Run& run = batch.runs[list[k].run];
        const Shard shard(target, batch.source(list[k].run, target.column));
        if (!shard.has(target, list[k].number * target.chunk_rows, 1)) return -1;
        const Entry* at = shard.entry_at(target, run.lane, list[k].number);
        Entry entry = load_entry(at);
        const uint8_t* chunk = nullptr;
        if (entry.is_empty()) {
            if (target.width != 0) return -1;  // these are encoded by others
            copy_chunk_of_tail(target, run, list[k].number, scratch);
            std::atomic_thread_fence(std::memory_order_acquire);
            entry = load_entry(at);  // as in the gather: if the chunk is in its shard by now, that is what is meant
        }
        if (entry.is_empty()) {
            uint8_t* compressed = scratch + target.chunk_bytes() + HEADER + CHECKSUM;
            entry.size = encode(scratch, target.chunk_bytes(), "lz4", LIVE_LEVEL, 1, compressed);
            chunk = compressed;
        } else if (shard.contains(entry)) {
            chunk = shard.chunk(entry);
        } else {
            return -1;
        }
        if (entry.size <= 0 || entry.size > room - end) return -1;
        std::memcpy(blob + end, chunk, entry.size);
        entries[k] = {end, entry.size};
        end += entry.size;
    }
    end = (end + 7) / 8 * 8;
    std::memmove(blob + end, blob + room, (before + n) * sizeof(Entry));
    return end;
}

int64_t list_rows(const Batch& batch, const Target& target, int32_t* firsts) noexcept {
    int64_t bytes = 0;
    for (int64_t r = 0; r < batch.n_runs; r++) {
        const Run& run = batch.runs[r];
        const Wanted wanted = wanted_of(target, run);
        firsts[r] = static_cast<int32_t>(bytes);
        if (wanted.count <= 0) continue;
        if (!contains_rows(target, batch.source(r, target.column), run, run.row + wanted.cut, wanted.count, target.row_bytes)) return -1;
        bytes += wanted.count * target.row_bytes;
    }
    return bytes;
}

void copy_rows(const Batch& batch, const Target& target, const int32_t* firsts, uint8_t* blob) noexcept {
    for (int64_t r = 0; r < batch.n_runs; r++) {
        const Run& run = batch.runs[r];
        const Wanted wanted = wanted_of(target, run);
        if (wanted.count <= 0) continue;
        const Source& source = batch.source(r, target.column);
        const int64_t first = run.row + wanted.cut;
        if (!contains_rows(target, source, run, first, wanted.count, target.row_bytes)) continue;
        const uint8_t* rows = row_at(target, source, run, first, target.row_bytes);
        std::memcpy(blob + firsts[r], rows, wanted.count * target.row_bytes);
    }
}

}  // namespace diskbuffer
