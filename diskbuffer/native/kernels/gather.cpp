#include "gather.hpp"

#include <cstring>

#include "checksums.hpp"
#include "codec.hpp"
#include "libraries.hpp"

namespace diskbuffer {

namespace {

constexpr int64_t LINE = 64;                                // bytes of a cache line
constexpr int64_t CHUNK_AHEAD = 2048;                       // bytes of a run's chunks that are brought into the caches before
constexpr int64_t RUNS_AHEAD = 12, COPIED_AHEAD = 512;      // how many runs before, and how many bytes, for flat columns
constexpr int64_t PICTURES = 8;                             // of the last that were decoded, which the next runs may want, too
constexpr uint64_t OBSERVATION = 0;                         // the word of a row's checksums

void prefetch_lines(const uint8_t* begin, int64_t bytes) {
    for (int64_t line = 0; line < bytes; line += LINE) prefetch(begin + line);
}

// Copy rows that are in the tail. A writer may be overwriting them: the caller looks whether their chunk is in its shard by now.
void copy_from_tail(const Target& target, const Run& run, int64_t row, int64_t count, uint8_t* out) {
    for (int64_t k = 0; k < count; k++)
        copy_shared(out + k * target.row_bytes, target.tail_row(run.stream, run.position - run.row + row + k), target.row_bytes);
}

// One thread's share of a batch: runs `begin` to `end`.
class Gathering {
public:
    Gathering(const Batch& batch, int64_t begin, int64_t end, Scratch scratch, Progress& progress)
        : batch_(batch), begin_(begin), end_(end), scratch_(scratch), progress_(progress) {}

    // Fill all targets; nothing more where a chunk cannot be read.
    void gather() {
        for (int64_t t = 0; t < batch_.n_targets; t++) {
            const Target& target = batch_.targets[t];  // of several stores, only what is said to be a store's own differs
            if (!(target.chunk_rows == 0 ? copy(t) : target.width != 0 ? decode_pictures(t) : decode_chunks(t))) return;
        }
    }

private:
    // Copy the rows of a flat column; return whether all could be.
    bool copy(int64_t t) {
        const Target& target = batch_.targets[t];
        const int64_t row_bytes = target.row_bytes;
        for (int64_t r = begin_; r < end_; r++) {
            if (r + RUNS_AHEAD < end_) {
                const Run& later = batch_.runs[r + RUNS_AHEAD];
                prefetch_lines(row_at(target, batch_.source(r + RUNS_AHEAD, target.column), later, later.row, row_bytes),
                               std::min(later.count * row_bytes, COPIED_AHEAD));
            }
            const Run& run = batch_.runs[r];
            const RowRange range = range_of(target, run);
            if (range.count <= 0) continue;
            const Source& source = batch_.source(r, target.column);
            const int64_t first = run.row + range.offset;
            if (!contains_rows(target, source, run, first, range.count, row_bytes)) return fail(OUTSIDE, t, r, 0);
            copy_bytes(range.out, row_at(target, source, run, first, row_bytes), range.count * row_bytes);
            finish(target, run, range);
        }
        return true;
    }

    // The rows of the chunk that was decoded last, as far as there is another use for them: they are in the scratch.
    struct Held {
        const Entry* entry = nullptr;
        int64_t rows = 0;
    };

    // Decode the rows of a column in chunks; return whether all could be. All parts of the batch that it is in, such as `obs` and `next_obs`,
    // are filled with the first of them, run by run.
    bool decode_chunks(int64_t t) {
        if (earlier_target(t) >= 0) return true;
        Held held;
        for (int64_t r = begin_; r < end_; r++) {
            const Run& run = batch_.runs[r];
            int64_t until = 0;
            for (int64_t part = t; part < batch_.n_targets; part++) {
                if (batch_.targets[part].column != batch_.targets[t].column) continue;
                const RowRange range = range_of(batch_.target(part, run), run);
                if (range.count > 0) until = std::max(until, run.row + range.offset + range.count);
            }
            if (r + 1 < end_) look_ahead(t, r + 1);
            for (int64_t part = t; part < batch_.n_targets; part++)
                if (batch_.targets[part].column == batch_.targets[t].column && !decode_run(part, t, r, until, held)) return false;
        }
        return true;
    }

