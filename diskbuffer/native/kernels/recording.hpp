// Blocks of steps on their way into rows: what each step is is decided for the whole block, and then rows are committed.
//
// A block is `steps` steps of `environments` streams; of each column it has the address of the first value, and how far the next step's and
// the next environment's lie from it. Of stacks of frames the address is that of the newest frame, behind the older ones.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "retention.hpp"
#include "table.hpp"

namespace diskbuffer {

enum class Role : int64_t { observation, step, is_last, checksum };

// A column as it is recorded.
struct RecordedColumn {
    Role role;
    int64_t row_bytes;
    int64_t number_bytes;  // of a floating-point number, 0 where values are others
    int64_t refuses_nonfinite;
    int64_t cycle;  // rows of the tail, after which a place is used again; 0 where rows lie in segments
};
static_assert(sizeof(RecordedColumn) == 5 * sizeof(int64_t));

// Where rows of one column and one stream go: the addresses where the row at position 0 would lie in the older and in the newest of its
// open segments. In the tail both are where the ring begins.
struct Places {
    uint8_t* of_segment[2];
};

// Where a segment's length is, and what its hash begins with.
struct LengthPlace {
    int64_t* word;
    uint64_t seed;
};

// What a store is, and where its rows go; all of it is others' memory.
struct Target {
    std::vector<RecordedColumn> columns;
    int64_t terminated, truncated, reward;  // numbers of columns
    uint64_t salt;       // of rows' checksums
    bool next_step;      // whether environments reset in a step of their own
    bool fills_zeros;    // whether an episode's first stack is filled up with zeros; if not, with its first frame
    int64_t frame_stack;
    Stream* table;              // by stream
    int64_t streams;
    const Places* places;       // by column and stream
    const int64_t* begins;      // by stream: the position from which on rows are in the newest segment
    const int64_t* limits;      // by stream: the position before which rows may be written
    const LengthPlace* lengths;  // by stream: of the older and the newest segment; rows count as these say so
    int64_t segment_rows;        // each segment begins at a multiple of it
    Retention* retention;        // what is to know which steps were added, and when
};

// Where the values of one column lie; `after` are observations after the steps.
struct Source {
    struct Values {
        const uint8_t* first;
        int64_t step_stride, environment_stride;
    };
    Values before, after;
    bool is_stacked;
};

// What a step is.
enum class Kind : uint8_t { reset, goes_on, starts, cuts_off };  // the last: it starts an episode while another runs

struct Decision {
    Kind kind;
    bool has_prefix;  // the frames before its own are no filling: they get rows of their own
};

// An episode that was started, or a row of a stack's prefix, which is one of its own; where the table has no room for it, or not for the prefix.
struct Start {
    int64_t stream, position;
    int64_t prefix;  // where the prefix of its first stack begins, -1 where it has none
};
static_assert(sizeof(Start) == 3 * sizeof(int64_t));

// Why a block was not taken.
enum class Problem : int64_t { none, unknown_stack, nonfinite, does_not_roll };

struct Verdict {
    Problem problem;
    int64_t column, step, environment;
    bool after;  // whether it is about the observation after the step
};

// The newest stack of each stream as it is stored, in a ring of frames, to compare the next one with.
class NewestStacks {
  public:
    NewestStacks(int64_t streams, int64_t frames, int64_t frame_bytes);
    enum class Known : uint8_t { nothing, newest_frame, all };
    Known known(int64_t stream) const { return known_[stream]; }
    void forget(int64_t stream) { known_[stream] = Known::nothing; }
    // Remember a stack, whose first frame is given; only its newest frame counts with `Known::newest_frame`.
    void put(int64_t stream, const uint8_t* oldest, Known known);
    // Remember that a stack has one more frame.
    void roll(int64_t stream, const uint8_t* newest);
    bool is_same(int64_t stream, const uint8_t* oldest, int64_t number_bytes) const;

  private:
    uint8_t* frame(int64_t stream, int64_t n) { return memory_.get() + (stream * frames_ + n) * bytes_; }
    const uint8_t* frame(int64_t stream, int64_t n) const { return memory_.get() + (stream * frames_ + n) * bytes_; }

    int64_t frames_, bytes_;
    std::unique_ptr<uint8_t[]> memory_;
    std::vector<int64_t> oldest_;
    std::vector<Known> known_;
};

class BlockRecorder {
  public:
    explicit BlockRecorder(Target target);

