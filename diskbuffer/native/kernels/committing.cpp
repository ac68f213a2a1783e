// Rows of steps that were decided: first the rows, then their checksums, and then the word that says how many there are, before which none
// of them exists.
#include <algorithm>
#include <cstring>

#include "checksums.hpp"
#include "memory.hpp"
#include "recording.hpp"

namespace diskbuffer {

namespace {

constexpr int64_t of_observation = 0, of_step = 1;  // words of a row's checksum
constexpr int64_t time_word = 2;                      // behind them: when the step was added
constexpr uint32_t nothing_done = 0;  // in place of the second word of a row that may still become a step
constexpr int64_t narrow = 256;       // bytes of a row, up to which its values are put side by side for one checksum

}  // namespace

BlockRecorder::BlockRecorder(Target target)
    : sources(target.columns.size()), target_(std::move(target)), prefixes_(target_.streams), newest_stacks_(target_.columns.size()) {
    int64_t widest = 0;
    for (int64_t c = 0; c < static_cast<int64_t>(target_.columns.size()); c++) {
        const RecordedColumn& column = target_.columns[c];
        widest = std::max(widest, column.row_bytes);
        if (column.role == Role::checksum) checksum_column_ = c;
        else of_word_[column.role == Role::observation ? of_observation : of_step].push_back(c);
    }
    for (int64_t word : {of_observation, of_step}) {
        word_bytes_[word] = 0;
        for (int64_t c : of_word_[word]) word_bytes_[word] += target_.columns[c].row_bytes;
    }
    zeros_.resize(widest);
}

uint8_t* BlockRecorder::row(int64_t c, int64_t stream, int64_t position) const {
    const RecordedColumn& column = target_.columns[c];
    const Places& places = target_.places[c * target_.streams + stream];
    if (column.cycle != 0) return places.of_segment[1] + static_cast<uint64_t>(position) % static_cast<uint64_t>(column.cycle) * column.row_bytes;
    return places.of_segment[position >= target_.begins[stream]] + position * column.row_bytes;
}

void BlockRecorder::commit(int64_t until, bool all_or_none) {
    int64_t together = until;
    for (int64_t e = 0; e < environments; e++) together = std::min(together, reach(e, together));
    if (all_or_none && together < until) return;
    for (int64_t e = 0; e < environments; e++) commit_environment(e, together);
    target_.retention->tick(together - done);
    done = together;
    if (done < until) {
        for (int64_t e = 0; e < environments; e++)  // a prefix may be longer than all the room that there ever is at once
            if (decision(done, e).has_prefix && reach(e, done + 1) == done) commit_prefix(e, done);
    }
}

// Return the step before `until` for which there is no room, or `until`.
int64_t BlockRecorder::reach(int64_t environment, int64_t until) const {
    const int64_t stream = first_stream + environment, limit = target_.limits[stream];
    int64_t head = target_.table[stream].head;
    for (int64_t t = done; t < until; t++) {
        const Decision& decision = decisions_[environment * steps + t];
        if (decision.kind == Kind::reset) continue;
        int64_t rows = decision.kind == Kind::goes_on ? 1 : 2;
        if (decision.has_prefix) rows += t == done ? prefix_left(environment, head) : prefix_rows_of(head);
        if (head + rows >= limit) return t;
        head += rows;
    }
    return until;
}

// Return how many rows a prefix has. No episode's first row may be the first of a segment while its prefix lies in the one before: once that
// was evicted, nothing would tell that the episode's first stack is not there. There is one row more then.
int64_t BlockRecorder::prefix_rows_of(int64_t head) const {
    const int64_t frames = target_.frame_stack - 1;
    return frames + ((head + 1 + frames) % target_.segment_rows == 0);
}

// Return how many rows of the prefix are to be written with which the next step begins.
int64_t BlockRecorder::prefix_left(int64_t environment, int64_t head) const {
    const Prefix& prefix = prefixes_[first_stream + environment];
    return prefix.rows ? prefix.rows - prefix.written : prefix_rows_of(head);
}

bool BlockRecorder::has_rows_to_come(int64_t environment) const {
    return done < steps && decisions_[environment * steps + done].kind != Kind::reset;
}

void BlockRecorder::commit_environment(int64_t environment, int64_t until) {
    const int64_t stream = first_stream + environment;
    Stream& newest = target_.table[stream];
    Prefix& prefix = prefixes_[stream];
    for (int64_t t = done; t < until;) {
        const Decision& first = decision(t, environment);
        if (first.kind == Kind::reset) {
            have_count(stream, newest.head, newest.head, true);
            t++;
            continue;
        }
        const bool starts_episode = first.kind != Kind::goes_on;
        if (first.has_prefix) commit_prefix(environment, t);
        else if (first.kind == Kind::cuts_off) end_newest(stream);
        cut_offs += first.kind == Kind::cuts_off;
        if (starts_episode) note_start(stream, newest.head + 1, first.has_prefix ? newest.head + 1 - prefix.rows : -1);
        int64_t last = t;
        while (last + 1 < until && decision(last + 1, environment).kind == Kind::goes_on) last++;
        commit_run(environment, t, last, starts_episode);
        prefix = Prefix{};
        if (has_stacks_) remember_stacks(environment, t, last, starts_episode);
        recorded += last - t + 1;
        t = last + 1;
    }
}

// Commit steps that go on one from the other: their rows are in a row, and behind them stands what the last one led to.
void BlockRecorder::commit_run(int64_t environment, int64_t first, int64_t last, bool starts_episode) {
    const int64_t stream = first_stream + environment, n = last - first + 1;
    Stream& newest = target_.table[stream];
    const int64_t position = newest.head + starts_episode, head = position + n;
    const bool is_over = ends(last, environment);
    for (int64_t c = 0; c < static_cast<int64_t>(target_.columns.size()); c++) {
        const Source& source = sources[c];
        switch (target_.columns[c].role) {
            case Role::observation:
                if (starts_episode) copy_rows(c, stream, position, 1, before(c, first, environment), 0);
                copy_rows(c, stream, position + 1, n, after(c, first, environment), source.after.step_stride);
                break;
            case Role::step:
                copy_rows(c, stream, position, n, before(c, first, environment), source.before.step_stride);
                clear_rows(c, stream, head, 1);  // the tail is used again, and something that failed may have left something
                break;
            case Role::is_last:
                clear_rows(c, stream, position, n);
                *row(c, stream, head) = is_over;
                break;
            case Role::checksum: break;
        }
    }
    if (starts_episode) write_word(stream, position, of_observation);
    for (int64_t k = 0; k < n; k++) {
        write_word(stream, position + k, of_step);
        write_word(stream, position + k + 1, of_observation);
        store<uint32_t>(word_at(stream, position + k, time_word), static_cast<uint32_t>(target_.retention->now() + first - done + k));
    }
    if (is_over) write_word(stream, head, of_step);
    else store<uint32_t>(word_at(stream, head, of_step), nothing_done);
    have_count(stream, position, head);
    newest.head = head;
    newest.ended = is_over;
    target_.retention->add(stream, first - done, n);
}

void BlockRecorder::copy_rows(int64_t c, int64_t stream, int64_t position, int64_t n, const uint8_t* source, int64_t stride) const {
    const int64_t size = target_.columns[c].row_bytes, cycle = target_.columns[c].cycle, begin = target_.begins[stream];
    while (n > 0) {
        const int64_t together = cycle ? std::min(n, cycle - position % cycle) : position < begin ? std::min(n, begin - position) : n;
        uint8_t* to = row(c, stream, position);
        if (together == 1 || stride != size)
            for (int64_t k = 0; k < together; k++) copy_bytes(to + k * size, source + k * stride, size);
        else
            std::memcpy(to, source, together * size);
        position += together;
        source += together * stride;
        n -= together;
    }
}

void BlockRecorder::clear_rows(int64_t c, int64_t stream, int64_t position, int64_t n) const {
    copy_rows(c, stream, position, n, zeros_.data(), 0);
}

// Write the rows of a stack's earlier frames, each an episode of its own, as far as there is room.
void BlockRecorder::commit_prefix(int64_t environment, int64_t step) {
    const int64_t stream = first_stream + environment, frames = target_.frame_stack - 1;
    const Stream& newest = target_.table[stream];
    Prefix& prefix = prefixes_[stream];
    if (prefix.rows == 0) {
        prefix.rows = prefix_rows_of(newest.head);
        end_newest(stream);
    }
    std::vector<const uint8_t*> observations(target_.columns.size());
    for (; prefix.written < prefix.rows && newest.head + 1 < target_.limits[stream]; prefix.written++) {
        const int64_t frame = prefix.written - (prefix.rows - frames);  // below 0 it is what fills up an episode's first stack
        for (int64_t c : of_word_[of_observation]) {
            const uint8_t* now = before(c, step, environment);
            const uint8_t* first = sources[c].is_stacked ? oldest(c, now) : now;
            const bool is_given = sources[c].is_stacked && frame >= 0;
            observations[c] = is_given ? first + frame * target_.columns[c].row_bytes : target_.fills_zeros ? zeros_.data() : first;
        }
        commit_row_alone(stream, observations, prefix.written == 0);
    }
}

// Write a row of a prefix after the newest: an episode of its own, truncated.
void BlockRecorder::commit_row_alone(int64_t stream, const std::vector<const uint8_t*>& observations, bool terminated) {
    Stream& newest = target_.table[stream];
    const int64_t position = newest.head + 1;
    for (int64_t c = 0; c < static_cast<int64_t>(target_.columns.size()); c++) {
        const Role role = target_.columns[c].role;
        if (role == Role::observation) copy_rows(c, stream, position, 1, observations[c], 0);
        else if (role != Role::checksum) clear_rows(c, stream, position, 1);
        if (role == Role::is_last) *row(c, stream, position) = 1;
    }
    *row(target_.terminated, stream, position) = terminated;
    *row(target_.truncated, stream, position) = 1;
    write_word(stream, position, of_observation);
    write_word(stream, position, of_step);
    note_start(stream, position, -1);
    have_count(stream, position, position);
    newest.head = position;
    newest.ended = 1;
}

// Make the newest row the last of its episode, if that runs.
void BlockRecorder::end_newest(int64_t stream) {
    Stream& newest = target_.table[stream];
    if (newest.head < 0 || newest.ended) return;
    for (int64_t c : of_word_[of_step])  // a kill may have left something of a step that never was
        clear_rows(c, stream, newest.head, 1);
    for (int64_t c : of_word_[of_step])
        if (target_.columns[c].role == Role::is_last) *row(c, stream, newest.head) = 1;
    write_word(stream, newest.head, of_step);
    newest.ended = 1;
}

int64_t BlockRecorder::cut_off(const int64_t* streams, int64_t n) {
    int64_t running = 0;
    for (int64_t k = 0; k < n; k++) {
        const Stream& newest = target_.table[streams[k]];
        running += newest.head >= 0 && !newest.ended;
        end_newest(streams[k]);
        if (target_.next_step && newest.head >= 0) have_count(streams[k], newest.head, newest.head, true);
    }
    return running;
}

void BlockRecorder::note_start(int64_t stream, int64_t position, int64_t prefix) {
    const bool is_in_order = starts.empty() && prefix < 0;  // behind one that waits, all others wait
    if (!is_in_order || !target_.table[stream].start_episode(position)) starts.push_back(Start{stream, position, prefix});
}

void BlockRecorder::put_newest_stack(int64_t column, int64_t stream, const uint8_t* oldest, bool newest_frame_only) {
    newest_stacks_[column]->put(stream, oldest, newest_frame_only ? NewestStacks::Known::newest_frame : NewestStacks::Known::all);
}

// What is stored of stacks: where an episode goes on from another stack than the last one, as the caller says so, the frames that it had, and
// one more.
void BlockRecorder::remember_stacks(int64_t environment, int64_t first, int64_t last, bool starts_episode) {
    const int64_t stream = first_stream + environment, frames = target_.frame_stack;
    for (int64_t c = 0; c < static_cast<int64_t>(sources.size()); c++) {
        if (!newest_stacks_[c]) continue;
        NewestStacks& newest = *newest_stacks_[c];
        if (!sources[c].is_stacked) {
            newest.forget(stream);
        } else if (newest.known(stream) == NewestStacks::Known::all || starts_episode) {
            if (starts_episode) newest.put(stream, oldest(c, before(c, first, environment)), NewestStacks::Known::all);
            for (int64_t t = std::max(first, last + 1 - frames); t <= last; t++) newest.roll(stream, after(c, t, environment));
        } else if (newest.known(stream) == NewestStacks::Known::newest_frame) {
            newest.put(stream, oldest(c, after(c, last, environment)), NewestStacks::Known::all);
        }
    }
}

void BlockRecorder::forget() {
    for (int64_t stream = 0; stream < target_.streams; stream++) {
        if (prefixes_[stream].written) {
            const int64_t newest = target_.table[stream].head;
            *row(target_.terminated, stream, newest) = *row(target_.truncated, stream, newest) = 0;
            write_word(stream, newest, of_step);
            if (target_.next_step) have_count(stream, newest, newest, true);
        }
        prefixes_[stream].rows = prefixes_[stream].written = 0;
        for (const auto& stacks : newest_stacks_)
            if (stacks) stacks->forget(stream);
    }
}

// Return one word of a row's checksum, of what is stored: another thread may change what was given.
uint32_t BlockRecorder::checksum(int64_t stream, int64_t position, int64_t word) const {
    uint32_t crc = row_seed(target_.salt, stream, position, word);
    const int64_t size = word_bytes_[word];
    if (size <= narrow) {
        uint8_t together[narrow + 8];
        int64_t at = 0;
        for (int64_t c : of_word_[word]) {
            copy_bytes(together + at, row(c, stream, position), target_.columns[c].row_bytes);
            at += target_.columns[c].row_bytes;
        }
        std::memset(together + at, 0, 8);
        crc = crc32c(crc, together, (size + 7) / 8 * 8);
    } else {
        for (int64_t c : of_word_[word]) crc = crc32c(crc, row(c, stream, position), target_.columns[c].row_bytes);
        crc = pad(crc, size);
    }
    return crc;
}

uint8_t* BlockRecorder::word_at(int64_t stream, int64_t position, int64_t word) const {
    return row(checksum_column_, stream, position) + 4 * word;
}

void BlockRecorder::write_word(int64_t stream, int64_t position, int64_t word) const {
    store<uint32_t>(word_at(stream, position, word), checksum(stream, position, word));
}

// Return whether the next step may be a reset, in next-step mode: the newest row is the last of an episode that was not cut off, and no reset
// came since. The word with the segment's length tells, so that a kill does not change it.
bool BlockRecorder::awaits_reset(int64_t stream) const {
    const Stream& newest = target_.table[stream];
    return newest.ended && !is_no_reset(*length_of(stream, newest.head).word);
}

// Have rows up to a position count, with one aligned store for each segment, one after the other. `no_reset` tells that no reset step can
// follow the last of them.
void BlockRecorder::have_count(int64_t stream, int64_t first, int64_t last, bool no_reset) const {
    const int64_t rows = target_.segment_rows;
    for (int64_t segment = first / rows; segment <= last / rows; segment++) {
        const LengthPlace& length = length_of(stream, segment * rows);
        store_release(length.word, length_word(length.seed, std::min(last - segment * rows + 1, rows), no_reset));
    }
}

const LengthPlace& BlockRecorder::length_of(int64_t stream, int64_t position) const {
    return target_.lengths[2 * stream + (position >= target_.begins[stream])];
}

}  // namespace diskbuffer
