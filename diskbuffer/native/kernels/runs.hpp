// What a batch is gathered from and into: runs of rows, the files that they lie in, and the columns of the batch.
//
// Python makes these structs, as arrays of int64; `reading/gather/structs.py` has the numbers of their fields.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "codec.hpp"
#include "entries.hpp"
#include "lookup.hpp"
#include "memory.hpp"
#include "picture_chunks.hpp"

namespace diskbuffer {

// Where a row lies: a file of every column, a lane of it, and a row of that lane. A lane has the rows of one segment.
struct Place {
    int64_t file, lane, row;
};

struct Run;

// How segments lie in files: so many rows each, so many to a file. Format 1 has one lane.
struct Layout {
    int64_t segment_rows, lanes;

    // Return the place of a row; file -1 where it is not kept.
    Place place_of(const Stream& stream, int64_t position) const {
        const int64_t segment = position / segment_rows, slot = slot_of(stream, segment, segment_rows);
        if (slot < 0 || position < stream.low || position > stream.head) return {-1, 0, 0};
        return {slot / lanes, slot % lanes, position - segment * segment_rows};
    }

    // Return a number by which places sort as they lie in files.
    int64_t order_of(const Run& run) const;
};

// Consecutive rows of one segment, which go to consecutive rows of one sample's window.
struct Run {
    int64_t file, lane, row;  // the place of the first
    int64_t count;
    int64_t sample;
    int64_t at;        // the row of the window that the first one is
    int64_t pad;       // rows before `at` that are made up, as the episode starts there: 0 but for a window's first run
    int64_t stream;    // the environment, as its store counts them: its rows of the tail, and what its checksums start from
    int64_t position;  // of the first row
    int64_t store;     // which of several stores
    int64_t sources;   // the place of its file among those of the batch
};
static_assert(sizeof(Run) == 11 * 8);

inline int64_t Layout::order_of(const Run& run) const { return (run.file * lanes + run.lane) * segment_rows + run.row; }

// Where a file is mapped; address 0 where it is not. An integer, as a plan of parts points to before their first byte.
struct Source {
    uintptr_t address;
    int64_t size;

    const uint8_t* at(int64_t offset) const { return reinterpret_cast<const uint8_t*>(address + offset); }
};
static_assert(sizeof(Source) == 2 * 8);

// Where the files of all columns are mapped, (columns, files).
struct MappedFiles {
    const Source* sources;
    int64_t columns, files;

    // Return where a file is mapped; nowhere, if there is no such column, or the file came after these were mapped.
    Source source(int64_t column, int64_t file) const {
        const bool is_there = column >= 0 && column < columns && file >= 0 && file < files;
        return is_there ? sources[column * files + file] : Source{0, 0};
    }
};

// One column of a batch, as one store has it.
struct Target {
    int64_t column;       // its place in the sources of a file
    int64_t row_bytes;
    int64_t skip;         // the first row of a window that belongs to it
    int64_t rows;         // how many do
    uint8_t* out;         // (samples, rows, row)
    int64_t chunk_rows;   // 0 for a flat column
    int64_t chunks;       // of a lane
    const uint8_t* tail;  // (streams, tail_rows, row), the store's own
    int64_t zeros;        // 1 if what lies before an episode is zeros, 0 if it is the first row again
    int64_t flag;         // 1 for booleans, which are made 0 or 1: a stranger's file may have other bytes, which torch does not expect
    int64_t checksums;    // the place in the sources of the rows' checksums, where reading them saves reading chunks; else -1
    int64_t salt;         // what these start from, the store's own
    int64_t tail_rows;    // the store's own
    int64_t height, width;  // of a column that is compressed with a loss, whose chunks are pictures; 0 for others
    WebP webp;              // what decodes these
    int64_t lanes;          // of a file
    int64_t lane_rows;

    int64_t chunk_bytes() const { return chunk_rows * row_bytes; }

    // Return where a position of a stream is in the tail.
    const uint8_t* tail_row(int64_t stream, int64_t position) const {
        return tail + (stream * tail_rows + position % tail_rows) * row_bytes;
    }
};
static_assert(sizeof(Target) == 19 * 8);

// All of a batch: `targets` is (stores, n_targets), `sources` (files, columns).
struct Batch {
    const Target* targets;
    int64_t stores, n_targets;
    const Run* runs;
    int64_t n_runs;
    const Source* sources;
    int64_t columns;

