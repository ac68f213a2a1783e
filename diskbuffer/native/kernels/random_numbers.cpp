#include "random_numbers.hpp"

#include <algorithm>

namespace diskbuffer {
namespace {

using uint128 = unsigned __int128;

constexpr int ROUNDS = 10;
constexpr uint64_t M0 = 0xD2E7470EE14C6C93, M1 = 0xCA5A826395121157, W0 = 0x9E3779B97F4A7C15, W1 = 0xBB67AE8584CAA73B;

uint64_t upper_half(uint128 product) { return static_cast<uint64_t>(product >> 64); }

}  // namespace

void Philox::next_block() noexcept {
    for (uint64_t& word : counter_)
        if (++word != 0) break;
    uint64_t a = counter_[0], b = counter_[1], c = counter_[2], d = counter_[3];
    uint64_t k0 = key_[0], k1 = key_[1];
    for (int round = 0; round < ROUNDS; round++, k0 += W0, k1 += W1) {
        const uint128 first = static_cast<uint128>(M0) * a, second = static_cast<uint128>(M1) * c;
        a = upper_half(second) ^ b ^ k0;
        b = static_cast<uint64_t>(second);
        c = upper_half(first) ^ d ^ k1;
        d = static_cast<uint64_t>(first);
    }
    block_[0] = a, block_[1] = b, block_[2] = c, block_[3] = d;
}

void draw_integers(Philox& random, int64_t below, int64_t* numbers, int64_t n) noexcept {
    if (below <= 1) {  // without a random number, as numpy does
        std::fill_n(numbers, n, 0);
        return;
    }
    const uint64_t range = static_cast<uint64_t>(below), rejected = static_cast<uint64_t>(MOST_BELOW - below) % range;
    for (int64_t i = 0; i < n; i++) {
        uint64_t product;
        do product = random.next_uint32() * range;
        while (static_cast<uint32_t>(product) < rejected);
        numbers[i] = static_cast<int64_t>(product >> 32);
    }
}

}  // namespace diskbuffer
