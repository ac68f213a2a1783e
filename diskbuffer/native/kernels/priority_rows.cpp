#include "priority_rows.hpp"

#include <algorithm>
#include <memory>

#include "lookup.hpp"

namespace diskbuffer {

namespace {

bool same(const Segment& one, const Segment& other) { return one.first == other.first && one.number == other.number; }

}  // namespace

std::vector<int64_t> PriorityRows::drop_gone(const Index& index, const std::vector<int64_t>& changed, SumTree& weights) {
    std::vector<int64_t> numbers;
    for (const int64_t number : changed) {
        const Stream& stream = index.stream(number);
        Known& known = streams_[number];
        std::vector<Segment>& segments = known.segments;
        const int64_t first = stream.segments != 0 ? stream.segment_list[0].first : stream.low;
        const auto before = [](const Segment& segment, int64_t position) { return segment.first < position; };
        auto left = std::lower_bound(segments.begin(), segments.end(), first, before);
        const int64_t n = segments.end() - left;
        const bool goes_on = n <= stream.segments && (n == 0 || (same(*left, stream.segment_list[0]) && same(segments.back(), stream.segment_list[n - 1])));
        if (!goes_on || stream.head < known.head) {  // it is another store's, in the place of one that is gone
            left = segments.end();
            known.next = 0;
        }
        for (auto gone = segments.begin(); gone != left; ++gone) {
            weights.clear(place_of(*gone) * index.segment_rows, index.segment_rows);
            taken_[place_of(*gone)] = -1;
            numbers.push_back(gone->number);
        }
        segments.erase(segments.begin(), left);
        for (const Segment& segment : segments) {
            if (segment.first >= stream.floor || stream.floor <= known.floor) break;
            if (segment.first + index.segment_rows > known.floor)
                weights.clear(place_of(segment) * index.segment_rows, std::min(index.segment_rows, stream.floor - segment.first));
        }
        known.floor = stream.floor;
        known.head = stream.head;
    }
    return numbers;
}

int64_t PriorityRows::add_segments(const Index& index, const std::vector<int64_t>& changed) {
    for (const int64_t number : changed) {
        const Stream& stream = index.stream(number);
        std::vector<Segment>& segments = streams_[number].segments;
        for (int64_t at = static_cast<int64_t>(segments.size()); at < stream.segments; at++) {
            const Segment& segment = stream.segment_list[at];
            const int64_t place = place_of(segment);
            if (place >= static_cast<int64_t>(owners_.size())) owners_.resize(place + 1), taken_.resize(place + 1, -1);
            if (taken_[place] >= 0 && taken_[place] != segment.number) return -1;
            taken_[place] = segment.number;
            owners_[place] = {number, segment.first};
            segments.push_back(segment);
        }
    }
    return static_cast<int64_t>(owners_.size());
}

void PriorityRows::read_new(const Index& index, const std::vector<int64_t>& changed, float* const* columns, int64_t n_columns, float fresh,
                            std::vector<int64_t>& rows, std::vector<float>& priorities, std::vector<int64_t>& missing) {
    for (const int64_t number : changed) {
        const Stream& stream = index.stream(number);
        Known& known = streams_[number];
        int64_t position = std::max(known.next, stream.floor);
        // A sequence that ends at the newest row may be an episode's last: that is known when the episode has ended.
        const int64_t until = stream.head - length_ + (period_ == 1 ? 1 : stream.ended);
        while (position < until) {
            if (rows.size() >= MOST) return;
            const int64_t at = segment_at(stream, position, index.segment_rows);
            const Segment& segment = stream.segment_list[at];
            const int64_t end = at + 1 < stream.segments ? stream.segment_list[at + 1].first : segment.first + index.segment_rows;
            const int64_t n = std::min(until, end) - position, offset = position - segment.first;
            const std::unique_ptr<bool[]> is_start(new bool[n]);
            find_starts(stream, position, length_, period_, is_start.get(), n);
            if (std::find(is_start.get(), is_start.get() + n, true) != is_start.get() + n) {  // a column with nothing in it is not made
                float* column = place_of(segment) < n_columns ? columns[place_of(segment)] : nullptr;
                if (column == nullptr) {
                    missing.push_back(segment.number);
                    break;
                }
                for (int64_t i = 0; i < n; i++) {
                    if (!is_start[i]) continue;
                    float& priority = column[offset + i];
                    if (!(priority > 0.0F && priority < 1e31F)) priority = fresh;
                    rows.push_back(place_of(segment) * index.segment_rows + offset + i);
                    priorities.push_back(priority);
                }
            }
            known.next = position += n;
        }
    }
}

std::vector<int64_t> PriorityRows::segments() const {
    std::vector<int64_t> numbers;
    for (const Known& known : streams_)
        for (const Segment& segment : known.segments) numbers.push_back(segment.number);
    return numbers;
}

}  // namespace diskbuffer
