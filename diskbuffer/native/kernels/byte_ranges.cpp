#include "byte_ranges.hpp"

#include <sys/mman.h>

#include "memory.hpp"

namespace diskbuffer {

namespace {

// Hand the parts of a run's shard that a target reads on to `read(entry, chunk, offset, size)`, chunk by chunk; only the
// rows that are wanted where these alone are read. What is in the tail only, and what is damaged, is left to the gather.
template <typename Read>
void for_each_part(const Target& target, const Source& source, const Run& run, Read read) {
    const Shard shard(target, source);
    if (!shard.has(target, run.row, run.count)) return;
    for (const Chunk chunk : Chunks(target, shard, run, run.row, run.row + run.count)) {
        const Entry entry = load_entry(chunk.entry);
        if (!shard.contains(entry) || entry.size == 0) continue;
        if (reads_rows(target, entry.size, chunk.count()))
            read(chunk, true, entry.offset + HEADER + chunk.skipped() * target.row_bytes, chunk.count() * target.row_bytes);
        else
            read(chunk, false, entry.offset, entry.size);
    }
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
    for (int64_t t = 0; t < batch.n_targets; t++) {
        const Target& target = batch.targets[t];
        for (int64_t r = 0; r < batch.n_runs; r++) {
            const Run& run = batch.runs[r];
            const Source& source = batch.source(r, target.column);
            if (target.chunk_rows == 0) {
                pages.add(row_at(target, source, run, run.row, target.row_bytes), run.count * target.row_bytes);
                continue;
            }
            const Shard shard(target, source);
            if (!shard.has(target, run.row, run.count)) continue;
            const int64_t last = (run.row + run.count - 1) / target.chunk_rows;
            const Entry* first = shard.entry_at(target, run.lane, run.row / target.chunk_rows);
            const Entry* end = shard.entry_at(target, run.lane, last) + 1;
            pages.add(reinterpret_cast<const uint8_t*>(first), (end - first) * static_cast<int64_t>(sizeof(Entry)));
        }
    }
    for (int64_t t = 0; t < batch.n_targets; t++) {
        const Target& target = batch.targets[t];
        if (target.chunk_rows == 0) continue;
        for (int64_t r = 0; r < batch.n_runs; r++) {
            const Run& run = batch.runs[r];
            const Source& source = batch.source(r, target.column);
            for_each_part(target, source, run, [&](const Chunk& chunk, bool rows, int64_t offset, int64_t size) {
                if (rows) {
                    const Source& sums = batch.source(r, target.checksums);
                    pages.add(row_at(target, sums, run, chunk.first, ROW_CHECKSUM), chunk.count() * ROW_CHECKSUM);
                }
                pages.add(source.at(offset), size);
            });
        }
    }
    pages.send();
}

}  // namespace diskbuffer
