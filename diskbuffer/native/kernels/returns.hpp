// Returns and advantages, backwards over the steps of one stream; `carry` is what the block after this one returned, 0.0 at first.
#pragma once

#include <cstdint>

namespace diskbuffer {

// How steps end: whether nothing comes after one, and whether its episode is not known to continue.
struct StepEnds {
    const uint8_t* terminated;
    const uint8_t* ended;
};

// Estimate the advantages of steps (Schulman et al., 2016).
double advantages(const double* rewards, const double* values, const double* next_values, StepEnds ends, int64_t n, double gamma,
                  double gae_lambda, double carry, double* advantages) noexcept;

// Sum up the discounted rewards to come; after an end that did not terminate comes its next value.
double returns_to_go(const double* rewards, const double* next_values, StepEnds ends, int64_t n, double gamma, double carry,
                     double* returns) noexcept;

}  // namespace diskbuffer
