#include "permutation.hpp"

#include "mix.hpp"

namespace diskbuffer {

void permute(uint64_t first, uint64_t n, int half_bits, const uint64_t* keys, int64_t rounds, int64_t* numbers, int64_t count) noexcept {
    const uint64_t mask = (uint64_t{1} << half_bits) - 1;
    for (int64_t i = 0; i < count; i++) {
        uint64_t number = first + static_cast<uint64_t>(i);
        do {
            uint64_t left = number >> half_bits, right = number & mask;
            for (int64_t round = 0; round < rounds; round++) {
                const uint64_t before = right;
                right = left ^ (mix(right + keys[round]) & mask);
                left = before;
            }
            number = left << half_bits | right;
        } while (number >= n);
        numbers[i] = static_cast<int64_t>(number);
    }
}

}  // namespace diskbuffer
