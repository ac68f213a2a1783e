// The plan of a batch: which runs of rows go to which place of it.
#pragma once

#include <cstdint>
#include <vector>

#include "runs.hpp"
#include "table.hpp"

namespace diskbuffer {

// Steps that were drawn, and the first and last rows of their episodes. Of each, `rows` rows are wanted, of which it is number `before`.
struct Windows {
    const int64_t* streams;
    const int64_t* positions;
    const int64_t* starts;
    const int64_t* lasts;
    int64_t n;
    int64_t before, rows;
};

// Memory of a plan of windows.
struct PlanMemory {
    std::vector<Run> unsorted, runs;
    std::vector<int64_t> keys;
    std::vector<Source> sources;
};

// Plan windows: have a batch be of their runs, sorted by where they lie in files, and of the sources of these. Return whether all are
// mapped; where a step was evicted, there are no runs, and `n_runs` is -1.
//
// `first_stream` is the number of the table's first stream among those of the windows; steps of other streams are left out.
bool plan_windows(Table table, const MappedFiles& mapped, const Windows& windows, int64_t first_stream, PlanMemory& memory, Batch& batch);

// Look up where the files of runs are mapped; return whether all of them are.
bool find_sources(const MappedFiles& mapped, const Run* runs, int64_t n, Source* sources) noexcept;

}  // namespace diskbuffer