    // Decode the rows of a run in one part of the batch; those that another part has are copied. Of its chunks, rows before `until` will be used.
    bool decode_run(int64_t t, int64_t other, int64_t r, int64_t until, Held& held) {
        const Run& run = batch_.runs[r];
        const Target& target = batch_.target(t, run);
        const int64_t row_bytes = target.row_bytes;
        const RowRange range = range_of(target, run);
        if (range.count <= 0) return true;
        const Shard shard(target, batch_.source(r, target.column));
        const int64_t first = run.row + range.offset;
        if (!shard.has(target, first, range.count)) return fail(OUTSIDE, t, r, 0);
        const int64_t known = other == t ? 0 : copy_known(target, batch_.target(other, run), run, range);
        for (const Chunk chunk : Chunks(target, shard, run, first + known, first + range.count)) {
            uint8_t* out = range.out + (chunk.first - first) * row_bytes;
            const int64_t bytes = chunk.count() * row_bytes;
            if (chunk.entry == held.entry && chunk.until - chunk.begin <= held.rows) {
                std::memcpy(out, scratch_.memory + chunk.skipped() * row_bytes, bytes);
                continue;
            }
            Entry entry = load_entry(chunk.entry);
            if (entry.is_empty()) {
                copy_from_tail(target, run, chunk.first, chunk.count(), out);
                entry = load_again(chunk.entry);
                if (entry.is_empty()) continue;
            }
            if (!shard.contains(entry)) return fail(BAD_ENTRY, t, r, chunk.number);
            if (reads_rows(target, entry.size, chunk.count()) && copy_stored(target, r, chunk, shard.chunk(entry), out)) continue;
            const int64_t rows = std::min(std::max(until, chunk.until) - chunk.begin, target.chunk_rows);
            const bool direct = chunk.skipped() == 0 && rows == chunk.count();
            if (!direct) held = {chunk.entry, rows};
            const int reason = decode(shard.chunk(entry), entry.size, target.chunk_bytes(), rows * row_bytes,
                                      direct ? out : scratch_.memory, scratch_.memory + scratch_.largest);
            if (reason != NOTHING_WRONG) return fail(reason, t, r, chunk.number);
            if (!direct) std::memcpy(out, scratch_.memory + chunk.skipped() * row_bytes, bytes);
        }
        finish(target, run, range);
        return true;
    }

    // Decode the rows of a column whose chunks are single pictures; return whether all could be.
    //
    // As one takes as long as a thousand copies of it, none is decoded twice that lies close at hand: that was decoded for the same
    // run of another part of the batch, such as `obs` for `next_obs`, or among the last ones.
    bool decode_pictures(int64_t t) {
        struct Decoded {
            const Entry* entry = nullptr;
            const uint8_t* picture = nullptr;
        } last[PICTURES];
        int64_t n = 0;
        const int64_t other = earlier_target(t);
        for (int64_t r = begin_; r < end_; r++) {
            const Run& run = batch_.runs[r];
            const Target& target = batch_.target(t, run);
            const RowRange range = range_of(target, run);
            if (range.count <= 0) continue;
            const Shard shard(target, batch_.source(r, target.column));
            const int64_t first = run.row + range.offset;
            if (!shard.has(target, first, range.count)) return fail(OUTSIDE, t, r, 0);
            for (const Chunk chunk : Chunks(target, shard, run, first, first + range.count)) {
                uint8_t* out = range.out + (chunk.first - first) * target.row_bytes;
                const uint8_t* decoded = other < 0 ? nullptr : find_row(batch_.target(other, run), run, chunk.first - run.row);
                for (const Decoded& one : last)
                    if (one.entry == chunk.entry) decoded = one.picture;
                if (decoded != nullptr) {
                    std::memcpy(out, decoded, target.row_bytes);
                    continue;
                }
                if (const int reason = decode_one(target, run, shard, chunk, out)) return fail(reason, t, r, chunk.number);
                last[n++ % PICTURES] = {chunk.entry, out};
            }
            finish(target, run, range);
        }
        return true;
    }

    // Decode one picture, or copy it from the tail; return 0 or a Reason.
    static int decode_one(const Target& target, const Run& run, const Shard& shard, const Chunk& chunk, uint8_t* out) {
        Entry entry = load_entry(chunk.entry);
        if (entry.is_empty()) {
            copy_from_tail(target, run, chunk.first, 1, out);
            entry = load_again(chunk.entry);
            if (entry.is_empty()) return NOTHING_WRONG;
        }
        if (!shard.contains(entry)) return BAD_ENTRY;
        return decode_picture(shard.chunk(entry), entry.size, target.width, target.height, out, target.webp);
    }

    // Read an entry again after rows were copied from the tail. A chunk is in its shard before its place in the tail is used again: if
    // it still is not, then what was copied is what was meant.
    static Entry load_again(const Entry* entry) {
        std::atomic_thread_fence(std::memory_order_acquire);
        return load_entry(entry);
    }

