#include "retention.hpp"

#include <algorithm>
#include <cmath>

#include "lookup.hpp"
#include "memory.hpp"

namespace diskbuffer {

namespace {

int64_t time_of(const Run& run, int64_t step) {
    return run.time + static_cast<int64_t>(std::floor(static_cast<double>(step - run.step) * run.pace));
}

}  // namespace

void Retention::set_capacity(int64_t capacity, bool each) {
    capacity_ = capacity;
    each_ = each;
}

void Retention::restore(int64_t stream, const int64_t* runs, int64_t n) {
    Log& log = logs_[stream];
    total_ -= log.next - log.oldest;
    log = Log{};
    times_[stream] = never;
    for (int64_t k = 0; k < n; k++) put(stream, runs[2 * k], runs[2 * k + 1]);
}

void Retention::detach() {
    own_.resize(kept_.streams);
    kept_.firsts = own_.data();
}

void Retention::recount() {
    if (!is_shared()) return;
    for (int64_t stream = 0; stream < kept_.streams; stream++) {
        Log& log = logs_[stream];
        total_ -= log.next - log.oldest;
        log.oldest = log.next - steps_of(kept_.table[stream]);
        total_ += log.next - log.oldest;
        forget(stream);
    }
}

void Retention::add(int64_t stream, int64_t later, int64_t n) {
    if (is_shared()) put(stream, now_ + later, n);
}

void Retention::put(int64_t stream, int64_t time, int64_t n) {
    Log& log = logs_[stream];
    Run* newest = log.oldest == log.next ? nullptr : &log.runs.back();
    const int64_t steps = newest ? log.next - newest->step : 0;
    const bool is_second = steps == 1 && (n == 1 || time == newest->time + 1);
    if (is_second) newest->pace = static_cast<double>(time - newest->time);
    if (!newest || !(is_second || (time == time_of(*newest, log.next) && (n == 1 || newest->pace == 1)))) {
        if (!newest) {
            log.runs.clear();
            log.front = 0;
            times_[stream] = time;
        }
        log.runs.push_back(Run{log.next, time, 1});
    }
    log.next += n;
    total_ += n;
}

bool Retention::give_up() {
    is_due_ = has_given_up_ = false;
    if (is_shared()) {
        while (total_ > capacity_) give_up_oldest();
    } else if (each_ && capacity_ >= 0) {
        for (int64_t stream = 0; stream < kept_.streams; stream++) {
            const int64_t surplus = steps_of(kept_.table[stream]) - capacity_;
            if (surplus > 0) give_up(stream, surplus);
        }
    }
    *kept_.losses += has_given_up_;
    return is_due_;
}

// Give up steps of the oldest time that there are: of one stream at once all that are older than any other's.
void Retention::give_up_oldest() {
    const int64_t oldest = *std::min_element(times_.begin(), times_.end());
    int64_t next_oldest = never, only = -1, of_that_time = 0;
    for (int64_t stream = 0; stream < kept_.streams; stream++) {
        if (times_[stream] != oldest) {
            next_oldest = std::min(next_oldest, times_[stream]);
        } else {
            only = stream;
            of_that_time++;
        }
    }
    if (of_that_time == 1) {
        give_up(only, std::min(total_ - capacity_, before(logs_[only], next_oldest)));
        return;
    }
    for (int64_t stream = 0; stream < kept_.streams && total_ > capacity_; stream++)
        if (times_[stream] == oldest) give_up(stream, 1);
}

// Return how many of the oldest steps of a stream, at least one, are of one run and were added before a time.
int64_t Retention::before(const Log& log, int64_t time) const {
    const Run& run = log.runs[log.front];
    const int64_t end = log.front + 1 < log.runs.size() ? log.runs[log.front + 1].step : log.next;
    const double paces = static_cast<double>(time - run.time) / std::max(run.pace, 1e-9);
    const double most = static_cast<double>(end - run.step);
    return std::max<int64_t>(1, run.step + static_cast<int64_t>(std::min(paces, most)) - log.oldest);
}

void Retention::give_up(int64_t stream, int64_t n) {
    Stream& row = kept_.table[stream];
    raise_floor(row, n);
    store_release(&kept_.firsts[stream], row.floor);
    has_given_up_ = true;
    is_due_ |= row.floor - kept_.context >= row.low + kept_.segment_rows;
    if (each_) return;
    logs_[stream].oldest += n;
    total_ -= n;
    forget(stream);
}

// Forget when steps were added that there are not any more.
void Retention::forget(int64_t stream) {
    Log& log = logs_[stream];
    if (log.oldest == log.next) {
        times_[stream] = never;
        return;
    }
    while (log.front + 1 < log.runs.size() && log.runs[log.front + 1].step <= log.oldest) log.front++;
    if (log.front > 64 && log.front > log.runs.size() / 2) {
        log.runs.erase(log.runs.begin(), log.runs.begin() + static_cast<std::ptrdiff_t>(log.front));
        log.front = 0;
    }
    times_[stream] = time_of(log.runs[log.front], log.oldest);
}

// Raise the position of the oldest step by so many steps, and forget the episodes before it.
void Retention::raise_floor(Stream& stream, int64_t n) const {
    while (stream.episodes > 1) {
        const int64_t left = stream.starts[1] - 1 - stream.floor;
        if (n < left) break;
        n -= left;
        stream.starts++;
        stream.episodes--;
        stream.floor = stream.starts[0];
    }
    stream.floor += n;
}

}  // namespace diskbuffer
