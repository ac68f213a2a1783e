#include "transforms.hpp"

#include <algorithm>
#include <cstring>
#include <memory>
#include <new>

#include "memory.hpp"

namespace diskbuffer {

namespace {

template <typename T>
std::unique_ptr<T[]> allocate(int64_t n) {
    return std::unique_ptr<T[]>(new (std::nothrow) T[n]);
}

// Three loops over bytes take twice as long without AVX2.
#define DISKBUFFER_AVX2 __attribute__((target_clones("avx2", "default")))

// The luma of ITU-R BT.601, in 65,536ths.
DISKBUFFER_AVX2 void make_grey(const uint8_t* picture, int64_t pixels, uint8_t* grey) {
    for (int64_t i = 0; i < pixels; i++) {
        const uint32_t red = picture[3 * i], green = picture[3 * i + 1], blue = picture[3 * i + 2];
        grey[i] = static_cast<uint8_t>((red * 19595 + green * 38470 + blue * 7471 + 32768) >> 16);
    }
}

DISKBUFFER_AVX2 void set_row(const uint8_t* row, int64_t values, uint32_t covered, uint32_t* sums) {
    for (int64_t c = 0; c < values; c++) sums[c] = covered * row[c];
}

DISKBUFFER_AVX2 void add_row(const uint8_t* row, int64_t values, uint32_t covered, uint32_t* sums) {
    for (int64_t c = 0; c < values; c++) sums[c] += covered * row[c];
}

// Which pixels of a row a pixel of the result covers, and how much of the first and the last; 0 of the last if that is the first.
struct Span {
    int64_t first, last;
    uint64_t of_first, of_last;
};

// A picture of H x W pixels becomes one of h x w. In units of 1 / h of a pixel, row r is [r * h, r * h + h), and row i of the result
// covers [i * H, i * H + H). So how much it covers of each row is an integer, and these add up to H; of columns alike. A pixel of the
// result is a sum of at most 255 * H * W, divided by H * W.
class Resizer {
  public:
    Resizer(PictureShape from, PictureShape to)
        : from_(from), to_(to), sums_(allocate<uint32_t>(from.width * to.channels)), spans_(allocate<Span>(to.width)) {
        if (!is_allocated()) return;
        for (int64_t j = 0; j < to.width; j++) {
            const int64_t first = j * from.width / to.width, last = ((j + 1) * from.width - 1) / to.width;
            const int64_t of_first = std::min((j + 1) * from.width, (first + 1) * to.width) - j * from.width;
            const int64_t of_last = last > first ? (j + 1) * from.width - last * to.width : 0;
            spans_[j] = {first, last, static_cast<uint64_t>(of_first), static_cast<uint64_t>(of_last)};
        }
        // Sums, and the half that is added to round, are at most 256 * n. For those, this multiplication and shift divide by n
        // exactly: what is too much of `factor`, at most 1, adds less than 1 / n to the result as long as 256 * n * n < 2 ** shift.
        // For n up to `transforms.MOST_PIXELS`, 2 ** 23, the product fits 64 bits.
        const uint64_t n = from.height * from.width;
        while (uint64_t{1} << shift_ <= 256 * n * n) shift_++;
        factor_ = (uint64_t{1} << shift_) / n + 1;
        half_ = n / 2;
    }

    bool is_allocated() const { return sums_ && spans_; }

    // Write the mean of the area that each pixel of the result covers.
    void resize(const uint8_t* picture, uint8_t* result) {
        for (int64_t i = 0; i < to_.height; i++) {
            sum_rows(picture, i);
            uint8_t* row = result + i * to_.width * to_.channels;
            switch (to_.channels) {
                case 1: sum_columns<1>(row); break;
                case 3: sum_columns<3>(row); break;
                default: sum_columns<0>(row);
            }
        }
    }

  private:
    void sum_rows(const uint8_t* picture, int64_t i) {
        const int64_t values = from_.width * to_.channels;
        const int64_t first = i * from_.height / to_.height, last = ((i + 1) * from_.height - 1) / to_.height;
        for (int64_t r = first; r <= last; r++) {
            const uint8_t* row = picture + r * values;
            const uint32_t covered = static_cast<uint32_t>(std::min((i + 1) * from_.height, (r + 1) * to_.height) -
                                                           std::max(i * from_.height, r * to_.height));
            (r == first ? set_row : add_row)(row, values, covered, sums_.get());
        }
    }

