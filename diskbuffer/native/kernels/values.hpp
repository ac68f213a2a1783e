// Values in memory, compared as numbers: 0.0 is -0.0, and NaN is NaN.
//
// `number_bytes` are those of a floating-point number, of which a complex one has two; 0 where values are others.
#pragma once

#include <cstdint>

namespace diskbuffer {

// Return whether `size` bytes hold the same values. Mostly they are the same bytes.
bool same_values(const uint8_t* a, const uint8_t* b, int64_t size, int64_t number_bytes) noexcept;

// Return whether `size` bytes hold zeros only; -0.0 is one.
bool all_zero(const uint8_t* values, int64_t size, int64_t number_bytes) noexcept;

// Return whether a number among `size` bytes is NaN or infinite.
bool has_nonfinite(const uint8_t* values, int64_t size, int64_t number_bytes) noexcept;

// Return whether `size` bytes are 0 or 1 each, as truth values that are stored must be.
bool are_bools(const uint8_t* values, int64_t size) noexcept;

// Round numbers to the nearest float32, wherever they begin; return whether all fit: NaN and infinity do, what becomes infinity does not.
bool round_to_float32(const uint8_t* doubles, int64_t n, float* rounded) noexcept;

}  // namespace diskbuffer