    // Return an earlier target of the same column, which this thread filled from the same runs; -1 if there is none.
    int64_t earlier_target(int64_t t) const {
        for (int64_t other = 0; other < t; other++)
            if (batch_.targets[other].column == batch_.targets[t].column) return other;
        return -1;
    }

    // Return where a row of a run is in a target, nullptr if it is not.
    static const uint8_t* find_row(const Target& target, const Run& run, int64_t row) {
        const RowRange range = range_of(target, run);
        const bool is_there = row >= range.offset && row < range.offset + range.count;
        return is_there ? range.out + (row - range.offset) * target.row_bytes : nullptr;
    }

    // Copy the first rows of a range that are in another target, such as those of `next_obs` in `obs`; return how many there are.
    static int64_t copy_known(const Target& target, const Target& other, const Run& run, const RowRange& range) {
        int64_t known = 0;
        while (known < range.count) {
            const uint8_t* row = find_row(other, run, range.offset + known);
            if (row == nullptr) break;
            std::memcpy(range.out + known * target.row_bytes, row, target.row_bytes);
            known++;
        }
        return known;
    }

    // Copy rows from a chunk that is stored as it is; return whether all match their own checksums. Where one does not, the chunk's
    // checksum tells whether it is the rows that are damaged.
    bool copy_stored(const Target& target, int64_t r, const Chunk& chunk, const uint8_t* stored, uint8_t* out) const {
        const Run& run = batch_.runs[r];
        const int64_t row_bytes = target.row_bytes;
        const Source& source = batch_.source(r, target.checksums);
        if (!contains_rows(target, source, run, chunk.first, chunk.count(), ROW_CHECKSUM)) return false;
        const uint8_t* sums = row_at(target, source, run, chunk.first, ROW_CHECKSUM);
        std::memcpy(out, stored + HEADER + chunk.skipped() * row_bytes, chunk.count() * row_bytes);
        for (int64_t k = 0; k < chunk.count(); k++) {
            const uint32_t seed = row_seed(target.salt, run.stream, run.position - run.row + chunk.first + k, OBSERVATION);
            const uint32_t crc = crc32c(seed, out + k * row_bytes, row_bytes);
            if (pad(crc, row_bytes) != load<uint32_t>(sums + k * ROW_CHECKSUM)) return false;
        }
        return true;
    }

    // Bring a run's chunks into the caches while the one before is decoded; the entry of the next, too.
    void look_ahead(int64_t t, int64_t r) const {
        const Run& run = batch_.runs[r];
        const Target& target = batch_.target(t, run);
        if (r + 1 < batch_.n_runs) {
            const Run& next = batch_.runs[r + 1];
            prefetch(Shard(target, batch_.source(r + 1, target.column)).entry_at(target, next.lane, next.row / target.chunk_rows));
        }
        const Shard shard(target, batch_.source(r, target.column));
        if (!shard.has(target, run.row, 1)) return;
        const Entry entry = load_entry(shard.entry_at(target, run.lane, run.row / target.chunk_rows));
        if (shard.contains(entry)) prefetch_lines(shard.chunk(entry), CHUNK_AHEAD);
    }

    // Make the rows of a run what a batch has: booleans 0 or 1, and rows before the episode's start made up.
    static void finish(const Target& target, const Run& run, const RowRange& range) {
        const int64_t row_bytes = target.row_bytes;
        if (target.flag != 0)
            for (int64_t k = 0; k < range.count * row_bytes; k++) range.out[k] = range.out[k] != 0;
        for (int64_t k = run.pad - target.skip; k > 0; k--) {
            uint8_t* out = range.out - k * row_bytes;
            if (target.zeros != 0)
                std::memset(out, 0, row_bytes);
            else
                std::memcpy(out, range.out, row_bytes);
        }
    }

    // Note that a chunk cannot be read, unless another thread has noted one; return false.
    bool fail(int reason, int64_t t, int64_t r, int64_t chunk) {
        int none = NOTHING_WRONG;
        if (progress_.reason.compare_exchange_strong(none, reason, std::memory_order_relaxed))
            progress_.target = t, progress_.run = r, progress_.chunk = chunk;
        return false;
    }

    const Batch& batch_;
    const int64_t begin_, end_;
    const Scratch scratch_;
    Progress& progress_;
};

}  // namespace

void gather_runs(const Batch& batch, int64_t begin, int64_t end, Scratch scratch, Progress& progress) noexcept {
    Gathering(batch, begin, end, scratch, progress).gather();
}

}  // namespace diskbuffer