    const Target& target(int64_t t, const Run& run) const { return targets[run.store * n_targets + t]; }
    const Source& source(int64_t run, int64_t column) const { return sources[runs[run].sources * columns + column]; }
};

// The rows of a run that a target wants.
struct RowRange {
    int64_t offset;  // rows of the run before them
    int64_t count;   // 0 or less for none
    uint8_t* out;
};

inline RowRange range_of(const Target& target, const Run& run) {
    const int64_t offset = std::max<int64_t>(0, target.skip - run.at);
    const int64_t count = std::min(run.count, target.skip + target.rows - run.at) - offset;
    return {offset, count, target.out + (run.sample * target.rows + run.at + offset - target.skip) * target.row_bytes};
}

// Return the address of a row of a run's lane, in a file of rows of so many bytes.
inline const uint8_t* row_at(const Target& target, const Source& source, const Run& run, int64_t row, int64_t row_bytes) {
    return source.at((run.lane * target.lane_rows + row) * row_bytes);
}

// Return whether rows of a run's lane lie inside of a file, as it is mapped.
inline bool contains_rows(const Target& target, const Source& source, const Run& run, int64_t row, int64_t count, int64_t row_bytes) {
    return source.address != 0 && row >= 0 && (run.lane * target.lane_rows + row + count) * row_bytes <= source.size;
}

constexpr int64_t ROW_CHECKSUM = 12;  // bytes of a row's two checksums, of which the first is the observation's, and of its time

// A shard as it is mapped. Neither its chunks nor its index are trusted.
struct Shard {
    const Source& source;
    int64_t end;  // of the chunks, where the index begins

    Shard(const Target& target, const Source& source)
        : source(source), end(source.size - target.chunks * target.lanes * static_cast<int64_t>(sizeof(Entry))) {}

    // Return where the entry of a chunk of a lane is.
    const Entry* entry_at(const Target& target, int64_t lane, int64_t chunk) const {
        const int64_t number = chunk * target.lanes + lane;
        return reinterpret_cast<const Entry*>(source.at(end + number * static_cast<int64_t>(sizeof(Entry))));
    }

    // Return whether rows are of chunks that its index has. All that looks into the index asks this.
    bool has(const Target& target, int64_t row, int64_t count) const {
        return source.address != 0 && end >= 0 && row >= 0 && row + count <= target.chunks * target.chunk_rows;
    }

    // Return whether a chunk lies inside of the file, as its entry says. All that reads chunks asks this.
    bool contains(const Entry& entry) const {
        return entry.offset >= 0 && entry.offset <= end && entry.size >= 0 && entry.size <= end - entry.offset;
    }

    const uint8_t* chunk(const Entry& entry) const { return source.at(entry.offset); }
};

// One of the chunks that rows of a run lie in.
struct Chunk {
    int64_t number;        // of its lane
    int64_t first, until;  // the rows of the lane that are taken from it
    int64_t begin;         // its first row
    const Entry* entry;

    int64_t count() const { return until - first; }
    int64_t skipped() const { return first - begin; }
};

// The chunks of rows `first` to `until` of a run's lane, in order, to be looped over.
class Chunks {
public:
    Chunks(const Target& target, const Shard& shard, const Run& run, int64_t first, int64_t until)
        : target_(target), shard_(shard), lane_(run.lane), first_(first), until_(until) {}

    struct Iterator {
        const Chunks& chunks;
        int64_t number, row;

        bool operator!=(int64_t until) const { return row < until; }
        void operator++() { row = ++number * chunks.target_.chunk_rows; }
        Chunk operator*() const {
            const int64_t begin = number * chunks.target_.chunk_rows;
            const int64_t end = std::min(chunks.until_, begin + chunks.target_.chunk_rows);
            return {number, row, end, begin, chunks.shard_.entry_at(chunks.target_, chunks.lane_, number)};
        }
    };
    Iterator begin() const { return {*this, first_ / target_.chunk_rows, first_}; }
    int64_t end() const { return until_; }

private:
    const Target& target_;
    const Shard& shard_;
    int64_t lane_, first_, until_;
};

// Return whether of a chunk of `size` bytes, of which `rows` rows are taken, these alone are read.
//
// So it is where compression gained nothing: no other chunk is as long.
inline bool reads_rows(const Target& target, int64_t size, int64_t rows) {
    return target.checksums >= 0 && size == HEADER + target.chunk_bytes() + CHECKSUM && rows < target.chunk_rows;
}

}  // namespace diskbuffer
