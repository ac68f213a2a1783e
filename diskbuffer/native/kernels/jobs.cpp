#include "jobs.hpp"

#include <sys/resource.h>

#include <algorithm>
#include <new>

#include "byte_ranges.hpp"
#include "memory.hpp"

namespace diskbuffer {

namespace {

constexpr std::chrono::microseconds LOOKS_OUT{150};  // for a job, by a thread that was called
constexpr std::chrono::microseconds LOOKS_ON{50};    // until the last part is gathered, by a caller before it sleeps

// Look at something again and again for a while; return whether it became true.
template <typename Condition>
bool look(std::chrono::microseconds most, Condition condition) {
    const auto until = std::chrono::steady_clock::now() + most;
    do {
        for (int k = 0; k < 64; k++) {
            if (condition()) return true;
            pause_processor();
        }
    } while (std::chrono::steady_clock::now() < until);
    return false;
}

// Return the pages that this thread has waited for so far; where it asks for them first, those that it has read.
int64_t pages_waited_for(int64_t page_bytes) {
#ifdef RUSAGE_THREAD
    constexpr int WHOSE = RUSAGE_THREAD;
#else
    constexpr int WHOSE = RUSAGE_SELF;
#endif
    rusage usage{};
    getrusage(WHOSE, &usage);
    return page_bytes == 0 ? usage.ru_majflt : usage.ru_inblock * 512 / page_bytes;
}

// Make memory larger where it is smaller than so many bytes; return false where there is none.
bool make_room(std::vector<uint8_t>& memory, int64_t bytes) noexcept {
    try {
        if (static_cast<int64_t>(memory.size()) < bytes) memory.assign(bytes, 0);
        return true;
    } catch (const std::bad_alloc&) {
        return false;
    }
}

}  // namespace

// Jobs

void Job::split(int64_t parts_of_a_share) noexcept {
    parts_ = 0;
    for (Share& share : shares) {
        share.parts = std::min(static_cast<int64_t>(share.runs.size()), parts_of_a_share);
        share.progress.reason.store(0, std::memory_order_relaxed);
        parts_ += share.parts;
    }
    workers_ = 0, is_awaited_ = false;
    cancelled_.store(false, std::memory_order_relaxed);
    left_.store(parts_, std::memory_order_relaxed);
    over_.store(false, std::memory_order_relaxed);
    waits_.store(0, std::memory_order_relaxed);
    turn_.store(0, std::memory_order_release);
    if (parts_ == 0) end();
}

void Job::work(uint8_t* scratch) noexcept {
    if (!has_parts()) return;
    int64_t before = page_bytes < 0 ? 0 : pages_waited_for(page_bytes);
    while (true) {
        const int64_t part = turn_.fetch_add(1, std::memory_order_relaxed);
        if (part >= parts_) return;
        gather(part, scratch);
        if (page_bytes >= 0) {
            const int64_t now = pages_waited_for(page_bytes);
            waits_.fetch_add(now - before, std::memory_order_relaxed);
            before = now;
        }
        if (left_.fetch_sub(1, std::memory_order_acq_rel) == 1) end();
    }
}

void Job::gather(int64_t part, uint8_t* scratch) noexcept {
    if (cancelled_.load(std::memory_order_relaxed)) return;
    auto share = shares.begin();
    while (part >= share->parts) part -= share++->parts;
    if (share->progress.reason.load(std::memory_order_relaxed) != NOTHING_WRONG) return;
    const Batch batch = share->batch();
    if (part == 0 && page_bytes > 0) request_pages(batch, page_bytes);
    gather_runs(batch, batch.n_runs * part / share->parts, batch.n_runs * (part + 1) / share->parts, {scratch, largest}, share->progress);
}

void Job::end() noexcept {
    if (!cancelled_.load(std::memory_order_relaxed) && damaged() < 0)
        for (const Finishing& one : finishing) finish(one);
    over_.store(true, std::memory_order_release);
}

int64_t Job::damaged() const noexcept {
    for (size_t k = 0; k < shares.size(); k++)
        if (shares[k].progress.reason.load(std::memory_order_relaxed) != NOTHING_WRONG) return static_cast<int64_t>(k);
    return -1;
}

// Threads

void Crew::serve() noexcept {
    std::vector<uint8_t> scratch;
    std::unique_lock<std::mutex> lock(mutex_);
    while (true) {
        if (Job* job = next()) {
            job->workers_++;
            lock.unlock();
            const bool has_room = make_room(scratch, 2 * job->largest);
            if (has_room) job->work(scratch.data());
            lock.lock();
            if (!has_room) job->most_ = 0;  // whoever waits for it gathers it
            leave(*job);
        } else if (ended_) {
            return;
        } else if (called_ > 0) {
            called_--;
            const int64_t before = submitted_.load(std::memory_order_relaxed);
            lock.unlock();
            look(LOOKS_OUT, [&] { return submitted_.load(std::memory_order_relaxed) != before; });
            lock.lock();
        } else {
            work_.wait(lock);
        }
    }
}

// Return the oldest job that a thread may take parts of.
Job* Crew::next() {
    while (!queue_.empty() && !queue_.front()->has_parts()) queue_.pop_front();
    for (Job* job : queue_)
        if (job->has_parts() && job->workers_ < job->most_) return job;
    return nullptr;
}

void Crew::leave(Job& job) {
    if (--job.workers_ == 0 && job.is_awaited_) over_.notify_all();
}

void Crew::submit(Job& job, int most, bool urgent) {
    const std::lock_guard<std::mutex> lock(mutex_);
    job.most_ = most;
    if (urgent)
        queue_.push_front(&job);
    else
        queue_.push_back(&job);
    submitted_.fetch_add(1, std::memory_order_relaxed);
    for (int k = 0; k < most; k++) work_.notify_one();
}

bool Crew::wait(Job& job, std::chrono::microseconds most, uint8_t* scratch) {
    job.work(scratch);
    if (job.is_over() || look(LOOKS_ON, [&] { return job.is_over(); })) return true;
    std::unique_lock<std::mutex> lock(mutex_);
    job.is_awaited_ = true;
    return over_.wait_for(lock, most, [&] { return job.is_over(); });
}

void Crew::withdraw(Job& job) {
    job.cancel();
    std::unique_lock<std::mutex> lock(mutex_);
    queue_.erase(std::remove(queue_.begin(), queue_.end(), &job), queue_.end());
    job.is_awaited_ = true;
    over_.wait(lock, [&] { return job.workers_ == 0; });
}

void Crew::call(int threads) {
    const std::lock_guard<std::mutex> lock(mutex_);
    called_ = threads;
    for (int k = 0; k < threads; k++) work_.notify_one();
}

void Crew::end() {
    const std::lock_guard<std::mutex> lock(mutex_);
    ended_ = true;
    work_.notify_all();
}

}  // namespace diskbuffer
