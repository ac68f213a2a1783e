#include "helper_threads.hpp"

#include <chrono>

#include "memory.hpp"

namespace diskbuffer {

namespace {

constexpr std::chrono::microseconds LOOKS_OUT{150};  // for work, by a helper that was called
constexpr std::chrono::microseconds LOOKS_ON{50};    // until the last part is done, by a caller before it sleeps

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

}  // namespace

void Board::serve() noexcept {
    while (true) {
        {
            std::unique_lock<std::mutex> lock(mutex_);
            work_.wait(lock, [this] { return state_.load(std::memory_order_acquire) != IDLE; });
        }
        look(LOOKS_OUT, [this] { return state_.load(std::memory_order_acquire) != CALLED; });
        change(CALLED, IDLE);  // it was called for nothing
        if (state_.load(std::memory_order_acquire) == END) return;
        if (!change(WORK, RUNNING)) continue;
        gather_parts(*batch_, scratch_);
        if (state_.exchange(IDLE, std::memory_order_acq_rel) == AWAITED) {
            const std::lock_guard<std::mutex> lock(mutex_);
            done_.notify_one();
        }
    }
}

// Put an idle helper into another state, and wake it.
void Board::wake(State to) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (change(CALLED, to) || change(IDLE, to)) work_.notify_one();
}

void Board::start(SharedBatch& batch) noexcept {
    batch_ = &batch;
    wake(WORK);
}

void Board::finish() noexcept {
    if (change(WORK, IDLE)) return;  // it has not begun
    const auto is_done = [this] {
        const State state = state_.load(std::memory_order_acquire);
        return state != RUNNING && state != AWAITED;
    };
    if (look(LOOKS_ON, is_done)) return;
    std::unique_lock<std::mutex> lock(mutex_);
    change(RUNNING, AWAITED);
    done_.wait(lock, is_done);
}

int gather_together(SharedBatch& shared, Board* const* boards, int64_t n, Scratch scratch) noexcept {
    for (int64_t k = 0; k < n; k++) boards[k]->start(shared);
    gather_parts(shared, scratch);
    for (int64_t k = 0; k < n; k++) boards[k]->finish();
    return shared.progress.reason.load(std::memory_order_relaxed);
}

}  // namespace diskbuffer
