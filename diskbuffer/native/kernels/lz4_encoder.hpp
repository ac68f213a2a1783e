// An encoder of LZ4 blocks (github.com/lz4/lz4, doc/lz4_Block_format.md) for consecutive pictures, which knows where such resemble each
// other.
//
// LZ4HC looks for what comes again by walking chains of all positions that begin with the same four bytes. In pictures of few colours
// such chains are long, and nearly all of their positions are worthless. What comes again in a frame lies at few distances: one pixel
// (areas of one colour), one line of pixels, one frame, and whatever distances the last matches had. These are tried first; chains, of
// six bytes and few steps, find the rest. The parse is LZ4HC's idea: a match is written only after a look at its end for a longer one
// that begins inside of it. `python -m bench.packers` compares both.
#pragma once

#include <cstdint>

namespace diskbuffer {

class PictureEncoder {
  public:
    // Compress `size` bytes to at most `room`; return how many, or 0 where they do not fit. `pixel`, `line` and `frame` are the distances
    // that are tried first, in bytes.
    int64_t encode(const uint8_t* source, int64_t size, uint8_t* target, int64_t room, const int64_t (&pixel_line_frame)[3]) noexcept;

  private:
    static constexpr int HASH_BITS = 14;
    static constexpr int64_t WINDOW = 65535;      // the largest distance that LZ4 can express
    static constexpr int FIXED = 3, RECENT = 2;   // distances that are always tried; those of the last matches

    struct Match {
        int64_t begin, length, distance;  // a distance of 0 is no match
    };

    static uint64_t hash(const uint8_t* at);
    void insert(int64_t position);
    Match find(int64_t position, int64_t low, int64_t least) const;
    bool write_sequence(int64_t position, const Match& match);
    void write_literals(int64_t count);
    void write_length(int64_t rest);
    void remember(int64_t distance);

    const uint8_t *source_, *end_;        // matches end before `end_`
    uint8_t *target_, *limit_;            // what is written next, and the end of the room
    int64_t written_;                     // bytes of the source that were written
    int64_t distances_[FIXED + RECENT];
    int32_t head_[1 << HASH_BITS];        // the last position of each hash
    uint16_t chain_[WINDOW + 1];          // how far before a position the one before of its hash lies
};

}  // namespace diskbuffer
