// Powers that are the same bits on every processor: only operations that IEEE 754 rounds in one way, in a fixed order. libm's `pow`, and
// numpy's, choose among variants that round otherwise by the instructions that the processor has.
#pragma once

#include <cstdint>

namespace diskbuffer {

// Compute the powers of numbers, each at least 0 and finite, to an exponent from 0 to 16. 0 to the power 0 is 1. For exponents up to 1
// the relative error is below 2**-42, and below 2**-38 for others: less than a thousandth of what rounding to float32 adds.
void power(const double* numbers, int64_t n, double exponent, double* powers) noexcept;

}  // namespace diskbuffer
