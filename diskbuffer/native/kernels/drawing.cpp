#include "drawing.hpp"

#include <algorithm>

namespace diskbuffer {

int64_t draw_steps(Table table, Philox& random, int64_t n, Located located) noexcept {
    const int64_t steps = count_steps(table);
    if (steps > 0 && steps <= MOST_BELOW) {
        draw_integers(random, steps, located.lasts, n);  // `locate` reads each number before it fills in the step's last row
        locate(table, located.lasts, n, located);
    }
    return steps;
}

void draw_rows(const SumTree& weights, Table table, const Segment* segments, int64_t segment_rows, const double* random, int64_t n,
               Located located, double* ratios) noexcept {
    const double share = weights.total() / static_cast<double>(n), least = weights.least();
    for (int64_t i = 0; i < n; i++) ratios[i] = (static_cast<double>(i) + random[i]) * share;
    int64_t* rows = located.positions;
    weights.find(ratios, n, rows, ratios);
    for (int64_t i = 0; i < n; i++) {
        const int64_t slot = rows[i] / segment_rows;
        located.streams[i] = segments[slot].stream;
        located.positions[i] = segments[slot].position + rows[i] - slot * segment_rows;
        ratios[i] = least / ratios[i];
    }
    find_episodes(table, located.streams, located.positions, n, located.starts, located.lasts);
}

bool has_changed(Table table, const Seen* seen) noexcept {
    for (int64_t i = 0; i < table.n; i++) {
        const Stream& now = table.streams[i];
        if (now.head != seen[i].head || now.ended != seen[i].ended || now.low != seen[i].low || now.floor != seen[i].floor) return true;
    }
    return false;
}

void find_starts(const Stream& stream, int64_t position, int64_t length, int64_t period, bool* is_start, int64_t n) noexcept {
    int64_t episode = episode_at(stream, position);
    for (int64_t i = 0; i < n; i++, position++) {
        while (episode + 1 < stream.episodes && stream.starts[episode + 1] <= position) episode++;
        const bool ended = episode + 1 < stream.episodes || stream.ended != 0;
        const int64_t last = last_row(stream, episode), after = position + length;
        const bool on_grid = (position - stream.starts[episode]) % period == 0;
        is_start[i] = after <= last && (on_grid || (ended && after == last));
    }
}

int64_t find_weighted(const SumTree& weights, Table table, int64_t segment_rows, const int64_t* ids, int64_t n, int64_t* rows) noexcept {
    int64_t count = 0;
    for (int64_t i = 0; i < n; i++) {
        rows[i] = -1;
        if (ids[i] < 0) continue;
        const Stream& stream = table.streams[ids[i] % table.n];
        const int64_t position = ids[i] / table.n, segment = position / segment_rows;
        if (position < stream.floor || position >= stream.head) continue;
        const int64_t slot = slot_of(stream, segment, segment_rows), row = (slot - segment) * segment_rows + position;
        if (slot < 0 || !weights.is_above_zero(row)) continue;
        rows[i] = row;
        count++;
    }
    return count;
}

bool all_within(const double* numbers, int64_t n, double limit) noexcept {
    bool all = true;
    for (int64_t i = 0; i < n; i++) all &= numbers[i] >= 0.0 && numbers[i] < limit;
    return all;
}

double write_rows(float* const* segments, int64_t segment_rows, const int64_t* rows, const float* values, int64_t n,
                  double largest) noexcept {
    for (int64_t i = 0; i < n; i++) {
        segments[rows[i] / segment_rows][rows[i] % segment_rows] = values[i];
        largest = std::max<double>(largest, values[i]);
    }
    return largest;
}

}  // namespace diskbuffer
