#include "lookup.hpp"

#include <vector>

namespace diskbuffer {

namespace {

// How many steps, or episodes, there are up to the end of each stream.
class Ends {
  public:
    template <typename Count>
    Ends(Table table, Count count) : ends_(table.n) {
        int64_t total = 0;
        for (int64_t stream = 0; stream < table.n; stream++) ends_[stream] = total += count(table.streams[stream]);
    }

    int64_t stream_of(int64_t ordinal) const { return std::upper_bound(ends_.begin(), ends_.end(), ordinal) - ends_.begin(); }

    int64_t before(int64_t stream) const { return stream == 0 ? 0 : ends_[stream - 1]; }

    int64_t of(int64_t stream) const { return ends_[stream] - before(stream); }

    int64_t end(int64_t stream) const { return ends_[stream]; }

  private:
    std::vector<int64_t> ends_;  // 8 bytes a stream
};

// A stream's steps are numbered by `position - episode`, as each episode before has one row that is no step.
int64_t first_step(const Stream& stream, int64_t episode) { return stream.starts[episode] - episode; }

// Guess the episode of a step from the mean length of the stream's episodes.
int64_t guess_episode(const Stream& stream, int64_t step) {
    const int64_t first = stream.starts[0], steps = std::max<int64_t>(stream.head - stream.episodes - first, 1);
    const double guess = static_cast<double>(step - first) / static_cast<double>(steps) * static_cast<double>(stream.episodes);
    const double last = static_cast<double>(stream.episodes - 1);
    return static_cast<int64_t>(std::min(std::max(guess, 0.0), last));
}

// Find the last episode whose first step is not after a step, in a range that is doubled from a guess on, and then halved.
int64_t episode_of_step(const Stream& stream, int64_t step, int64_t guess) {
    int64_t low = 0, high = stream.episodes, reach = 8;
    if (first_step(stream, guess) <= step) {
        low = guess;
        while (low + reach < high && first_step(stream, low + reach) <= step) {
            low += reach;
            reach *= 2;
        }
        high = std::min(high, low + reach);
    } else {
        high = guess;
        while (high - reach > low && first_step(stream, high - reach) > step) {
            high -= reach;
            reach *= 2;
        }
        low = std::max(low, high - reach);
    }
    while (high - low > 1) {
        const int64_t middle = low + (high - low) / 2;
        (first_step(stream, middle) <= step ? low : high) = middle;
    }
    return low;
}

void locate(Table table, const Ends& ends, const int64_t* ordinals, int64_t n, Located located) {
    // First guess all episodes, and load what is there: all at once, where one search after the other would wait for memory each
    // time.
    for (int64_t i = 0; i < n; i++) {
        const int64_t number = ends.stream_of(ordinals[i]);
        const Stream& stream = table.streams[number];
        const int64_t step = ordinals[i] - ends.before(number) + stream.floor;  // its position, if no episode had ended since `floor`
        located.streams[i] = number;
        located.positions[i] = step;
        located.starts[i] = guess_episode(stream, step);
        located.lasts[i] = stream.starts[located.starts[i]];
    }
    for (int64_t i = 0; i < n; i++) {
        const Stream& stream = table.streams[located.streams[i]];
        const int64_t step = located.positions[i], episode = episode_of_step(stream, step, located.starts[i]);
        located.positions[i] = step + episode;
        located.starts[i] = stream.starts[episode];
        located.lasts[i] = last_row(stream, episode);
    }
}

}  // namespace

int64_t episode_at(const Stream& stream, int64_t position) noexcept {
    int64_t low = 0, high = stream.episodes;
    while (high - low > 1) {
        const int64_t middle = low + (high - low) / 2;
        (stream.starts[middle] <= position ? low : high) = middle;
    }
    return low;
}

int64_t stack_prefix(const Stream& stream, int64_t start) noexcept {
    const StackPrefix* end = stream.prefix_places + stream.stack_prefixes;
    const auto before = [](const StackPrefix& prefix, int64_t episode) { return prefix.episode < episode; };
    const StackPrefix* prefix = std::lower_bound(stream.prefix_places, end, start, before);
    return prefix != end && prefix->episode == start ? prefix->first : start;
}

void locate(Table table, const int64_t* ordinals, int64_t n, Located located) noexcept {
    locate(table, Ends(table, steps_of), ordinals, n, located);
}

int64_t locate_recent(Table table, const int64_t* streams, const int64_t* ages, int64_t n, Located located) noexcept {
    const Ends ends(table, steps_of);
    std::vector<int64_t> ordinals(n);
    for (int64_t i = 0; i < n; i++) {
        const int64_t stream = streams[i];
        if (stream < 0 || stream >= table.n || ages[i] < 0 || ages[i] >= ends.of(stream)) return i;
        ordinals[i] = ends.end(stream) - 1 - ages[i];
    }
    locate(table, ends, ordinals.data(), n, located);
    return -1;
}

void locate_episodes(Table table, const int64_t* ordinals, int64_t n, Located located) noexcept {
    const Ends ends(table, [](const Stream& stream) { return stream.episodes; });
    for (int64_t i = 0; i < n; i++) {
        const int64_t number = ends.stream_of(ordinals[i]), episode = ordinals[i] - ends.before(number);
        const Stream& stream = table.streams[number];
        located.streams[i] = number;
        located.positions[i] = std::max(stream.starts[episode], stream.floor);
        located.starts[i] = stream.starts[episode];
        located.lasts[i] = last_row(stream, episode);
    }
}

void find_episodes(Table table, const int64_t* streams, const int64_t* positions, int64_t n, int64_t* starts, int64_t* lasts) noexcept {
    for (int64_t i = 0; i < n; i++) {
        starts[i] = lasts[i] = -1;
        if (streams[i] < 0 || streams[i] >= table.n) continue;
        const Stream& stream = table.streams[streams[i]];
        if (positions[i] < stream.floor || positions[i] >= stream.head) continue;
        const int64_t episode = episode_at(stream, positions[i]), last = last_row(stream, episode);
        if (last == positions[i]) continue;  // the last row of an episode is no step
        starts[i] = stream.starts[episode];
        lasts[i] = last;
    }
}

void episodes_along(Table table, const int64_t* streams, const int64_t* positions, int64_t n, int64_t length, int64_t* firsts,
                    int64_t* lasts) noexcept {
    for (int64_t i = 0; i < n; i++) {
        const Stream& stream = table.streams[streams[i]];
        int64_t episode = episode_at(stream, positions[i]);
        for (int64_t t = 0; t < length; t++) {
            while (episode + 1 < stream.episodes && stream.starts[episode + 1] <= positions[i] + t) episode++;
            const bool running = episode + 1 == stream.episodes && stream.ended == 0;
            firsts[i * length + t] = stream.starts[episode];
            lasts[i * length + t] = running ? -1 : last_row(stream, episode);
        }
    }
}

void find_rows(Table table, const int64_t* streams, const int64_t* positions, int64_t n, int64_t segment_rows, int64_t* rows) noexcept {
    for (int64_t i = 0; i < n; i++) {
        const bool is_stream = streams[i] >= 0 && streams[i] < table.n && positions[i] >= 0;
        const int64_t slot = is_stream ? slot_of(table.streams[streams[i]], positions[i] / segment_rows, segment_rows) : -1;
        rows[i] = slot < 0 ? -1 : slot * segment_rows + positions[i] % segment_rows;
    }
}

}  // namespace diskbuffer
