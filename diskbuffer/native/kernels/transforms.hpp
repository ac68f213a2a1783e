// Pictures made grey and smaller, in integers: the same on every machine. And stacks of frames, turned.
//
// OpenCV's mean of areas is one of floats, whose rounding it does not promise from one build or processor to the next. Pillow has no
// such filter.
#pragma once

#include <cstddef>
#include <cstdint>

namespace diskbuffer {

struct PictureShape {
    int64_t height, width, channels;

    int64_t size() const { return height * width * channels; }
};

// Pictures, one after the other, and what they become.
struct Pictures {
    const uint8_t* pictures;
    uint8_t* results;
};

// Transform `n` pictures. Picture i may be the same as a known one, which[i], and then has the same result; -1 for none. The known ones
// may be those pictures themselves. `grey` makes one channel of three. Returns how many were not known, -1 where memory is missing.
int64_t transform_pictures(Pictures pictures, Pictures known, const int64_t* which, int64_t n, PictureShape from, PictureShape to,
                           bool grey) noexcept;

// Turn `n` stacks of pictures, (stack, pixels, pixel_bytes), so that each pixel has those of all frames: (pixels, stack, pixel_bytes).
void interleave(const uint8_t* stacks, int64_t n, int64_t stack, int64_t pixels, int64_t pixel_bytes, uint8_t* target) noexcept;

}  // namespace diskbuffer
