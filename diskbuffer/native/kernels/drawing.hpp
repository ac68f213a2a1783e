// Drawing steps: random numbers, and the steps that they stand for.
#pragma once

#include <cstdint>

#include "lookup.hpp"
#include "random_numbers.hpp"
#include "sum_tree.hpp"

namespace diskbuffer {

// Draw steps of all that can be sampled, each as likely as any other, if there are any, and at most MOST_BELOW; return how many there are.
int64_t draw_steps(Index& index, Philox& random, int64_t n, Located located);

// Whose rows a segment of the store has: segment number s is the rows s * segment_rows and on.
struct Owner {
    int64_t stream;
    int64_t position;
};

// Draw rows of the store in proportion to weights, one from each of `n` equal shares of the total, which is above zero, and find their
// steps. `random` are numbers from 0 to 1; `ratios` become the smallest weight of all divided by that of each row.
void draw_rows(const SumTree& weights, Table table, const Owner* owners, int64_t segment_rows, const double* random, int64_t n,
               Located located, double* ratios) noexcept;

// Tell which of `n` rows from a position on are the first of `length` steps of one episode, that are a multiple of `period` steps after
// its first, or end with it.
void find_starts(const Stream& stream, int64_t position, int64_t length, int64_t period, bool* is_start, int64_t n) noexcept;

// Find the rows in the tree, which has `places` segments as `PriorityRows` has them, of steps by their ids; -1 where one is not there, or its
// weight is zero. Return how many are found.
int64_t find_weighted(const SumTree& weights, Table table, int64_t segment_rows, int64_t places, const int64_t* ids, int64_t n,
                      int64_t* rows) noexcept;

// Return whether all numbers are at least 0, and below a limit; NaN is not.
bool all_within(const double* numbers, int64_t n, double limit) noexcept;

// Write values of rows of the store, given where each segment lies; return the largest of them, or `largest` where it is larger.
double write_rows(float* const* segments, int64_t segment_rows, const int64_t* rows, const float* values, int64_t n,
                  double largest) noexcept;

}  // namespace diskbuffer
