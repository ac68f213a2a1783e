// The index: which rows and episodes every stream has, where they lie, and what of that has changed.
#pragma once

#include <cstdint>
#include <vector>

#include "sums.hpp"
#include "table.hpp"

namespace diskbuffer {

// Values in ascending order, appended at the end, and dropped at the front.
template <typename T>
class Log {
  public:
    const T* begin() const { return items_.data() + dropped_; }
    const T* end() const { return items_.data() + items_.size(); }
    int64_t size() const { return static_cast<int64_t>(items_.size() - dropped_); }
    int64_t bytes() const { return static_cast<int64_t>(items_.capacity() * sizeof(T)); }

    void append(const T& value) { items_.push_back(value); }
    void drop(int64_t n) {
        dropped_ += n;
        if (2 * dropped_ <= items_.size()) return;
        items_.erase(items_.begin(), items_.begin() + static_cast<int64_t>(dropped_));
        dropped_ = 0;
        if (4 * items_.size() < items_.capacity()) items_.shrink_to_fit();
    }

  private:
    std::vector<T> items_;
    size_t dropped_ = 0;
};

// How an index changes: `version` grows with each change. Calls need a lock, also those that only look up: they bring sums up to date.
class Index {
  public:
    // `streams` is zeros, and lives as long as the index.
    Index(Stream* streams, int64_t n, int64_t segment_rows, int64_t lanes, int64_t context);

    Table table() const { return {streams_, n_}; }
    const Stream& stream(int64_t number) const { return streams_[number]; }
    int64_t bytes() const;

    const int64_t segment_rows, lanes;  // of a full segment; of a file
    const int64_t context;              // rows before a step that are needed to sample it

    // Changing: arrays have an entry for each stream that is named, or several for one, in ascending order.

    void add_starts(const int64_t* streams, const int64_t* positions, int64_t n);
    void add_segments(const int64_t* streams, const Segment* segments, int64_t n);
    void add_leads(const int64_t* streams, const LeadIn* leads, int64_t n);
    void advance(const int64_t* streams, const int64_t* heads, const int64_t* ended, int64_t n) noexcept;
    // Have streams count from so many steps on, at their oldest row.
    void set_first_steps(const int64_t* streams, const int64_t* steps, int64_t n) noexcept;
    // Forget the oldest segments of each stream; there are so many.
    void drop_segments(const int64_t* streams, const int64_t* counts, int64_t n);
    // Forget the segments of all streams without rows at a position of each or behind it; one that has no others is empty. Return how many.
    int64_t drop_below(const int64_t* positions);
    // Have no row before a position count; return whether any did.
    bool begin_at(int64_t stream, int64_t position);
    // Take the streams of another index that changed after a version of it, as those from `first` on.
    void take(int64_t first, const Index& other, int64_t since, int64_t store, const int64_t* numbers);
    // Empty streams.
    void clear(int64_t first, int64_t n);

    // What has changed.

    // Note that heads were written to the table by others.
    void advanced(const int64_t* streams, int64_t n) noexcept {
        for (int64_t i = 0; i < n; i++) mark(streams[i]);
    }
    void all_advanced() noexcept { all_changed_ = ++version_; }
    int64_t version() const { return version_; }
    // Return the streams that changed after a version, in ascending order.
    std::vector<int64_t> changed_since(int64_t version) const;

    // How many steps can be sampled, and episodes, by stream.
    const Sums& steps() { return refresh(), steps_; }
    const Sums& episodes() { return refresh(), episodes_; }

  private:
    static constexpr int64_t BLOCK = 256;  // streams that are looked through for changes where one has changed

    struct Logs {
        Log<int64_t> starts;
        Log<Segment> segments;
        Log<LeadIn> leads;
    };

    void mark(int64_t stream) noexcept { streams_[stream].changed = block_changed_[stream / BLOCK] = ++version_; }
    void note(int64_t stream) noexcept;  // where the logs are, and how long
    void raise_floor(int64_t stream);    // to the oldest step whose context is there; episodes before it are forgotten
    void refresh();

    Stream* streams_;
    int64_t n_;
    std::vector<Logs> logs_;
    int64_t version_ = 0, all_changed_ = 0, counted_ = -1;  // in which the sums were counted
    std::vector<int64_t> block_changed_;
    Sums steps_, episodes_;
};

}  // namespace diskbuffer
