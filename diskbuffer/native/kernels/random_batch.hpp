// Batches of steps drawn at random: drawn, planned and gathered at once.
#pragma once

#include <cstdint>

#include "helper_threads.hpp"
#include "index.hpp"
#include "plan.hpp"
#include "random_numbers.hpp"

namespace diskbuffer {

// A batch of `n` steps, and of `rows` rows around each, of which the step is number `before`.
struct RandomBatch {
    MappedFiles mapped;
    int64_t n, before, rows;
};

// Draw the steps, and gather them into targets, beside helpers; `ids` become their numbers in the store. Return whether all could be read;
// otherwise a plan tells why not.
bool gather_random(Index& index, Philox& random, const RandomBatch& batch, SharedBatch& shared, Board* const* boards, int64_t n_boards,
                   Scratch scratch, int64_t* ids);

}  // namespace diskbuffer
