// Random numbers: the same as numpy's generator Philox draws.
#pragma once

#include <cstdint>

namespace diskbuffer {

// Philox4x64-10 (Salmon et al., 2011, "Parallel random numbers: as easy as 1, 2, 3"): a function of a key and a counter, four numbers of
// 64 bits a time.
class Philox {
   public:
    Philox() = default;

    // Start at the counter (0, 0, third, fourth).
    Philox(uint64_t key0, uint64_t key1, uint64_t third, uint64_t fourth) : key_{key0, key1}, counter_{0, 0, third, fourth} {}

    uint64_t next_uint64() {
        if (position_ == 4) {
            next_block();
            position_ = 0;
        }
        return block_[position_++];
    }

    // The lower half of a number of 64 bits comes first.
    uint32_t next_uint32() {
        if (has_upper_) {
            has_upper_ = false;
            return upper_;
        }
        const uint64_t both = next_uint64();
        has_upper_ = true;
        upper_ = static_cast<uint32_t>(both >> 32);
        return static_cast<uint32_t>(both);
    }

    double next_double() { return static_cast<double>(next_uint64() >> 11) * 0x1p-53; }

   private:
    void next_block() noexcept;

    uint64_t key_[2] = {};
    uint64_t counter_[4] = {};
    uint64_t block_[4] = {};
    int position_ = 4;
    bool has_upper_ = false;
    uint32_t upper_ = 0;
};

constexpr int64_t MOST_BELOW = int64_t{1} << 32;  // numpy draws numbers from larger ranges by other rules

// Draw `n` numbers from 0 to `below` - 1, at most MOST_BELOW, as numpy does: by multiplying, without a division (Lemire, 2019, "Fast
// random integer generation in an interval").
void draw_integers(Philox& random, int64_t below, int64_t* numbers, int64_t n) noexcept;

}  // namespace diskbuffer
