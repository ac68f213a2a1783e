// The table of streams in RAM, one row of int64 each, which `diskbuffer/index/streams.py` writes; fields as in `index/fields.py`.
#pragma once

#include <cstddef>
#include <cstdint>

namespace diskbuffer {

// Where the frames before an episode's first row begin.
struct StackPrefix {
    int64_t episode;  // its first row
    int64_t first;
};

struct Stream {
    int64_t head;           // position of the newest row, -1 where there is none
    int64_t ended;          // 1 where that row is the last of an episode
    int64_t low;            // position of the oldest row kept
    int64_t floor;          // position of the oldest step to sample: the frames stacked behind it are there
    int64_t episodes;       // entries of `starts`; the first is the episode that `floor` lies in
    int64_t* starts;        // their first positions, ascending
    int64_t segments;       // entries of `slots`
    const int64_t* slots;   // where the segments are in the store, from that of `low` on
    int64_t stack_prefixes;  // entries of `prefix_places`
    const StackPrefix* prefix_places;
    int64_t store;         // which of several stores the stream is of; 0 where there is one
    int64_t store_stream;  // its number there
    int64_t room;          // how many more entries `starts` has room for

    // Note that an episode starts with the next row, if there is room for that; return whether. Those before the oldest step are left out.
    bool start_episode(int64_t position) {
        if (room == 0) return false;
        starts[episodes] = position;
        room--;
        if (position <= floor) {
            starts += episodes;
            episodes = 0;
        }
        episodes++;
        return true;
    }
};
static_assert(sizeof(Stream) == 13 * sizeof(int64_t) && offsetof(Stream, room) == 12 * sizeof(int64_t));
static_assert(sizeof(StackPrefix) == 2 * sizeof(int64_t));

struct Table {
    const Stream* streams;
    int64_t n;
};

}  // namespace diskbuffer
