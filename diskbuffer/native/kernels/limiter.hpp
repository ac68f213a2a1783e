// The rule of a limiter, over counts that actors and learners share in a mapped file; `diskbuffer/limiting/fields.py` has its words.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

namespace diskbuffer {

// Each writer has a row of its own, as long as a line of the cache, that it alone writes to.
struct WriterCounts {
    std::atomic<int64_t> added;   // steps, ever, and those that were lost
    std::atomic<int64_t> before;  // how many of these there were before the limiter
    std::atomic<int64_t> lost;    // steps that count, though the store has them no longer
    std::atomic<int64_t> added_at;
    std::atomic<int64_t> joined;
    int64_t unused[3];
};

struct LimiterCounts {
    static constexpr int64_t MOST_WRITERS = 1024;

    int64_t version;
    double ratio;      // samples for each step; what is above this line and `bound` change only with the file
    int64_t min_size;  // steps before the first sample
    double bound;
    std::atomic<int64_t> samples;
    int64_t samples_before;
    std::atomic<int64_t> sampled_at;
    std::atomic<int64_t> rows;  // of writers
    int64_t unused[8];
    WriterCounts writers[MOST_WRITERS];
};
static_assert(std::atomic<int64_t>::is_always_lock_free && sizeof(std::atomic<int64_t>) == sizeof(int64_t));
static_assert(sizeof(WriterCounts) == 8 * sizeof(int64_t));
static_assert(sizeof(LimiterCounts) == (16 + 1024 * 8) * sizeof(int64_t));

struct Inserts {
    int64_t added;   // by all writers, ever
    int64_t before;  // how many of these there were before the limiter
};

// Add and subtract; a damaged file may have any numbers, so the result wraps.
inline int64_t sum(int64_t a, int64_t b) { return static_cast<int64_t>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b)); }
inline int64_t difference(int64_t a, int64_t b) { return static_cast<int64_t>(static_cast<uint64_t>(a) - static_cast<uint64_t>(b)); }

inline Inserts inserts(const LimiterCounts& counts) noexcept {
    Inserts inserts{0, 0};
    const int64_t rows = std::min(counts.rows.load(std::memory_order_acquire), LimiterCounts::MOST_WRITERS);
    for (int64_t row = 0; row < rows; row++) {
        inserts.added = sum(inserts.added, counts.writers[row].added.load(std::memory_order_acquire));
        inserts.before = sum(inserts.before, counts.writers[row].before.load(std::memory_order_acquire));
    }
    return inserts;
}

// Return how many samples are due, where so much was inserted; below zero, how many too many there were.
inline double surplus(const LimiterCounts& counts, Inserts inserts) noexcept {
    const int64_t inserted = difference(inserts.added, std::max(inserts.before, counts.min_size));
    const int64_t samples = difference(counts.samples.load(std::memory_order_acquire), counts.samples_before);
    return counts.ratio * static_cast<double>(inserted) - static_cast<double>(samples);
}

inline bool may_add(const LimiterCounts& counts) noexcept { return surplus(counts, inserts(counts)) <= counts.bound; }

inline bool may_sample(const LimiterCounts& counts) noexcept {
    const Inserts inserted = inserts(counts);
    return inserted.added >= counts.min_size && surplus(counts, inserted) >= -counts.bound;
}

// Note how many steps a writer's store has ever had; those that it lost stay counted.
inline void note_added(LimiterCounts& counts, int64_t writer, int64_t added, int64_t now) noexcept {
    WriterCounts& row = counts.writers[writer];
    row.added.store(sum(added, row.lost.load(std::memory_order_relaxed)), std::memory_order_release);
    row.added_at.store(now, std::memory_order_release);
}

// Count samples, atomically for all processes.
inline void note_sampled(LimiterCounts& counts, int64_t samples, int64_t now) noexcept {
    counts.samples.fetch_add(samples, std::memory_order_seq_cst);
    counts.sampled_at.store(now, std::memory_order_release);
}

}  // namespace diskbuffer
