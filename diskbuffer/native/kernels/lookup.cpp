#include "lookup.hpp"

#include "memory.hpp"

namespace diskbuffer {

namespace {

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

}  // namespace

int64_t episode_at(const Stream& stream, int64_t position) noexcept {
    int64_t low = 0, high = stream.episodes;
    while (high - low > 1) {
        const int64_t middle = low + (high - low) / 2;
        (stream.starts[middle] <= position ? low : high) = middle;
    }
    return low;
}

int64_t lead_in(const Stream& stream, int64_t start) noexcept {
    const LeadIn* end = stream.lead_places + stream.lead_ins;
    const auto before = [](const LeadIn& lead, int64_t episode) { return lead.episode < episode; };
    const LeadIn* lead = std::lower_bound(stream.lead_places, end, start, before);
    return lead != end && lead->episode == start ? lead->first : start;
}

void locate_in(Table table, const int64_t* streams, const int64_t* places, int64_t n, Located located) noexcept {
    // First all streams, then guesses of all episodes, and last these are found: what each reads comes to the caches meanwhile, where
    // one search after the other would wait for memory each time.
    for (int64_t i = 0; i < n; i++) {
        prefetch(table.streams + streams[i]);
        located.streams[i] = streams[i];
        located.positions[i] = places[i];
    }
    for (int64_t i = 0; i < n; i++) {
        const Stream& stream = table.streams[located.streams[i]];
        const int64_t step = located.positions[i] + stream.floor;  // its position, if no episode had ended since `floor`
        located.positions[i] = step;
        located.starts[i] = guess_episode(stream, step);
        prefetch(stream.starts + located.starts[i]);
    }
    for (int64_t i = 0; i < n; i++) {
        const Stream& stream = table.streams[located.streams[i]];
        const int64_t step = located.positions[i], episode = episode_of_step(stream, step, located.starts[i]);
        located.positions[i] = step + episode;
        located.starts[i] = stream.starts[episode];
        located.lasts[i] = last_row(stream, episode);
    }
}

void locate(Index& index, const int64_t* ordinals, int64_t n, Located located) {
    const Sums& steps = index.steps();
    for (int64_t i = 0; i < n; i++) {
        const int64_t ordinal = ordinals[i], stream = steps.find(ordinal);
        located.streams[i] = stream;
        located.lasts[i] = ordinal - steps.before(stream);
    }
    locate_in(index.table(), located.streams, located.lasts, n, located);
}

int64_t locate_recent(Table table, const int64_t* streams, const int64_t* ages, int64_t n, Located located) noexcept {
    for (int64_t i = 0; i < n; i++) {
        const int64_t number = streams[i];
        if (number < 0 || number >= table.n) return i;
        const int64_t steps = steps_of(table.streams[number]);
        if (ages[i] < 0 || ages[i] >= steps) return i;
        located.lasts[i] = steps - 1 - ages[i];
    }
    locate_in(table, streams, located.lasts, n, located);
    return -1;
}

void locate_episodes(Index& index, const int64_t* ordinals, int64_t n, Located located) {
    const Sums& episodes = index.episodes();
    for (int64_t i = 0; i < n; i++) {
        const int64_t number = episodes.find(ordinals[i]), episode = ordinals[i] - episodes.before(number);
        const Stream& stream = index.stream(number);
        located.streams[i] = number;
        located.positions[i] = std::max(stream.starts[episode], stream.floor);
        located.starts[i] = stream.starts[episode];
        located.lasts[i] = last_row(stream, episode);
    }
}

int64_t steps_before(const Stream& stream, int64_t position) noexcept {
    return position - (stream.episodes == 0 ? 0 : episode_at(stream, position)) + stream.steps_offset;
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
    for (int64_t i = 0; i < n; i++) rows[i] = row_of(table.streams[streams[i]], positions[i], segment_rows);
}

}  // namespace diskbuffer
