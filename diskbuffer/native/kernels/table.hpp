// The table of streams in RAM, one row of int64 each; fields as in `index/fields.py`. `Index` (index.hpp) has what it points to.
#pragma once

#include <cstddef>
#include <cstdint>

namespace diskbuffer {

// Where the frames before an episode's first row begin.
struct LeadIn {
    int64_t episode;  // its first row
    int64_t first;
};

// Consecutive rows of a stream, up to the first of its next segment. If that repeats the newest row, the later segment has it.
struct Segment {
    int64_t first;   // position
    int64_t number;  // of the segment in the store, which says file and lane
};

struct Stream {
    int64_t head;           // position of the newest row, -1 where there is none
    int64_t ended;          // 1 where that row is the last of an episode
    int64_t low;            // position of the oldest row kept
    int64_t floor;          // position of the oldest step to sample: the frames stacked behind it are there
    int64_t episodes;       // entries of `starts`; the first is the episode that `floor` lies in
    const int64_t* starts;  // their first positions, ascending
    int64_t segments;       // entries of `segment_list`
    const Segment* segment_list;
    int64_t lead_ins;  // entries of `lead_places`
    const LeadIn* lead_places;
    int64_t store;         // which of several stores the stream is of; 0 where there is one
    int64_t own;           // its number there
    int64_t begin;         // no row before this position counts: it was cleared
    int64_t steps_offset;  // steps before a position, less what its place in `starts` tells
    int64_t changed;       // the version of the index in which the stream changed last
    int64_t reserved;      // 128 bytes: what a draw reads is in one cache line
};
static_assert(sizeof(Stream) == 16 * sizeof(int64_t) && offsetof(Stream, changed) == 14 * sizeof(int64_t));
static_assert(sizeof(LeadIn) == 2 * sizeof(int64_t) && sizeof(Segment) == 2 * sizeof(int64_t));

struct Table {
    const Stream* streams;
    int64_t n;

    // Return the number in the store of a step.
    int64_t id_of(int64_t stream, int64_t position) const { return position * n + stream; }
};

}  // namespace diskbuffer
