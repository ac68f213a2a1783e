// Looking steps, episodes and rows up in the table of streams.
#pragma once

#include <algorithm>
#include <cstdint>

#include "table.hpp"

namespace diskbuffer {

// Where steps lie, one entry of each array a step: its stream, its position, and the first and the last row of its episode.
// Of an episode that runs, the newest row is the last.
struct Located {
    int64_t* streams;
    int64_t* positions;
    int64_t* starts;
    int64_t* lasts;
};

// Return the number of steps of a stream that can be sampled.
inline int64_t steps_of(const Stream& stream) {
    return std::max<int64_t>(stream.head - stream.floor - std::max<int64_t>(stream.episodes - 1, 0), 0);
}

// Return the number of steps of all streams that can be sampled.
inline int64_t count_steps(Table table) {
    int64_t steps = 0;
    for (int64_t stream = 0; stream < table.n; stream++) steps += steps_of(table.streams[stream]);
    return steps;
}

// Return the last row of an episode, given by its place in `starts`.
inline int64_t last_row(const Stream& stream, int64_t episode) {
    return episode + 1 < stream.episodes ? stream.starts[episode + 1] - 1 : stream.head;
}

// Return the slot of a segment, given by its number in the stream: its position divided by the rows of a segment. -1 where it is not kept.
inline int64_t slot_of(const Stream& stream, int64_t segment, int64_t segment_rows) {
    const int64_t place = segment - stream.low / segment_rows;
    return place >= 0 && place < stream.segments ? stream.slots[place] : -1;
}

// Return the place in `starts` of the episode that a position lies in; the first for what lies before all.
int64_t episode_at(const Stream& stream, int64_t position) noexcept;

// Return where the stack prefix of an episode begins that starts at a row; that row itself where it has none.
int64_t stack_prefix(const Stream& stream, int64_t start) noexcept;

// Find steps by their place among all that can be sampled, stream after stream; each is less than `count_steps`.
void locate(Table table, const int64_t* ordinals, int64_t n, Located located) noexcept;

// Find steps by how many steps of their stream came after them; return which is the first that does not exist, or -1.
int64_t locate_recent(Table table, const int64_t* streams, const int64_t* ages, int64_t n, Located located) noexcept;

// Find episodes by their place among all, stream after stream; `positions` are of their first rows that can be sampled.
void locate_episodes(Table table, const int64_t* ordinals, int64_t n, Located located) noexcept;

// Find the first and last rows of the episodes of steps; -1 where a step cannot be sampled, as it was evicted or never existed.
void find_episodes(Table table, const int64_t* streams, const int64_t* positions, int64_t n, int64_t* starts, int64_t* lasts) noexcept;

// Find the first and last rows, (n, length), of the episodes of `length` rows from each position on; the last row of one that
// runs is -1.
void episodes_along(Table table, const int64_t* streams, const int64_t* positions, int64_t n, int64_t length, int64_t* firsts,
                    int64_t* lasts) noexcept;

// Find rows in the store, `slot * segment_rows + offset`; -1 for what is not kept.
void find_rows(Table table, const int64_t* streams, const int64_t* positions, int64_t n, int64_t segment_rows, int64_t* rows) noexcept;

}  // namespace diskbuffer
