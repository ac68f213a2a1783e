#include "index.hpp"

#include <algorithm>

#include "lookup.hpp"

namespace diskbuffer {

Index::Index(Stream* streams, int64_t n, int64_t segment_rows, int64_t lanes, int64_t context)
    : segment_rows(segment_rows), lanes(lanes), context(context), streams_(streams), n_(n), logs_(n),
      block_changed_((n + BLOCK - 1) / BLOCK), steps_(n), episodes_(n) {
    for (int64_t stream = 0; stream < n; stream++) {
        streams[stream].head = -1;
        streams[stream].own = stream;
    }
}

int64_t Index::bytes() const {
    int64_t bytes = n_ * static_cast<int64_t>(sizeof(Stream) + sizeof(Logs)) + steps_.bytes() + episodes_.bytes();
    for (const Logs& logs : logs_) bytes += logs.starts.bytes() + logs.segments.bytes() + logs.leads.bytes();
    return bytes;
}

void Index::note(int64_t number) noexcept {
    Stream& stream = streams_[number];
    const Logs& logs = logs_[number];
    stream.episodes = logs.starts.size();
    stream.starts = logs.starts.begin();
    stream.segments = logs.segments.size();
    stream.segment_list = logs.segments.begin();
    stream.lead_ins = logs.leads.size();
    stream.lead_places = logs.leads.begin();
    mark(number);
}

void Index::raise_floor(int64_t number) {
    Stream& stream = streams_[number];
    Logs& logs = logs_[number];
    while (logs.leads.size() != 0 && logs.leads.begin()->episode <= stream.low) logs.leads.drop(1);
    int64_t whole = stream.low;
    if (logs.leads.size() != 0) {
        const LeadIn& lead = *logs.leads.begin();
        if (std::max(lead.first, lead.episode - context) < stream.low) whole = lead.episode + 1;  // it is gone in part: so is its first stack
    }
    const int64_t *starts = logs.starts.begin(), *end = logs.starts.end();
    stream.floor = stream.low;
    if (starts != end) {
        int64_t floor = stream.low + context;
        const int64_t* first_whole = std::lower_bound(starts, end, whole);  // the first episode that is there whole
        if (first_whole != end) floor = std::min(floor, *first_whole);
        stream.floor = floor = std::max(floor, stream.begin);
        const int64_t gone = std::upper_bound(starts, end, floor) - starts - 1;
        if (gone > 0) {
            logs.starts.drop(gone);
            stream.steps_offset -= gone;
        }
    }
    note(number);
}

void Index::add_starts(const int64_t* streams, const int64_t* positions, int64_t n) {
    for (int64_t i = 0; i < n;) {
        const int64_t stream = streams[i], first = positions[i];
        for (; i < n && streams[i] == stream; i++) logs_[stream].starts.append(positions[i]);
        if (first <= streams_[stream].floor)
            raise_floor(stream);
        else
            note(stream);
    }
}

void Index::add_segments(const int64_t* streams, const Segment* segments, int64_t n) {
    for (int64_t i = 0; i < n;) {
        const int64_t stream = streams[i];
        Log<Segment>& log = logs_[stream].segments;
        if (log.size() == 0) streams_[stream].low = segments[i].first;
        for (; i < n && streams[i] == stream; i++) log.append(segments[i]);
        note(stream);
    }
}

void Index::add_leads(const int64_t* streams, const LeadIn* leads, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        logs_[streams[i]].leads.append(leads[i]);
        note(streams[i]);
    }
}

void Index::advance(const int64_t* streams, const int64_t* heads, const int64_t* ended, int64_t n) noexcept {
    for (int64_t i = 0; i < n; i++) {
        streams_[streams[i]].head = heads[i];
        streams_[streams[i]].ended = ended[i];
        mark(streams[i]);
    }
}

