// Which steps a buffer with a capacity keeps: the newest, in the order in which all streams added them.
//
// A clock ticks once for each step of a block, so that environments that step together have the same time. Of each stream is known when its
// steps were added, in runs of steps that are equally far apart in time: one run where environments step side by side, and another one behind
// each pause. The stream with the oldest step gives it up first; of several, the one with the smallest number.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "table.hpp"

namespace diskbuffer {

// Steps that follow one another, by how many steps the stream had before: the first was added at `time`, each other one `pace` later.
struct Run {
    int64_t step;
    int64_t time;
    double pace;
};

// The memory of an index and a store that it works on.
struct Kept {
    Stream* table;
    int64_t streams;
    int64_t context, segment_rows;
    int64_t* firsts;  // by stream: the position of the oldest step that is kept, for whoever reads the store elsewhere
    int64_t* losses;  // one more whenever steps are given up
};

class Retention {
  public:
    explicit Retention(Kept kept) : kept_(kept), logs_(kept.streams), times_(kept.streams, never) {}

    // Keep so many steps, of all streams or of each; below 0 all.
    void set_capacity(int64_t capacity, bool each);
    // Say when the steps were added that a stream has: of `n` runs the time of the first step, and how many there are, one tick apart.
    void restore(int64_t stream, const int64_t* runs, int64_t n);
    // Say what time it is.
    void set_time(int64_t now) { now_ = now; }
    // Work on the memory of others no more.
    void detach();
    // Count anew what the table has: steps were cleared.
    void recount();

    // Note steps of a stream, `later` ticks from now and one after the other.
    void add(int64_t stream, int64_t later, int64_t n);
    int64_t now() const { return now_; }
    void tick(int64_t n) { now_ += n; }
    // Give up steps until there are no more than the capacity; return whether a segment has no row any more that is needed.
    bool give_up();

  private:
    static constexpr int64_t never = INT64_MAX;

    struct Log {
        std::vector<Run> runs;
        size_t front = 0;               // the run of the oldest step
        int64_t oldest = 0, next = 0;  // the steps that there are, by how many the stream had before
    };

    bool is_shared() const { return capacity_ >= 0 && !each_; }
    void put(int64_t stream, int64_t time, int64_t n);
    int64_t before(const Log& log, int64_t time) const;
    void forget(int64_t stream);
    void give_up(int64_t stream, int64_t n);
    void raise_floor(Stream& stream, int64_t n) const;
    void give_up_oldest();

    Kept kept_;
    std::vector<int64_t> own_;  // in place of what was detached
    int64_t capacity_ = -1, now_ = 0, total_ = 0;
    bool each_ = false, is_due_ = false, has_given_up_ = false;
    std::vector<Log> logs_;
    std::vector<int64_t> times_;  // of each stream's oldest step, `never` where it has none
};

}  // namespace diskbuffer
