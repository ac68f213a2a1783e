// Single steps of flat columns: found and copied at once, where a plan, a gather and pooled memory would cost more.
#pragma once

#include <cstdint>

#include "runs.hpp"
#include "table.hpp"

namespace diskbuffer {

// An array of a batch, which is one column of each step, or of the row after it.
struct StepColumn {
    int64_t column, row_bytes, flag;  // as of a Target
    int64_t after;                    // 1 for observations after the step
};
static_assert(sizeof(StepColumn) == 4 * 8);

// Copy steps that exist to the arrays of `n_columns` columns; return false where a file is not mapped that they lie in. `ids` are the numbers
// of the steps in the store, position * streams + stream.
bool copy_steps(Table table, const MappedFiles& mapped, const StepColumn* columns, int64_t n_columns, uint8_t* const* arrays,
                const int64_t* streams, const int64_t* positions, int64_t n, int64_t* ids) noexcept;

}  // namespace diskbuffer
