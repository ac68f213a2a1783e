// What each step of a block is: whether it goes on, starts an episode, cuts one off, or is a reset.
#include <cstring>

#include "recording.hpp"
#include "values.hpp"

namespace diskbuffer {

NewestStacks::NewestStacks(int64_t streams, int64_t frames, int64_t frame_bytes)
    : frames_(frames), bytes_(frame_bytes), memory_(new uint8_t[streams * frames * frame_bytes]), oldest_(streams), known_(streams) {}

void NewestStacks::put(int64_t stream, const uint8_t* oldest, Known known) {
    std::memcpy(frame(stream, 0), oldest, frames_ * bytes_);
    oldest_[stream] = 0;
    known_[stream] = known;
}

void NewestStacks::roll(int64_t stream, const uint8_t* newest) {
    std::memcpy(frame(stream, oldest_[stream]), newest, bytes_);
    oldest_[stream] = oldest_[stream] + 1 < frames_ ? oldest_[stream] + 1 : 0;
}

bool NewestStacks::is_same(int64_t stream, const uint8_t* oldest, int64_t number_bytes) const {
    const int64_t first = oldest_[stream], to_end = (frames_ - first) * bytes_;
    if (known_[stream] == Known::newest_frame) {
        const int64_t newest = frames_ - 1;
        return same_values(frame(stream, (first + newest) % frames_), oldest + newest * bytes_, bytes_, number_bytes);
    }
    return same_values(frame(stream, first), oldest, to_end, number_bytes) &&
           same_values(frame(stream, 0), oldest + to_end, first * bytes_, number_bytes);
}

const uint8_t* BlockRecorder::before(int64_t c, int64_t step, int64_t environment) const {
    const Source::Values& values = sources[c].before;
    return values.first + step * values.step_stride + environment * values.environment_stride;
}

const uint8_t* BlockRecorder::after(int64_t c, int64_t step, int64_t environment) const {
    const Source::Values& values = sources[c].after;
    return values.first + step * values.step_stride + environment * values.environment_stride;
}

bool BlockRecorder::ends(int64_t step, int64_t environment) const {
    return *before(target_.terminated, step, environment) | *before(target_.truncated, step, environment);
}

Verdict BlockRecorder::decide() {
    done = 0;
    decisions_.resize(steps * environments);
    for (size_t c = 0; c < sources.size(); c++)
        if (sources[c].is_stacked && !newest_stacks_[c]) {
            newest_stacks_[c] = std::make_unique<NewestStacks>(target_.streams, target_.frame_stack, target_.columns[c].row_bytes);
            has_stacks_ = true;
        }
    Verdict verdict = find_nonfinite();
    for (int64_t e = 0; e < environments && verdict.problem == Problem::none; e++) verdict = decide_environment(e);
    return verdict;
}

Verdict BlockRecorder::find_nonfinite() const {
    for (int64_t c = 0; c < static_cast<int64_t>(sources.size()); c++) {
        const RecordedColumn& column = target_.columns[c];
        if (!column.refuses_nonfinite) continue;
        const Source::Values &before = sources[c].before, &after = sources[c].after;
        const int64_t size = (sources[c].is_stacked ? target_.frame_stack : 1) * column.row_bytes;
        for (bool is_after : {false, true}) {
            const Source::Values& values = is_after ? after : before;
            if (is_after && column.role != Role::observation) break;
            const bool was_seen = is_after && after.first == before.first + before.step_stride && after.step_stride == before.step_stride &&
                                  after.environment_stride == before.environment_stride;  // a trajectory: but for its last observations
            const int64_t begin = was_seen ? steps - 1 : 0;
            const bool is_dense = (environments == 1 || values.environment_stride == size) &&
                                  (steps - begin == 1 || values.step_stride == environments * size);
            const uint8_t* first = values.first + begin * values.step_stride + column.row_bytes - size;
            if (is_dense && !has_nonfinite(first, (steps - begin) * environments * size, column.number_bytes)) continue;
            for (int64_t t = begin; t < steps; t++)
                for (int64_t e = 0; e < environments; e++)
                    if (has_nonfinite(first + (t - begin) * values.step_stride + e * values.environment_stride, size, column.number_bytes))
                        return Verdict{Problem::nonfinite, c, t, e, is_after};
        }
    }
    return Verdict{Problem::none, 0, 0, 0, false};
}

// An episode goes on if the step begins with what the one before led to, or the caller says so. If that one ended its episode, or something
// else is observed, the step starts another; one that had not ended is then cut off where it was. Where environments reset in a step of their
// own, the step after an episode's end which observes that end, earns nothing and ends nothing is the reset; the next one is none.
Verdict BlockRecorder::decide_environment(int64_t environment) {
    const int64_t stream = first_stream + environment;
    const Stream& row = target_.table[stream];
    const bool is_there = row.head >= 0;  // the newest row, which is never evicted
    bool is_running = is_there && !row.ended, awaits_reset = is_there && target_.next_step && this->awaits_reset(stream);
    int64_t previous = -1, column = 0;
    for (int64_t t = 0; t < steps; t++) {
        Decision& decision = this->decision(t, environment);
        const bool declared_start = declared && declared[t * environments + environment], declared_on = declared && !declared_start;
        const bool may_be_reset = awaits_reset && is_idle(t, environment);
        Same same = Same::no;
        if (!declared_start && (is_running || may_be_reset))
            same = is_running && declared_on ? Same::yes : is_same(t, previous, environment, &column);
        if (same == Same::unknown) return Verdict{Problem::unknown_stack, column, t, environment, false};
        awaits_reset = false;
        if (may_be_reset && same == Same::yes) {
            decision = Decision{Kind::reset, false};
            continue;
        }
        decision = Decision{same == Same::yes ? Kind::goes_on : is_running ? Kind::cuts_off : Kind::starts, false};
        for (int64_t c = 0; c < static_cast<int64_t>(sources.size()); c++) {
            if (!sources[c].is_stacked) continue;
            if (!rolls(c, t, environment)) return Verdict{Problem::does_not_roll, c, t, environment, true};
            if (decision.kind != Kind::goes_on && !is_filled(c, t, environment)) decision.has_prefix = true;
        }
        is_running = !ends(t, environment);
        awaits_reset = target_.next_step && !is_running;
        previous = t;
    }
    return Verdict{Problem::none, 0, 0, 0, false};
}

// Return whether a step begins with what a previous one led to, -1 for the stream's newest row.
BlockRecorder::Same BlockRecorder::is_same(int64_t step, int64_t previous, int64_t environment, int64_t* column) const {
    const int64_t stream = first_stream + environment;
    Same same = Same::yes;
    for (int64_t c = 0; c < static_cast<int64_t>(sources.size()); c++) {
        const RecordedColumn& recorded = target_.columns[c];
        if (recorded.role != Role::observation) continue;
        const bool is_stacked = sources[c].is_stacked;
        const uint8_t* now = before(c, step, environment);
        if (is_stacked && previous < 0) {
            const NewestStacks& newest = *newest_stacks_[c];
            if (newest.known(stream) == NewestStacks::Known::nothing) {
                same = Same::unknown;
                *column = c;
            } else if (!newest.is_same(stream, oldest(c, now), recorded.number_bytes)) {
                return Same::no;
            }
            continue;
        }
        const uint8_t* then = previous < 0 ? row(c, stream, target_.table[stream].head) : after(c, previous, environment);
        if (now == then) continue;
        const bool is_equal = is_stacked ? same_values(oldest(c, then), oldest(c, now), target_.frame_stack * recorded.row_bytes, recorded.number_bytes)
                                         : same_values(then, now, recorded.row_bytes, recorded.number_bytes);
        if (!is_equal) return Same::no;
    }
    return same;
}

// Return whether a step earns nothing and ends nothing.
bool BlockRecorder::is_idle(int64_t step, int64_t environment) const {
    const RecordedColumn& reward = target_.columns[target_.reward];
    return !ends(step, environment) && all_zero(before(target_.reward, step, environment), reward.row_bytes, reward.number_bytes);
}

// Return whether a step's stack leads to itself, moved on by one frame.
bool BlockRecorder::rolls(int64_t c, int64_t step, int64_t environment) const {
    const RecordedColumn& column = target_.columns[c];
    const uint8_t* now = oldest(c, before(c, step, environment));
    const uint8_t* following = oldest(c, after(c, step, environment));
    return same_values(following, now + column.row_bytes, (target_.frame_stack - 1) * column.row_bytes, column.number_bytes);
}

// Return whether a stack is filled up as an episode's first one is.
bool BlockRecorder::is_filled(int64_t c, int64_t step, int64_t environment) const {
    const RecordedColumn& column = target_.columns[c];
    const uint8_t* now = oldest(c, before(c, step, environment));
    const int64_t older = (target_.frame_stack - 1) * column.row_bytes;
    return target_.fills_zeros ? all_zero(now, older, column.number_bytes)
                               : same_values(now, now + column.row_bytes, older, column.number_bytes);
}

}  // namespace diskbuffer
