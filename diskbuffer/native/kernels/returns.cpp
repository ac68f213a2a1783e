#include "returns.hpp"

namespace diskbuffer {

double advantages(const double* rewards, const double* values, const double* next_values, StepEnds ends, int64_t n, double gamma,
                  double gae_lambda, double carry, double* advantages) noexcept {
    for (int64_t i = n - 1; i >= 0; i--) {
        const double following = ends.terminated[i] ? 0.0 : next_values[i];
        const double error = rewards[i] + gamma * following - values[i];
        carry = error + (ends.ended[i] ? 0.0 : gamma * gae_lambda * carry);
        advantages[i] = carry;
    }
    return carry;
}

double returns_to_go(const double* rewards, const double* next_values, StepEnds ends, int64_t n, double gamma, double carry,
                     double* returns) noexcept {
    for (int64_t i = n - 1; i >= 0; i--) {
        const double following = ends.terminated[i] ? 0.0 : ends.ended[i] ? next_values[i] : carry;
        carry = rewards[i] + gamma * following;
        returns[i] = carry;
    }
    return carry;
}

}  // namespace diskbuffer
