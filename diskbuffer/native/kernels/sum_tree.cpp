#include "sum_tree.hpp"

#include <algorithm>
#include <cfloat>
#include <cstring>
#include <limits>

#include "memory.hpp"

namespace diskbuffer {
namespace {

constexpr int FAN = SumTree::FAN;
constexpr int64_t AT_ONCE = 1024;  // items that pass through the tree together

int64_t groups_of(int64_t nodes) { return nodes / FAN + (nodes % FAN != 0); }

// Return the bytes of a level: of each node its weight, or its sum and its least.
int64_t bytes_of(int level, int64_t groups) {
    return groups * FAN * static_cast<int64_t>(level == 0 ? sizeof(float) : sizeof(double) + sizeof(float));
}

bool is_weight(double weight) { return weight >= 0.0 && weight <= FLT_MAX; }

// Round a weight, so that none above zero vanishes, and none is -0.
float rounded(double weight) { return weight > 0.0 ? static_cast<float>(std::max<double>(weight, FLT_MIN)) : 0.0f; }

// Two numbers at once, on every processor of 64 bits: to pick a child takes 11 ns so, where the best of plain loops takes 40.
using Pair = double __attribute__((vector_size(16)));
using Bits = int64_t __attribute__((vector_size(16)));

// Add the numbers of a node, always in this order.
template <typename Number>
inline double sum(const Number* numbers) {
    Pair pairs[8];
    for (int i = 0; i < 8; i++) pairs[i] = Pair{static_cast<double>(numbers[2 * i]), static_cast<double>(numbers[2 * i + 1])};
    const Pair even = (pairs[0] + pairs[4]) + (pairs[2] + pairs[6]), odd = (pairs[1] + pairs[5]) + (pairs[3] + pairs[7]);
    const Pair both = even + odd;
    return both[0] + both[1];
}

// Four numbers at once, on every processor of 64 bits.
using Four = float __attribute__((vector_size(16)));
using FourBits = int32_t __attribute__((vector_size(16)));

inline Four smaller_of(Four a, Four b) { return b < a ? b : a; }

// Return the smallest number above zero, or zero where there is none.
inline float least_above_zero(const float* numbers) {
    constexpr float NONE = std::numeric_limits<float>::infinity();
    Four fours[4];
    std::memcpy(fours, numbers, sizeof fours);
    for (Four& four : fours) four = four > 0.0f ? four : Four{NONE, NONE, NONE, NONE};
    Four a = smaller_of(smaller_of(fours[0], fours[1]), smaller_of(fours[2], fours[3]));
    a = smaller_of(a, Four{a[2], a[3], a[0], a[1]});
    const float least = a[1] < a[0] ? a[1] : a[0];
    return least == NONE ? 0.0f : least;
}

// A list of numbers, none of which is the same as the one before it. May be made in place of those that are added.
struct Distinct {
    explicit Distinct(int64_t* list) : list(list) {}

    void add(int64_t number) {
        list[n] = number;
        n += number != last;
        last = number;
    }

