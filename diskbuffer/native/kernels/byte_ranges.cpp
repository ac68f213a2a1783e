#include "byte_ranges.hpp"

#include <sys/mman.h>

#include "memory.hpp"

namespace diskbuffer {

namespace {

// Hand the runs of a batch on to `visit(target, r)`, column by column.
template <typename Visit>
void for_each_run(const Batch& batch, Visit visit) {
    for (int64_t t = 0; t < batch.n_targets; t++)
        for (int64_t r = 0; r < batch.n_runs; r++) visit(batch.target(t, batch.runs[r]), r);
}

// Hand the parts of shards that a batch reads on to `read(target, r, chunk, rows, offset, size)`, chunk by chunk: all of it, or the rows
// that are wanted where these alone are read. What is in the tail only, and what is damaged, is left to the gather.
template <typename Read>
void for_each_part(const Batch& batch, bool whole, Read read) {
    for_each_run(batch, [&](const Target& target, int64_t r) {
        if (target.chunk_rows == 0) return;
        const Run& run = batch.runs[r];
        const Shard shard(target, batch.source(r, target.column));
        for (const Chunk chunk : Chunks(target, shard, run, run.row, run.row + run.count)) {
            const Entry entry = load_entry(chunk.entry);
            if (!shard.contains(entry) || entry.size == 0) continue;
            if (!whole && reads_rows(target, entry.size, chunk.count()))
                read(target, r, chunk, true, entry.offset + HEADER + chunk.skipped() * target.row_bytes, chunk.count() * target.row_bytes);
            else
                read(target, r, chunk, false, entry.offset, entry.size);
        }
    });
}

}  // namespace

int64_t join_pages(const Source* pieces, int64_t n, int64_t page_bytes, Pages* stretches) noexcept {
    int64_t count = 0;
    PageStretches joined(page_bytes, [&](Pages pages) { stretches[count++] = pages; });
    for (int64_t k = 0; k < n; k++) joined.add(pieces[k].at(0), pieces[k].size);
    joined.send();
    return count;
}

void request_pages(const Batch& batch, int64_t page_bytes) noexcept {
    PageStretches pages(page_bytes, [](Pages each) { madvise(reinterpret_cast<void*>(each.begin), each.end - each.begin, MADV_WILLNEED); });
    for_each_run(batch, [&](const Target& target, int64_t r) {
        const Run& run = batch.runs[r];
        const Source& source = batch.source(r, target.column);
        if (target.chunk_rows == 0) return pages.add(row_at(target, source, run, run.row, target.row_bytes), run.count * target.row_bytes);
        const Shard shard(target, source);
        const int64_t last = (run.row + run.count - 1) / target.chunk_rows;
        const Entry* first = shard.entry_at(target, run.lane, run.row / target.chunk_rows);
        const Entry* end = shard.entry_at(target, run.lane, last) + 1;
        pages.add(reinterpret_cast<const uint8_t*>(first), (end - first) * static_cast<int64_t>(sizeof(Entry)));
    });
    for_each_part(batch, false, [&](const Target& target, int64_t r, const Chunk& chunk, bool rows, int64_t offset, int64_t size) {
        if (rows) {
            const uint8_t* sums = row_at(target, batch.source(r, target.checksums), batch.runs[r], chunk.first, ROW_CHECKSUM);
            pages.add(sums, chunk.count() * ROW_CHECKSUM);
        }
        pages.add(batch.source(r, target.column).at(offset), size);
    });
    pages.send();
}

int64_t find_missing_blocks(const Batch& batch, int64_t block_bytes, bool whole, MissingBlock* missing, int64_t room) noexcept {
    int64_t n = 0;
    for_each_part(batch, whole, [&](const Target& target, int64_t r, const Chunk&, bool, int64_t offset, int64_t size) {
        const Source& source = batch.source(r, target.column);
        const uint8_t* is_here = source.at((source.size + 7) / 8 * 8);
        for (int64_t block = offset / block_bytes; block <= (offset + size - 1) / block_bytes; block++) {
            if (__atomic_load_n(is_here + block, __ATOMIC_ACQUIRE) != 0) continue;
            if (n < room) missing[n] = {target.column, batch.runs[r].file, block};
            n++;
        }
    });
    return n;
}

}  // namespace diskbuffer
