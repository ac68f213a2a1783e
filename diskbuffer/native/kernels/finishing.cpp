#include "finishing.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "memory.hpp"

namespace diskbuffer {

namespace {

// Return a float16 as a double.
double from_half(uint16_t half) {
    const int exponent = half >> 10 & 31, mantissa = half & 1023;
    double value = exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(mantissa + 1024, exponent - 25);
    if (exponent == 31) value = mantissa == 0 ? HUGE_VAL : NAN;
    return half >> 15 ? -value : value;
}

// Round a double to the nearest float16, to an even one where two are as near.
uint16_t to_half(double value) {
    const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
    const double size = std::fabs(value);
    if (std::isnan(value)) return sign | 0x7E00;
    if (size == 0) return sign;
    if (size >= 65520) return sign | 0x7C00;
    int exponent;
    std::frexp(size, &exponent);
    const int unit = std::max(exponent - 11, -24);  // of the last digit
    const double digits = std::nearbyint(std::ldexp(size, -unit));
    // The digits of a normal one are 1024 to 2047, and carry into its exponent where they round up to 2048.
    return sign | static_cast<uint16_t>(digits + (unit + 24) * 1024.0);
}

double read(Number number, const uint8_t* at, int64_t k) {
    switch (number) {
        case Number::INT8: return load<int8_t>(at + k);
        case Number::INT16: return load<int16_t>(at + 2 * k);
        case Number::INT32: return load<int32_t>(at + 4 * k);
        case Number::INT64: return static_cast<double>(load<int64_t>(at + 8 * k));
        case Number::UINT8: return load<uint8_t>(at + k);
        case Number::UINT16: return load<uint16_t>(at + 2 * k);
        case Number::UINT32: return load<uint32_t>(at + 4 * k);
        case Number::UINT64: return static_cast<double>(load<uint64_t>(at + 8 * k));
        case Number::FLOAT16: return from_half(load<uint16_t>(at + 2 * k));
        case Number::FLOAT32: return load<float>(at + 4 * k);
        default: return load<double>(at + 8 * k);
    }
}

void write(Number number, uint8_t* at, int64_t k, double value) {
    if (number == Number::FLOAT64)
        store(at + 8 * k, value);
    else if (number == Number::FLOAT32)
        store(at + 4 * k, static_cast<float>(value));
    else
        store(at + 2 * k, to_half(value));
}

int64_t bytes_of(Number number) {
    constexpr int64_t BYTES[] = {1, 2, 4, 8, 1, 2, 4, 8, 2, 4, 8};
    return BYTES[static_cast<int64_t>(number)];
}

void sum(const Finishing& f) {
    const int64_t numbers = f.row_bytes / bytes_of(f.number), out_bytes = numbers * bytes_of(f.rounded);
    for (int64_t i = 0; i < f.samples; i++) {
        const uint8_t* rows = f.source + i * f.rows * f.row_bytes;
        for (int64_t k = 0; k < numbers; k++) {
            double total = 0;
            for (int64_t row = 0; row < std::min(f.end[i], f.rows); row++)
                total += read(f.number, rows + row * f.row_bytes, k) * f.factors[row];
            write(f.rounded, f.out + i * out_bytes, k, total);
        }
    }
}

// Copy a row of each sample: the first, or that of the last step.
void take(const Finishing& f) {
    for (int64_t i = 0; i < f.samples; i++) {
        const int64_t row = f.what == Finish::FIRST ? 0 : std::min(f.end[i], f.rows) - 1;
        copy_bytes(f.out + i * f.row_bytes, f.source + (i * f.rows + row) * f.row_bytes, f.row_bytes);
    }
}

void discount(const Finishing& f) {
    for (int64_t i = 0; i < f.samples; i++)
        write(f.rounded, f.out, i, f.source[i] != 0 ? 0.0 : f.factors[std::min(f.end[i], f.rows)]);
}

void mask(const Finishing& f) {
    for (int64_t i = 0; i < f.samples; i++)
        for (int64_t row = 0; row < f.rows; row++) f.out[i * f.rows + row] = row >= f.begin[i] && row < f.end[i];
}

void clear(const Finishing& f) {
    for (int64_t i = 0; i < f.samples; i++) {
        uint8_t* rows = f.out + i * f.rows * f.row_bytes;
        const int64_t begin = std::clamp<int64_t>(f.begin[i], 0, f.rows), end = std::clamp<int64_t>(f.end[i] + f.extra, begin, f.rows);
        std::memset(rows, 0, begin * f.row_bytes);
        std::memset(rows + end * f.row_bytes, 0, (f.rows - end) * f.row_bytes);
    }
}

void repeat_edges(const Finishing& f) {
    for (int64_t i = 0; i < f.samples; i++) {
        uint8_t* rows = f.out + i * f.rows * f.row_bytes;
        const int64_t begin = std::clamp<int64_t>(f.begin[i], 0, f.rows - 1), end = std::clamp<int64_t>(f.end[i], begin + 1, f.rows);
        for (int64_t row = 0; row < begin; row++) copy_bytes(rows + row * f.row_bytes, rows + begin * f.row_bytes, f.row_bytes);
        for (int64_t row = end; row < f.rows; row++) copy_bytes(rows + row * f.row_bytes, rows + (end - 1) * f.row_bytes, f.row_bytes);
    }
}

void unset(const Finishing& f) {
    for (int64_t k = 0; k < f.samples * f.rows; k++) f.out[k] = f.out[k] != 0 && f.source[k] == 0;
}

}  // namespace

void finish(const Finishing& finishing) noexcept {
    switch (finishing.what) {
        case Finish::SUM: return sum(finishing);
        case Finish::FIRST:
        case Finish::LAST: return take(finishing);
        case Finish::DISCOUNT: return discount(finishing);
        case Finish::MASK: return mask(finishing);
        case Finish::ZEROS: return clear(finishing);
        case Finish::EDGE: return repeat_edges(finishing);
        case Finish::UNSET: return unset(finishing);
    }
}

}  // namespace diskbuffer
