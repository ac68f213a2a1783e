#include "plan.hpp"

#include <algorithm>

namespace diskbuffer {

namespace {

// Append the runs of one window: the part of it that is in the episode, and in the store.
void plan_window(const Stream& stream, const Windows& windows, int64_t i, const MappedFiles& mapped, std::vector<Run>& runs) {
    const int64_t wanted = windows.positions[i] - windows.before;
    int64_t start = windows.starts[i];
    if (wanted < start && stream.lead_ins != 0) start = lead_in(stream, start);
    int64_t position = std::max({wanted, start, stream.low});
    const int64_t end = std::min({wanted + windows.rows, windows.lasts[i] + 1, stream.head + 1});
    for (int64_t pad = position - wanted; position < end; pad = 0) {
        const Place place = mapped.place_of(stream, position);
        const int64_t count = std::min(end - position, place.rows);
        runs.push_back({place.file, place.lane, place.row, count, i, position - wanted, pad, stream.own, position, stream.store});
        position += count;
    }
}

// Append the runs of windows; return false where a step was evicted.
bool find_runs(Table table, const Windows& windows, const MappedFiles& mapped, int64_t first_stream, std::vector<Run>& runs) {
    runs.reserve(runs.size() + windows.n + windows.n / 4);
    for (int64_t i = 0; i < windows.n; i++) {
        const int64_t number = windows.streams[i] - first_stream;
        if (number < 0 || number >= table.n) continue;
        const Stream& stream = table.streams[number];
        if (windows.positions[i] < stream.low) return false;
        plan_window(stream, windows, i, mapped, runs);
    }
    return true;
}

// Sort runs by where they lie in files; equal ones keep their order.
void sort_runs(const Run* runs, int64_t n, const MappedFiles& mapped, int64_t* keys, Run* sorted) {
    for (int64_t r = 0; r < n; r++) keys[r] = mapped.order_of(runs[r]) * n + r;
    std::sort(keys, keys + n);
    for (int64_t r = 0; r < n; r++) sorted[r] = runs[keys[r] % n];
}

}  // namespace

bool plan_windows(Table table, const MappedFiles& mapped, const Windows& windows, int64_t first_stream, PlanMemory& memory, Batch& batch) {
    batch.n_runs = -1;
    if (!find_runs(table, windows, mapped, first_stream, memory.unsorted)) return false;
    batch.n_runs = memory.unsorted.size(), batch.columns = mapped.columns;
    memory.runs.resize(batch.n_runs), memory.keys.resize(batch.n_runs), memory.sources.resize(batch.n_runs * batch.columns);
    batch.runs = memory.runs.data(), batch.sources = memory.sources.data();
    sort_runs(memory.unsorted.data(), batch.n_runs, mapped, memory.keys.data(), memory.runs.data());
    return find_sources(mapped, batch.runs, batch.n_runs, memory.sources.data());
}

bool find_sources(const MappedFiles& mapped, const Run* runs, int64_t n, Source* sources) noexcept {
    bool all = true;
    for (int64_t r = 0; r < n; r++)
        for (int64_t c = 0; c < mapped.columns; c++) {
            const Source source = mapped.source(runs[r], c);
            all &= source.address != 0;
            *sources++ = source;
        }
    return all;
}

}  // namespace diskbuffer
