#include "values.hpp"

#include <cmath>
#include <cstring>

#include "memory.hpp"

namespace diskbuffer {

namespace {

// The bits of a floating-point number: infinity, below which are all numbers and above which is NaN, and all but the sign.
template <typename Bits>
struct Float;

template <>
struct Float<uint16_t> {
    static constexpr uint16_t infinity = 0x7C00, magnitude = 0x7FFF;
};

template <>
struct Float<uint32_t> {
    static constexpr uint32_t infinity = 0x7F800000, magnitude = 0x7FFFFFFF;
};

template <>
struct Float<uint64_t> {
    static constexpr uint64_t infinity = 0x7FF0000000000000, magnitude = 0x7FFFFFFFFFFFFFFF;
};

// Call a function of the bits of numbers of a size, with 0 in place of these.
template <typename Function>
bool with_bits(int64_t number_bytes, Function function) {
    switch (number_bytes) {
        case 2: return function(uint16_t{});
        case 4: return function(uint32_t{});
        default: return function(uint64_t{});
    }
}

}  // namespace

bool same_values(const uint8_t* a, const uint8_t* b, int64_t size, int64_t number_bytes) noexcept {
    if (std::memcmp(a, b, size) == 0) return true;
    if (number_bytes == 0) return false;
    return with_bits(number_bytes, [=](auto zero) {
        using Bits = decltype(zero);
        for (int64_t k = 0; k < size; k += sizeof(Bits)) {
            const Bits left = load<Bits>(a + k), right = load<Bits>(b + k);
            const Bits x = left & Float<Bits>::magnitude, y = right & Float<Bits>::magnitude;
            const bool both_nan = x > Float<Bits>::infinity && y > Float<Bits>::infinity;
            if (left != right && (x | y) != 0 && !both_nan) return false;
        }
        return true;
    });
}

bool all_zero(const uint8_t* values, int64_t size, int64_t number_bytes) noexcept {
    if (number_bytes == 0) {
        for (int64_t k = 0; k < size; k++)
            if (values[k]) return false;
        return true;
    }
    return with_bits(number_bytes, [=](auto zero) {
        using Bits = decltype(zero);
        for (int64_t k = 0; k < size; k += sizeof(Bits))
            if (load<Bits>(values + k) & Float<Bits>::magnitude) return false;
        return true;
    });
}

bool has_nonfinite(const uint8_t* values, int64_t size, int64_t number_bytes) noexcept {
    return with_bits(number_bytes, [=](auto zero) {
        using Bits = decltype(zero);
        bool any = false;
        for (int64_t k = 0; k < size; k += sizeof(Bits))
            any |= (load<Bits>(values + k) & Float<Bits>::magnitude) >= Float<Bits>::infinity;
        return any;
    });
}

bool are_bools(const uint8_t* values, int64_t size) noexcept {
    uint8_t any = 0;
    for (int64_t k = 0; k < size; k++) any |= values[k];
    return any <= 1;
}

bool round_to_float32(const uint8_t* doubles, int64_t n, float* rounded) noexcept {
    bool fits = true;
    for (int64_t i = 0; i < n; i++) {
        const double number = load<double>(doubles + 8 * i);
        rounded[i] = static_cast<float>(number);
        fits &= !std::isinf(rounded[i]) || std::isinf(number);
    }
    return fits;
}

}  // namespace diskbuffer
