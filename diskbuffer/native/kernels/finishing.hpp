// What follows from the rows of a batch once these are there: sums of rewards, flags of last steps, zeros where there are no steps.
//
// Each is done for all samples at once, by the thread that has gathered the last part of the batch. The sums are made one after the other,
// in double precision, and rounded once, so that they are the same on every processor.
#pragma once

#include <cstdint>

namespace diskbuffer {

// What is to be done. `begin` and `end` tell of each sample which of its rows are steps: from `begin` on, before `end`, at most all.
enum class Finish : int64_t {
    SUM,       // of the numbers of all steps, each by the factor of its row
    FIRST,     // the first row
    LAST,      // the last step's
    DISCOUNT,  // the factor of the row after the last step; 0 where the flag in `source` is set, of which there is one a sample
    MASK,      // whether each row is a step
    ZEROS,     // zeros where there is no step; `extra` rows after the last one are left as they are
    EDGE,      // the first step's row before it, and the last one's after it; there is one
    UNSET,     // false where a flag in `source` is set, of which there is one for each of `out`
};

// How numbers are stored; the second of a complex one is its imaginary part.
enum class Number : int64_t { INT8, INT16, INT32, INT64, UINT8, UINT16, UINT32, UINT64, FLOAT16, FLOAT32, FLOAT64 };

struct Finishing {
    Finish what;
    const uint8_t* source;  // (samples, rows, row_bytes)
    uint8_t* out;
    int64_t samples, rows, row_bytes;
    Number number, rounded;  // of `source` and of `out`, where they are sums
    int64_t extra;
    const int64_t* begin;
    const int64_t* end;
    const double* factors;  // of each row, and of the one after the last
};
static_assert(sizeof(Finishing) == 12 * 8);

void finish(const Finishing& finishing) noexcept;

}  // namespace diskbuffer