    int64_t* list;
    int64_t n = 0, last = -1;
};

struct Picked {
    int64_t child;
    double rest;  // of the mass, within the child
};

// Pick the child that a mass falls on: the first above zero with the sum up to it above the mass, or else the last above zero.
template <typename Number>
Picked pick(const Number* numbers, double mass) {
    constexpr int PAIRS = FAN / 2;
    Pair values[PAIRS], ends[PAIRS];
    for (int i = 0; i < PAIRS; i++)
        values[i] = Pair{static_cast<double>(numbers[2 * i]), static_cast<double>(numbers[2 * i + 1])};
    // Prefix sums (Hillis and Steele, 1986, "Data parallel algorithms"): add what lies one, two, four and eight numbers before.
    ends[0] = values[0] + Pair{0.0, values[0][0]};
    for (int i = 1; i < PAIRS; i++) ends[i] = values[i] + Pair{values[i - 1][1], values[i][0]};
    for (int i = PAIRS - 1; i >= 1; i--) ends[i] += ends[i - 1];
    for (int i = PAIRS - 1; i >= 2; i--) ends[i] += ends[i - 2];
    for (int i = PAIRS - 1; i >= 4; i--) ends[i] += ends[i - 4];
    Bits above_zero = {}, fits = {};
    for (int i = 0; i < PAIRS; i++) {
        const Bits children = {int64_t{1} << (2 * i), int64_t{2} << (2 * i)}, here = (values[i] > Pair{}) & children;
        above_zero |= here;
        fits |= (Pair{mass, mass} < ends[i]) & here;
    }
    const auto fitting = static_cast<uint32_t>(fits[0] | fits[1]), all = static_cast<uint32_t>(above_zero[0] | above_zero[1]);
    // None fits where rounding, or the caller, let the mass be too large. "or 1" is for a node of zeros.
    const int child = fitting != 0 ? __builtin_ctz(fitting) : 31 - __builtin_clz(all | 1);
    double before[FAN + 1] = {};
    std::memcpy(before + 1, ends, sizeof ends);
    return {child, mass - before[child]};
}

}  // namespace

SumTree::SumTree(uint8_t* memory, int64_t size) noexcept : size_(size) {
    int64_t nodes = size > 0 ? size : 1;
    for (; n_levels_ < 2 || levels_[n_levels_ - 2].groups > 1; n_levels_++) {
        const int64_t groups = groups_of(nodes), sums_bytes = n_levels_ ? groups * FAN * int64_t{sizeof(double)} : 0;
        levels_[n_levels_] = {reinterpret_cast<double*>(memory), reinterpret_cast<float*>(memory + sums_bytes), groups};
        memory += bytes_of(n_levels_, groups);
        nodes = groups;
    }
}

int64_t SumTree::bytes(int64_t size) noexcept {
    int64_t nodes = size > 0 ? size : 1, total = 0;
    for (int level = 0; level == 0 || nodes > 1; level++) {
        total += bytes_of(level, groups_of(nodes));
        nodes = groups_of(nodes);
    }
    return total + bytes_of(1, 1);  // the top
}

__attribute__((noinline)) void SumTree::compute(int level, int64_t group) noexcept {
    const Level &children = levels_[level], &parents = levels_[level + 1];
    parents.sums[group] = level == 0 ? sum(children.least + group * FAN) : sum(children.sums + group * FAN);
    parents.least[group] = least_above_zero(children.least + group * FAN);
}

// Compute all that lies above some groups of leaves; `groups` may have some of them several times, and is used up.
void SumTree::compute_above(int64_t* groups, int64_t n) noexcept {
    for (int level = 0; level + 1 < n_levels_; level++) {
        if (level) {
            Distinct above(groups);
            for (int64_t i = 0; i < n; i++) above.add(groups[i] / FAN);
            n = above.n;
        }
        const int64_t all = levels_[level].groups;
        if (n >= all) {  // each once
            n = all;
            for (int64_t i = 0; i < n; i++) groups[i] = i;
        }
        const Level& parents = levels_[level + 1];
        for (int64_t i = 0; i < n; i++) {
            const int64_t siblings = groups[i] / FAN * FAN;  // are read next
            prefetch(parents.sums + siblings);
            prefetch(parents.sums + siblings + FAN - 1);
            prefetch(parents.least + siblings);
            compute(level, groups[i]);
        }
    }
}

int64_t SumTree::set(const int64_t* items, const double* weights, int64_t n) noexcept {
    for (int64_t i = 0; i < n; i++)
        if (items[i] < 0 || items[i] >= size_ || !is_weight(weights[i])) return i;
    int64_t groups[AT_ONCE];
    for (int64_t done = 0; done < n;) {
        Distinct changed(groups);
        for (const int64_t end = std::min(n, done + AT_ONCE); done < end; done++) {
            leaves()[items[done]] = rounded(weights[done]);
            changed.add(items[done] / FAN);
        }
        compute_above(groups, changed.n);
    }
    return -1;
}

int64_t SumTree::get(const int64_t* items, double* weights, int64_t n) const noexcept {
    for (int64_t i = 0; i < n; i++) {
        if (items[i] < 0 || items[i] >= size_) return i;
        weights[i] = leaves()[items[i]];
    }
    return -1;
}

int64_t SumTree::fill(int64_t first, const double* weights, int64_t n) noexcept {
    for (int64_t i = 0; i < n; i++)
        if (!is_weight(weights[i])) return i;
    if (n == 0) return -1;
    for (int64_t i = 0; i < n; i++) leaves()[first + i] = rounded(weights[i]);
    int64_t last = first + n - 1;
    for (int level = 0; level + 1 < n_levels_; level++) {
        first /= FAN, last /= FAN;
        for (int64_t group = first; group <= last; group++) compute(level, group);
    }
    return -1;
}

void SumTree::clear(int64_t first, int64_t n) noexcept {
    int64_t last = first + n - 1;
    std::memset(leaves() + first, 0, n * sizeof(float));
    for (int level = 0; level + 1 < n_levels_; level++) {
        first /= FAN, last /= FAN;
        if (last - first > 1) {  // all below the nodes between these two is zero
            const Level& parents = levels_[level + 1];
            std::memset(parents.sums + first + 1, 0, (last - first - 1) * sizeof(double));
            std::memset(parents.least + first + 1, 0, (last - first - 1) * sizeof(float));
        }
        compute(level, first);
        compute(level, last);
    }
}

void SumTree::find(const double* masses, int64_t n, int64_t* items, double* weights) const noexcept {
    std::fill_n(items, n, 0);
    std::copy_n(masses, n, weights);  // until the last level, what is left of them
    for (int level = n_levels_ - 2; level > 0; level--) {
        const Level &here = levels_[level], &below = levels_[level - 1];
        for (int64_t i = 0; i < n; i++) {
            const Picked picked = pick(here.sums + items[i] * FAN, weights[i]);
            weights[i] = picked.rest;
            items[i] = items[i] * FAN + picked.child;
            if (level == 1) {
                prefetch(below.least + items[i] * FAN);
            } else {
                prefetch(below.sums + items[i] * FAN);
                prefetch(below.sums + items[i] * FAN + FAN - 1);
            }
        }
    }
    for (int64_t i = 0; i < n; i++) {
        items[i] = items[i] * FAN + pick(leaves() + items[i] * FAN, weights[i]).child;
        weights[i] = leaves()[items[i]];
    }
}

namespace {

// Copy memory but for its pages of zeros.
void copy_used(void* target, const void* source, int64_t size) {
    static const uint8_t zeros[4096] = {};
    auto* to = static_cast<uint8_t*>(target);
    auto* from = static_cast<const uint8_t*>(source);
    for (int64_t at = 0; at < size; at += sizeof zeros) {
        const size_t part = std::min<int64_t>(sizeof zeros, size - at);
        if (std::memcmp(from + at, zeros, part) != 0) std::memcpy(to + at, from + at, part);
    }
}

}  // namespace

void SumTree::take_over(const SumTree& smaller) noexcept {
    for (int level = 0; level < smaller.n_levels_; level++) {
        const Level &from = smaller.levels_[level], &to = levels_[level];
        const int64_t nodes = from.groups * FAN;
        if (level) copy_used(to.sums, from.sums, nodes * int64_t{sizeof(double)});
        copy_used(to.least, from.least, nodes * int64_t{sizeof(float)});
    }
    for (int level = smaller.n_levels_ - 1; level + 1 < n_levels_; level++) compute(level, 0);
}

}  // namespace diskbuffer
