#include "plan.hpp"

#include <algorithm>

namespace diskbuffer {

namespace {

// Append the runs of one window to `n` others: the part of it that is in the episode, and in the store. Return how many there are then; -1 if
// the table does not have a segment of it.
int64_t plan_window(const Stream& stream, const Windows& windows, int64_t i, const Layout& layout, Run* runs, int64_t n) {
    const int64_t first = windows.positions[i] - windows.before;
    int64_t start = windows.starts[i];
    if (first < start && stream.stack_prefixes != 0) start = stack_prefix(stream, start);
    int64_t position = std::max({first, start, stream.low});
    const int64_t end = std::min({first + windows.rows, windows.lasts[i] + 1, stream.head + 1});
    for (int64_t pad = position - first; position < end; pad = 0) {
        const Place place = layout.place_of(stream, position);
        if (place.file < 0) return -1;
        const int64_t count = std::min(end - position, layout.segment_rows - place.row);
        runs[n++] = {place.file, place.lane, place.row, count, i, position - first, pad, stream.store_stream, position, stream.store};
        position += count;
    }
    return n;
}

}  // namespace

int64_t find_runs(Table table, const Windows& windows, const Layout& layout, int64_t first_stream, Run* runs) noexcept {
    int64_t n = 0;
    for (int64_t i = 0; i < windows.n; i++) {
        const int64_t number = windows.streams[i] - first_stream;
        if (number < 0 || number >= table.n) continue;
        const Stream& stream = table.streams[number];
        if (windows.positions[i] < stream.low || windows.positions[i] > stream.head) return -1;
        n = plan_window(stream, windows, i, layout, runs, n);
        if (n < 0) return -1;
    }
    return n;
}

void sort_runs(const Run* runs, int64_t n, const Layout& layout, int64_t* keys, Run* sorted) noexcept {
    for (int64_t r = 0; r < n; r++) keys[r] = layout.order_of(runs[r]) * n + r;
    std::sort(keys, keys + n);
    for (int64_t r = 0; r < n; r++) sorted[r] = runs[keys[r] % n];
}

bool find_sources(const MappedFiles& mapped, const Run* runs, int64_t n, Source* sources) noexcept {
    bool all = true;
    for (int64_t r = 0; r < n; r++)
        for (int64_t c = 0; c < mapped.columns; c++) {
            const Source source = mapped.source(c, runs[r].file);
            all &= source.address != 0;
            *sources++ = source;
        }
    return all;
}

}  // namespace diskbuffer
