// Threads that gather a share of a batch beside whoever asks, and wait for the next one.
//
// A batch is decoded in a millisecond. To wake a thread through Python takes a tenth of that, as it needs the interpreter's lock before
// it can begin; these wait for a condition instead. They can be called before there is work, while a batch is drawn and planned: then
// they look out for it for a moment, and begin at once.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>

#include "gather.hpp"

namespace diskbuffer {

// What a helper shares with its callers, of whom one at a time has it. It is never destroyed: a thread of Python's that is a daemon waits
// here when the process ends. A child of a fork has no threads, and makes boards of its own.
class Board {
public:
    explicit Board(Scratch scratch) : scratch_(scratch) {}
    Board(const Board&) = delete;

    // Be a helper, until `end` is called.
    void serve() noexcept;

    // Have the helper look out for work that comes soon.
    void call() noexcept { wake(CALLED); }

    // Have the helper gather a batch, too. `finish` must be called before the batch goes away.
    void start(SharedBatch& batch) noexcept;

    // Return when the helper does not, and will not, look at the batch any more.
    void finish() noexcept;

    // Have `serve` return. The helper must be idle.
    void end() noexcept { wake(END); }

private:
    // It goes from CALLED back to IDLE, and from WORK on to RUNNING and IDLE; callers do all else. AWAITED is RUNNING with a caller that
    // sleeps until it is over.
    enum State : int { IDLE, CALLED, WORK, RUNNING, AWAITED, END };

    bool change(State from, State to) { return state_.compare_exchange_strong(from, to, std::memory_order_acq_rel); }
    void wake(State to);

    std::atomic<State> state_{IDLE};
    std::mutex mutex_;
    std::condition_variable work_, done_;
    SharedBatch* batch_ = nullptr;
    const Scratch scratch_;
};

// Gather a batch beside helpers; when this returns, none of them looks at it any more. Returns 0, or why a chunk cannot be read.
int gather_together(SharedBatch& shared, Board* const* boards, int64_t n, Scratch scratch) noexcept;

}  // namespace diskbuffer