void Index::set_first_steps(const int64_t* streams, const int64_t* steps, int64_t n) noexcept {
    for (int64_t i = 0; i < n; i++) {
        streams_[streams[i]].steps_offset = steps[i] - streams_[streams[i]].low;
        raise_floor(streams[i]);
    }
}

void Index::drop_segments(const int64_t* streams, const int64_t* counts, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        if (counts[i] != 0) {
            Log<Segment>& log = logs_[streams[i]].segments;
            const int64_t after_last = std::min(log.begin()[counts[i] - 1].first + segment_rows, streams_[streams[i]].head + 1);
            log.drop(counts[i]);
            streams_[streams[i]].low = log.size() != 0 ? log.begin()->first : after_last;
        }
        raise_floor(streams[i]);
    }
}

int64_t Index::drop_below(const int64_t* positions) {
    int64_t dropped = 0;
    for (int64_t number = 0; number < n_; number++) {
        const Log<Segment>& log = logs_[number].segments;
        const int64_t position = positions[number];
        if (log.size() == 0 || position <= streams_[number].low) continue;
        if (position > streams_[number].head) {
            dropped += log.size();
            clear(number, 1);
            continue;
        }
        int64_t gone = 0;
        while (gone + 1 < log.size() && log.begin()[gone + 1].first <= position) gone++;
        if (gone != 0) drop_segments(&number, &gone, 1);
        dropped += gone;
    }
    return dropped;
}

bool Index::begin_at(int64_t stream, int64_t position) {
    if (position <= streams_[stream].begin) return false;
    streams_[stream].begin = position;
    raise_floor(stream);
    return true;
}

void Index::take(int64_t first, const Index& other, int64_t since, int64_t store, const int64_t* numbers) {
    for (const int64_t own : other.changed_since(since)) {
        const int64_t number = first + own;
        Logs& logs = logs_[number] = other.logs_[own];
        Log<Segment> renumbered;
        for (const Segment& segment : logs.segments) renumbered.append({segment.first, numbers[segment.number]});
        logs.segments = renumbered;
        streams_[number] = other.streams_[own];
        streams_[number].store = store;
        streams_[number].own = own;
        note(number);
    }
}

void Index::clear(int64_t first, int64_t n) {
    for (int64_t number = first; number < first + n; number++) {
        logs_[number] = Logs();
        const int64_t store = streams_[number].store, own = streams_[number].own;
        streams_[number] = Stream();
        streams_[number].head = -1;
        streams_[number].store = store;
        streams_[number].own = own;
        note(number);
    }
}

std::vector<int64_t> Index::changed_since(int64_t version) const {
    std::vector<int64_t> changed;
    const bool all = all_changed_ > version;
    for (int64_t first = 0; first < n_; first += BLOCK) {
        if (!all && block_changed_[first / BLOCK] <= version) continue;
        for (int64_t stream = first; stream < std::min(n_, first + BLOCK); stream++)
            if (all || streams_[stream].changed > version) changed.push_back(stream);
    }
    return changed;
}

void Index::refresh() {
    if (counted_ == version_) return;
    if (n_ == 1 || all_changed_ > counted_ || counted_ < 0) {
        std::vector<int64_t> steps(n_), episodes(n_);
        for (int64_t stream = 0; stream < n_; stream++) {
            steps[stream] = steps_of(streams_[stream]);
            episodes[stream] = streams_[stream].episodes;
        }
        steps_.assign(steps.data());
        episodes_.assign(episodes.data());
    } else {
        const std::vector<int64_t> changed = changed_since(counted_);
        std::vector<int64_t> steps, episodes;
        for (const int64_t stream : changed) {
            steps.push_back(steps_of(streams_[stream]));
            episodes.push_back(streams_[stream].episodes);
        }
        const int64_t n = static_cast<int64_t>(changed.size());
        steps_.set(changed.data(), steps.data(), n);
        episodes_.set(changed.data(), episodes.data(), n);
    }
    counted_ = version_;
}

}  // namespace diskbuffer
