// Looking steps, episodes and rows up in the table of streams.
#pragma once

#include <algorithm>
#include <cstdint>

#include "index.hpp"
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

// Return the last row of an episode, given by its place in `starts`.
inline int64_t last_row(const Stream& stream, int64_t episode) {
    return episode + 1 < stream.episodes ? stream.starts[episode + 1] - 1 : stream.head;
}

// Return the place in `segment_list` of the last segment that begins at a position that is kept, or before.
//
// No segment has more than `segment_rows`, so it is not before the place where it were if all before it were full.
inline int64_t segment_at(const Stream& stream, int64_t position, int64_t segment_rows) {
    int64_t at = (position - stream.low) / segment_rows, reach = 1;
    while (at + reach < stream.segments && stream.segment_list[at + reach].first <= position) {
        at += reach;
        reach *= 2;
    }
    while (reach > 1) {
        reach /= 2;
        if (at + reach < stream.segments && stream.segment_list[at + reach].first <= position) at += reach;
    }
    return at;
}

// Return a position's row in the store, `number * segment_rows + offset`.
inline int64_t row_of(const Stream& stream, int64_t position, int64_t segment_rows) {
    const Segment& segment = stream.segment_list[segment_at(stream, position, segment_rows)];
    return segment.number * segment_rows + position - segment.first;
}

// Return the number of steps that a stream ever had before a position.
int64_t steps_before(const Stream& stream, int64_t position) noexcept;

// Return the number of steps that were ever added to a stream.
inline int64_t steps_added(const Stream& stream) { return stream.head < 0 ? 0 : steps_before(stream, stream.head); }

// Return the place in `starts` of the episode that a position lies in; the first for what lies before all.
int64_t episode_at(const Stream& stream, int64_t position) noexcept;

// Return where the lead-in of an episode begins that starts at a row; that row itself where it has none.
int64_t lead_in(const Stream& stream, int64_t start) noexcept;

// Find steps by their place among all that can be sampled, stream after stream; each is less than the total of `index.steps()`.
void locate(Index& index, const int64_t* ordinals, int64_t n, Located located);

// Find steps by their place among those of their stream that can be sampled, of which there are so many. `places` may be `located.lasts`.
void locate_in(Table table, const int64_t* streams, const int64_t* places, int64_t n, Located located) noexcept;

// Find steps by how many steps of their stream came after them; return which is the first that does not exist, or -1.
int64_t locate_recent(Table table, const int64_t* streams, const int64_t* ages, int64_t n, Located located) noexcept;

// Find episodes by their place among all, stream after stream; `positions` are of their first rows that can be sampled.
void locate_episodes(Index& index, const int64_t* ordinals, int64_t n, Located located);

// Find the first and last rows of the episodes of steps; -1 where a step cannot be sampled, as it was evicted or never existed.
void find_episodes(Table table, const int64_t* streams, const int64_t* positions, int64_t n, int64_t* starts, int64_t* lasts) noexcept;

// Find the first and last rows, (n, length), of the episodes of `length` rows from each position on; the last row of one that
// runs is -1.
void episodes_along(Table table, const int64_t* streams, const int64_t* positions, int64_t n, int64_t length, int64_t* firsts,
                    int64_t* lasts) noexcept;

// Find rows in the store, as `row_of` does, of positions that exist.
void find_rows(Table table, const int64_t* streams, const int64_t* positions, int64_t n, int64_t segment_rows, int64_t* rows) noexcept;

}  // namespace diskbuffer
