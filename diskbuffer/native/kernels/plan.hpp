// The plan of a batch: which runs of rows go to which place of it.
#pragma once

#include <cstdint>

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

// Find the runs of windows; return how many there are, or -1 where a step was evicted. `runs` has room for all: of a window these are
// `rows / segment_rows + 2` at most.
//
// `first_stream` is the number of the table's first stream among those of the windows; steps of other streams are left out.
int64_t find_runs(Table table, const Windows& windows, const Layout& layout, int64_t first_stream, Run* runs) noexcept;

// Sort `n` runs by where they lie in files; equal ones keep their order. `keys` has room for `n`.
void sort_runs(const Run* runs, int64_t n, const Layout& layout, int64_t* keys, Run* sorted) noexcept;

// Look up where the files of runs are mapped; return whether all of them are.
bool find_sources(const MappedFiles& mapped, const Run* runs, int64_t n, Source* sources) noexcept;

}  // namespace diskbuffer
