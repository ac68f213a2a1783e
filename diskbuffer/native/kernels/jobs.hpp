// Batches that threads gather while their caller does something else, and the threads that do.
//
// A job owns what it is gathered by, so its caller may go on, and leave. Threads take parts of the oldest job that has some left; who waits
// for a job takes parts of that one, too. None of them needs the interpreter, whose lock a learner may hold all the time.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <vector>

#include "finishing.hpp"
#include "gather.hpp"

namespace diskbuffer {

// What of a batch goes from one store into some columns.
struct Share {
    std::vector<Run> runs;  // sorted by where they lie
    std::vector<Source> sources;
    const Target* targets = nullptr;
    int64_t stores = 0, n_targets = 0, columns = 0;
    int64_t parts = 0;
    Progress progress;

    Batch batch() const {
        return {targets, stores, n_targets, runs.data(), static_cast<int64_t>(runs.size()), sources.data(), columns};
    }
};

// A batch. Whoever makes it sets all that is public, and then calls `split`; the memory that its targets name stays until it is over.
class Job {
public:
    std::deque<Share> shares;
    std::vector<Finishing> finishing;
    int64_t largest = 0;     // bytes of a chunk, at most
    int64_t page_bytes = 0;  // where the disk is asked for all pages first; -1 where waits are not counted

    // Split it into parts, each share into so many at most. It may be begun anew by this where no thread has it.
    void split(int64_t parts_of_a_share) noexcept;

    // Take parts until none is left; `scratch` has room for two of its chunks.
    void work(uint8_t* scratch) noexcept;

    // Have no more of it gathered: its caller has left.
    void cancel() noexcept { cancelled_.store(true, std::memory_order_relaxed); }

    bool has_parts() const noexcept { return turn_.load(std::memory_order_relaxed) < parts_; }
    bool is_over() const noexcept { return over_.load(std::memory_order_acquire); }

    // How many pages its threads have waited for, or, where all were asked for first, have read.
    int64_t waits() const noexcept { return waits_.load(std::memory_order_relaxed); }

    // Return the share of which a chunk cannot be read; -1 if there is none.
    int64_t damaged() const noexcept;

private:
    friend class Crew;

    void gather(int64_t part, uint8_t* scratch) noexcept;
    void end() noexcept;

    int64_t parts_ = 0;
    std::atomic<int64_t> turn_{0}, left_{0};  // the part to take next; how many are not gathered yet
    std::atomic<int64_t> waits_{0};
    std::atomic<bool> cancelled_{false}, over_{false};
    int workers_ = 0, most_ = 0;  // threads that have it, and how many may; the crew's lock guards them
    bool is_awaited_ = false;     // by a caller that sleeps
};

// Threads that gather jobs. It is never destroyed: a thread of Python's that is a daemon waits here when the process ends. A child of a fork
// has no threads, and makes another.
class Crew {
public:
    Crew() = default;
    Crew(const Crew&) = delete;

    // Be one of the threads, until `end` is called.
    void serve() noexcept;

    // Hand a job over, of which so many threads at most take parts; one that is `urgent` comes before all others.
    void submit(Job& job, int most, bool urgent);

    // Take parts of a job, and wait for what others have taken; return whether it is over, or false after some time.
    bool wait(Job& job, std::chrono::microseconds most, uint8_t* scratch);

    // Return when no thread has a job, and none will.
    void withdraw(Job& job);

    // Have so many idle threads look out for a job that comes soon.
    void call(int threads);

    // Have all threads end once there is nothing left to do.
    void end();

private:
    Job* next();  // the lock must be held
    void leave(Job& job);

    std::mutex mutex_;
    std::condition_variable work_, over_;
    std::deque<Job*> queue_;
    std::atomic<int64_t> submitted_{0};  // so far
    int called_ = 0;                     // threads that are to look out
    bool ended_ = false;
};

}  // namespace diskbuffer