    template <int64_t fixed_channels>
    void sum_columns(uint8_t* row) const {
        const int64_t channels = fixed_channels ? fixed_channels : to_.channels;
        const uint64_t whole = to_.width;
        for (int64_t j = 0; j < to_.width; j++) {
            const Span span = spans_[j];
            for (int64_t channel = 0; channel < channels; channel++) {
                const uint32_t* sums = sums_.get() + channel;
                uint64_t total = span.of_first * sums[span.first * channels] + span.of_last * sums[span.last * channels];
                for (int64_t c = span.first + 1; c < span.last; c++) total += whole * sums[c * channels];
                row[j * channels + channel] = static_cast<uint8_t>(((total + half_) * factor_) >> shift_);
            }
        }
    }

    PictureShape from_, to_;
    std::unique_ptr<uint32_t[]> sums_;  // of the rows that a row of the result covers
    std::unique_ptr<Span[]> spans_;     // of each column of the result
    uint64_t factor_ = 0, half_ = 0;
    unsigned shift_ = 0;
};

// A pixel of a size that the compiler knows.
template <int64_t size>
struct Pixel {
    uint8_t bytes[size];
};

template <typename T, int64_t stack>
void interleave_stacks(const T* from, int64_t n, int64_t pixels, T* to) {
    for (int64_t i = 0; i < n; i++, from += stack * pixels, to += stack * pixels)
        for (int64_t pixel = 0; pixel < pixels; pixel++)
            for (int64_t frame = 0; frame < stack; frame++) to[stack * pixel + frame] = from[frame * pixels + pixel];
}

template <typename T>
void interleave_as(const uint8_t* stacks, int64_t n, int64_t stack, int64_t pixels, uint8_t* target) {
    const T* from = reinterpret_cast<const T*>(stacks);
    T* to = reinterpret_cast<T*>(target);
    switch (stack) {
        case 2: return interleave_stacks<T, 2>(from, n, pixels, to);
        case 3: return interleave_stacks<T, 3>(from, n, pixels, to);
        case 4: return interleave_stacks<T, 4>(from, n, pixels, to);
    }
    for (int64_t i = 0; i < n; i++, from += stack * pixels, to += stack * pixels)
        for (int64_t frame = 0; frame < stack; frame++)
            for (int64_t pixel = 0; pixel < pixels; pixel++) to[stack * pixel + frame] = from[frame * pixels + pixel];
}

}  // namespace

int64_t transform_pictures(Pictures pictures, Pictures known, const int64_t* which, int64_t n, PictureShape from, PictureShape to,
                           bool grey) noexcept {
    const int64_t size = from.size(), result_size = to.size();
    const bool resizes = to.height != from.height || to.width != from.width;
    const auto greys = allocate<uint8_t>(grey ? from.height * from.width : 0);
    Resizer resizer(from, to);
    if (!greys || !resizer.is_allocated()) return -1;
    int64_t transformed = 0;
    for (int64_t i = 0; i < n; i++) {
        const uint8_t* picture = pictures.pictures + i * size;
        uint8_t* result = pictures.results + i * result_size;
        if (which[i] >= 0 && std::memcmp(picture, known.pictures + which[i] * size, size) == 0) {
            std::memcpy(result, known.results + which[i] * result_size, result_size);
            continue;
        }
        transformed++;
        if (grey) {
            make_grey(picture, from.height * from.width, greys.get());
            picture = greys.get();
        }
        if (resizes)
            resizer.resize(picture, result);
        else
            std::memcpy(result, picture, result_size);
    }
    return transformed;
}

void interleave(const uint8_t* stacks, int64_t n, int64_t stack, int64_t pixels, int64_t pixel_bytes, uint8_t* target) noexcept {
    switch (pixel_bytes) {
        case 1: return interleave_as<Pixel<1>>(stacks, n, stack, pixels, target);
        case 2: return interleave_as<Pixel<2>>(stacks, n, stack, pixels, target);
        case 3: return interleave_as<Pixel<3>>(stacks, n, stack, pixels, target);
        case 4: return interleave_as<Pixel<4>>(stacks, n, stack, pixels, target);
        case 8: return interleave_as<Pixel<8>>(stacks, n, stack, pixels, target);
    }
    for (int64_t i = 0; i < n; i++)
        for (int64_t pixel = 0; pixel < pixels; pixel++)
            for (int64_t frame = 0; frame < stack; frame++, target += pixel_bytes)
                std::memcpy(target, stacks + ((i * stack + frame) * pixels + pixel) * pixel_bytes, pixel_bytes);
}

}  // namespace diskbuffer
