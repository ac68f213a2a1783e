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

// Find the runs of windows, sorted by where they lie in files; of a place, in the order of the windows. Return whether all steps are there.
//
// `first_stream` is the number of the table's first stream among those of the windows; steps of other streams are left out.
bool find_runs(Table table, const Windows& windows, const Layout& layout, int64_t first_stream, std::vector<Run>& runs);

// Look up where the files of sorted runs are mapped, (files, columns), each once; return whether all of them are.
bool find_sources(const MappedFiles& mapped, std::vector<Run>& runs, std::vector<Source>& sources);

}  // namespace diskbuffer
