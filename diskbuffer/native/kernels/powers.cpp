#include "powers.hpp"

#include <cstring>

namespace diskbuffer {
namespace {

uint64_t bits_of(double number) {
    uint64_t bits;
    std::memcpy(&bits, &number, sizeof bits);
    return bits;
}

double of_bits(uint64_t bits) {
    double number;
    std::memcpy(&number, &bits, sizeof number);
    return number;
}

// Evaluate a polynomial, its coefficients from the highest to the constant: even and odd powers apart, which takes half the time.
template <int n>
double polynomial(const double (&coefficients)[n], double x) {
    const double square = x * x;
    double first = coefficients[0], second = coefficients[1];
    int i = 2;
    for (; i + 1 < n; i += 2) {
        first = first * square + coefficients[i];
        second = second * square + coefficients[i + 1];
    }
    return i < n ? (first * square + coefficients[i]) + second * x : first * x + second;
}

// Return the base-2 logarithm of a number above 0, which is 2 ** k * m with m from sqrt(1/2) to sqrt(2):
// k + 2 / ln 2 * artanh((m - 1) / (m + 1)).
double log2_of(double number) {
    constexpr double SMALLEST_NORMAL = 0x1p-1022, TWO_OVER_LN2 = 0x1.71547652b82fep+1;
    int64_t k = 0;
    if (number < SMALLEST_NORMAL) number *= 0x1p54, k = -54;
    const uint64_t bits = bits_of(number);
    k += static_cast<int64_t>(bits >> 52) - 1023;
    double m = of_bits((bits & 0xfffffffffffff) | (uint64_t{1023} << 52));
    if (m > 0x1.6a09e667f3bcdp+0) m *= 0.5, k++;
    const double s = (m - 1.0) / (m + 1.0), z = s * s;  // z is below 0.03, so the first term that is left out is below 2 ** -60
    constexpr double TERMS[] = {1.0 / 21, 1.0 / 19, 1.0 / 17, 1.0 / 15, 1.0 / 13, 1.0 / 11, 1.0 / 9, 1.0 / 7, 1.0 / 5, 1.0 / 3, 1.0};
    return static_cast<double>(k) + TWO_OVER_LN2 * s * polynomial(TERMS, z);
}

// Return 2 to the power of a number: 2 ** n * exp(f * ln 2) with the nearest integer n. Below -1022 zero, above 1023 infinity.
double exp2_of(double number) {
    constexpr double LN2 = 0x1.62e42fefa39efp-1;
    if (!(number > -1022.0)) return 0.0;
    if (number >= 1023.5) return of_bits(uint64_t{2047} << 52);
    const auto n = static_cast<int64_t>(number + 2048.5) - 2048;  // rounds down, as what is cut off is above 0
    const double z = (number - static_cast<double>(n)) * LN2;
    constexpr double TERMS[] = {1 / 87178291200.0, 1 / 6227020800.0, 1 / 479001600.0, 1 / 39916800.0, 1 / 3628800.0,
                                1 / 362880.0,      1 / 40320.0,      1 / 5040.0,      1 / 720.0,      1 / 120.0,
                                1 / 24.0,          1 / 6.0,          1 / 2.0,         1.0,            1.0};  // Taylor's
    return polynomial(TERMS, z) * of_bits(static_cast<uint64_t>(n + 1023) << 52);
}

}  // namespace

void power(const double* numbers, int64_t n, double exponent, double* powers) noexcept {
    if (exponent == 0.0 || exponent == 1.0) {
        for (int64_t i = 0; i < n; i++) powers[i] = exponent == 0.0 ? 1.0 : numbers[i];
        return;
    }
    for (int64_t i = 0; i < n; i++) powers[i] = numbers[i] > 0.0 ? exp2_of(exponent * log2_of(numbers[i])) : 0.0;
}

}  // namespace diskbuffer
