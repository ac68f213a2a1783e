// Which rows of an index a sampler of priorities has in its sum tree.
#pragma once

#include <cstdint>
#include <vector>

#include "drawing.hpp"
#include "index.hpp"
#include "sum_tree.hpp"

namespace diskbuffer {

class PriorityRows {
  public:
    // Steps have priorities from which on there are `length` steps of their episode, that are a multiple of `period` after its first,
    // or end with it. Segments have `places` in the tree, a power of two, which their numbers go through again and again; with 0, a
    // segment's place is its number.
    PriorityRows(int64_t streams, int64_t length, int64_t period, int64_t places)
        : length_(length), period_(period), places_(places), streams_(streams) {}

    // Take what is gone of changed streams out of the tree; return the numbers of segments that are gone.
    std::vector<int64_t> drop_gone(const Index& index, const std::vector<int64_t>& changed, SumTree& weights);

    // Note the segments that changed streams have got; return one more than the largest place of any, -1 where two have the same.
    int64_t add_segments(const Index& index, const std::vector<int64_t>& changed);

    // Read which new rows of changed streams start sequences, up to MOST or so, and their priorities, in a column whose segments lie at
    // `columns`; `fresh` is given to those that have none. Segments whose address is 0, and must be mapped first, are added to `missing`.
    void read_new(const Index& index, const std::vector<int64_t>& changed, float* const* columns, int64_t n_columns, float fresh,
                  std::vector<int64_t>& rows, std::vector<float>& priorities, std::vector<int64_t>& missing);

    const std::vector<Owner>& owners() const { return owners_; }

    std::vector<int64_t> segments() const;

    // Return where a segment is in the tree.
    int64_t place_of(const Segment& segment) const { return segment.number & (places_ - 1); }

  private:
    static constexpr size_t MOST = 1 << 18;

    struct Known {
        std::vector<Segment> segments;
        int64_t head = -2, floor = 0, next = 0;  // of which the last is the first row that was not read
    };

    int64_t length_, period_, places_;
    std::vector<Known> streams_;
    std::vector<Owner> owners_;  // by place
    std::vector<int64_t> taken_;  // the number of the segment at each place, -1 where there is none
};

}  // namespace diskbuffer