    // The block, for who fills it. `declared` has for each step of each environment whether it starts an episode; null where the values decide.
    std::vector<Source> sources;
    int64_t steps = 0, environments = 0, first_stream = 0;
    const uint8_t* declared = nullptr;

    // Decide what each step is. Nothing is written, whatever is found.
    Verdict decide();
    // Commit the steps before `until`, of all environments, as far as there is room in every one; `done` tells how far that was. With
    // `all_or_none`, none where there is no room for all.
    void commit(int64_t until, bool all_or_none);
    // Return whether the next step of an environment, or what is left of the block, has rows.
    bool has_rows_to_come(int64_t environment) const;
    // Return whether there is nothing left to commit.
    bool is_committed() const { return done == steps; }

    // End the running episodes of streams, and have their next steps start others; return how many there were.
    int64_t cut_off(const int64_t* streams, int64_t n);
    // Remember the newest stack of a stream as it is stored; only its last frame where others may have lost something.
    void put_newest_stack(int64_t column, int64_t stream, const uint8_t* oldest, bool newest_frame_only);
    // Forget all that is known of what was begun and not ended, after an error. A prefix whose episode did not come is none any more.
    void forget();

    int64_t done = 0;            // steps of the block that are committed
    int64_t recorded = 0;        // those of all environments but resets, until whoever counts sets it to 0
    int64_t cut_offs = 0;        // episodes that these cut off, likewise
    std::vector<Start> starts;   // likewise

  private:
    struct Prefix {
        int64_t rows = 0, written = 0;
    };

    // Where values of the block are.
    const uint8_t* before(int64_t c, int64_t step, int64_t environment) const;
    const uint8_t* after(int64_t c, int64_t step, int64_t environment) const;
    const uint8_t* oldest(int64_t c, const uint8_t* newest) const { return newest - (target_.frame_stack - 1) * target_.columns[c].row_bytes; }
    bool ends(int64_t step, int64_t environment) const;
    Decision& decision(int64_t step, int64_t environment) { return decisions_[environment * steps + step]; }

    // Deciding
    Verdict find_nonfinite() const;
    Verdict decide_environment(int64_t environment);
    enum class Same : uint8_t { no, yes, unknown };
    Same is_same(int64_t step, int64_t previous, int64_t environment, int64_t* column) const;
    bool is_idle(int64_t step, int64_t environment) const;
    bool rolls(int64_t c, int64_t step, int64_t environment) const;
    bool is_filled(int64_t c, int64_t step, int64_t environment) const;

    // Committing
    uint8_t* row(int64_t c, int64_t stream, int64_t position) const;
    int64_t prefix_rows_of(int64_t head) const;
    int64_t prefix_left(int64_t environment, int64_t head) const;
    int64_t reach(int64_t environment, int64_t until) const;
    void commit_environment(int64_t environment, int64_t until);
    void commit_run(int64_t environment, int64_t first, int64_t last, bool starts_episode);
    void copy_rows(int64_t c, int64_t stream, int64_t position, int64_t n, const uint8_t* source, int64_t stride) const;
    void clear_rows(int64_t c, int64_t stream, int64_t position, int64_t n) const;
    void commit_prefix(int64_t environment, int64_t step);
    void commit_row_alone(int64_t stream, const std::vector<const uint8_t*>& observations, bool terminated);
    void end_newest(int64_t stream);
    void remember_stacks(int64_t environment, int64_t first, int64_t last, bool starts_episode);
    uint32_t checksum(int64_t stream, int64_t position, int64_t word) const;
    uint8_t* word_at(int64_t stream, int64_t position, int64_t word) const;
    void write_word(int64_t stream, int64_t position, int64_t word) const;
    bool awaits_reset(int64_t stream) const;
    void have_count(int64_t stream, int64_t first, int64_t last, bool no_reset = false) const;
    const LengthPlace& length_of(int64_t stream, int64_t position) const;
    void note_start(int64_t stream, int64_t position, int64_t prefix);

    Target target_;
    std::vector<Prefix> prefixes_;  // by stream: of the episode that is being begun
    std::vector<Decision> decisions_;
    std::vector<std::unique_ptr<NewestStacks>> newest_stacks_;  // by column; null where no stack was seen
    bool has_stacks_ = false;                                   // whether there was any
    std::vector<uint8_t> zeros_;
    std::vector<int64_t> of_word_[2];  // columns whose values a word of a row's checksum covers
    int64_t word_bytes_[2];
    int64_t checksum_column_ = 0;
};

}  // namespace diskbuffer
