#include "plan.hpp"

#include <algorithm>
#include <memory>

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
        runs[n++] = {place.file, place.lane, place.row, count, i, position - first, pad, stream.store_stream, position, stream.store, 0};
        position += count;
    }
    return n;
}

// A run, by its number, and by where it lies.
struct Placed {
    int64_t order, number;

    bool operator<(const Placed& other) const { return order != other.order ? order < other.order : number < other.number; }
};

constexpr size_t FEW = 64;  // runs, which are compared faster than counted

// Sort by order, and by number where that is the same. Many are counted by each byte of their order, the least significant first, where a
// sort that compares would guess every second branch wrong.
void sort(std::vector<Placed>& runs) {
    if (runs.size() < FEW) return std::sort(runs.begin(), runs.end());
    int64_t largest = 0;
    for (const Placed& run : runs) largest = std::max(largest, run.order);
    std::vector<Placed> sorted(runs.size());
    for (int shift = 0; shift < 63 && largest >> shift > 0; shift += 8) {
        int64_t places[257] = {};
        for (const Placed& run : runs) places[(run.order >> shift & 255) + 1]++;
        for (int byte = 0; byte < 255; byte++) places[byte + 1] += places[byte];
        for (const Placed& run : runs) sorted[places[run.order >> shift & 255]++] = run;
        runs.swap(sorted);
    }
}

}  // namespace

bool find_runs(Table table, const Windows& windows, const Layout& layout, int64_t first_stream, std::vector<Run>& runs) {
    const std::unique_ptr<Run[]> found(new Run[windows.n * (windows.rows / layout.segment_rows + 2)]);  // room for all, and not filled
    int64_t n = 0;
    for (int64_t i = 0; i < windows.n; i++) {
        const int64_t number = windows.streams[i] - first_stream;
        if (number < 0 || number >= table.n) continue;
        const Stream& stream = table.streams[number];
        if (windows.positions[i] < stream.low || windows.positions[i] > stream.head) return false;
        n = plan_window(stream, windows, i, layout, found.get(), n);
        if (n < 0) return false;
    }
    std::vector<Placed> placed(n);
    for (int64_t r = 0; r < n; r++) placed[r] = {layout.order_of(found[r]), r};
    sort(placed);
    runs.resize(n);
    for (int64_t r = 0; r < n; r++) runs[r] = found[placed[r].number];
    return true;
}

bool find_sources(const MappedFiles& mapped, std::vector<Run>& runs, std::vector<Source>& sources) {
    sources.clear();
    int64_t files = 0, last = -1;
    for (Run& run : runs) {
        if (run.file != last) {
            for (int64_t c = 0; c < mapped.columns; c++) sources.push_back(mapped.source(c, run.file));
            last = run.file, files++;
        }
        run.sources = files - 1;
    }
    return std::all_of(sources.begin(), sources.end(), [](const Source& source) { return source.address != 0; });
}

}  // namespace diskbuffer
