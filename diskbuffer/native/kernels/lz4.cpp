#include "lz4.hpp"

#include <algorithm>
#include <array>
#include <cstring>

#include "memory.hpp"

// liblz4's decoder is made for text: it copies 18 bytes of a match, and goes on by 32. Each turn of a loop that the processor did not
// expect costs as much as copying hundreds of bytes. Here the first 128 bytes of a match are copied without asking how long it is, where
// there is room for so many, and areas of one colour are written, not copied.

namespace diskbuffer {

namespace {

constexpr int64_t ESCAPE = 15, MORE = 255;  // what four bits of a length, and a byte of it, say where more bytes of it follow
constexpr int64_t SHORTEST = 4;             // bytes of a match
constexpr int64_t AT_ONCE = 128;            // bytes of a match that are copied whatever its length
constexpr int64_t READ = 18, WRITTEN = 128;  // bytes that must be left of the block, and of the room, to copy more than is meant
constexpr int64_t MALFORMED = -1;
constexpr int64_t FAR = 64;  // bytes that are copied at a time

using Vector = uint64_t __attribute__((vector_size(16)));

template <typename T>
inline void copy(uint8_t* target, const uint8_t* source) {
    store(target, load<T>(source));
}

// Copy 64 bytes, all of which are read before any is written.
inline void copy_64(uint8_t* target, const uint8_t* source) {
    const Vector first = load<Vector>(source), second = load<Vector>(source + 16);
    const Vector third = load<Vector>(source + 32), fourth = load<Vector>(source + 48);
    store(target, first), store(target + 16, second), store(target + 32, third), store(target + 48, fourth);
}

// By distance, up to 8: the bytes of a word that are its own, by what to multiply them to repeat them, how far these repeats go on.
struct Pattern {
    uint64_t own, repeat;
    int64_t step;
};

// By distance, up to 64: its smallest multiple that is no less than 64.
constexpr auto WIDE = [] {
    std::array<int64_t, FAR> wide{};
    for (int64_t distance = 1; distance < FAR; distance++) wide[distance] = (FAR + distance - 1) / distance * distance;
    return wide;
}();

constexpr auto PATTERNS = [] {
    std::array<Pattern, 8> patterns{};
    for (int distance = 1; distance < 8; distance++) {
        patterns[distance].own = (1ull << 8 * distance) - 1;
        for (int bit = 0; bit < 64; bit += 8 * distance) patterns[distance].repeat |= 1ull << bit;
        patterns[distance].step = 8 / distance * distance;
    }
    return patterns;
}();

// Return what the bytes that follow add to a length, and go behind them; negative if they do not end before `end`.
inline int64_t rest_of_length(const uint8_t*& at, const uint8_t* end) {
    int64_t total = 0, more = MORE;
    while (more == MORE) {
        if (at >= end) return MALFORMED;
        more = *at++;
        total += more;
    }
    return total;
}

// Copy from at least 64 bytes before; writes less than 128 bytes more than `length`.
inline void copy_far(uint8_t* out, const uint8_t* match, int64_t length) {
    copy_64(out, match);
    copy_64(out + 64, match + 64);
    for (int64_t k = AT_ONCE; k < length; k += 64) copy_64(out + k, match + k);
}

inline void fill_64(uint8_t* out, uint64_t word) {
    for (int k = 0; k < 64; k += 16) store(out + k, Vector{word, word});
}

// Write a word again and again; writes less than 128 bytes more than `length`.
inline void fill(uint8_t* out, uint64_t word, int64_t length) {
    fill_64(out, word);
    fill_64(out + 64, word);
    for (int64_t k = AT_ONCE; k < length; k += 64) fill_64(out + k, word);
}

// Copy from less than 64 bytes before; writes less than 128 bytes more than `length`.
inline void copy_near(uint8_t* out, int64_t distance, int64_t length) {
    const int64_t wide = WIDE[distance], some = std::min(wide, length);
    if (distance >= 8) {
        for (int64_t k = 0; k < some; k += 8) copy<uint64_t>(out + k, out + k - distance);
    } else {
        const Pattern& pattern = PATTERNS[distance];
        const uint64_t word = (load<uint64_t>(out - distance) & pattern.own) * pattern.repeat;
        for (int64_t k = 0; k < wide; k += pattern.step) store(out + k, word);  // as often for each length, which nobody can guess
    }
    if (length > wide) copy_far(out + wide, out, length - wide);
}

// Copy from any distance, and not a byte more.
__attribute__((noinline)) void repeat(uint8_t* out, int64_t distance, int64_t length) {
    const uint8_t* match = out - distance;
    while (length > distance) {  // what was copied is there to be copied, too
        std::memcpy(out, match, distance);
        out += distance, length -= distance, distance *= 2;
    }
    std::memcpy(out, match, length);
}

// Decode the rest of a block, near an end of it or of the room; see `decode_lz4`.
__attribute__((noinline)) int64_t decode_with_care(const uint8_t* at, const uint8_t* end, uint8_t* out, uint8_t* target, uint8_t* until) {
    while (at < end) {
        const int token = *at++;
        int64_t literals = token >> 4, length = token & ESCAPE;
        if (literals == ESCAPE) {
            const int64_t more = rest_of_length(at, end);
            if (more < 0) return MALFORMED;
            literals += more;
        }
        if (literals > end - at) return MALFORMED;
        literals = std::min<int64_t>(literals, until - out);
        std::memcpy(out, at, literals);
        out += literals, at += literals;
        if (at == end || out == until) break;
        if (end - at < 2) return MALFORMED;
        const int64_t distance = load<uint16_t>(at);
        at += 2;
        if (length == ESCAPE) {
            const int64_t more = rest_of_length(at, end);
            if (more < 0) return MALFORMED;
            length += more;
        }
        if (distance == 0 || distance > out - target) return MALFORMED;
        length = std::min<int64_t>(length + SHORTEST, until - out);
        repeat(out, distance, length);
        out += length;
        if (out == until) break;
    }
    return out - target;
}

}  // namespace

// With registers of 32 bytes, frames of Atari are decoded in nine tenths of the time. (ThreadSanitizer
// is not set up yet when the version is chosen.)
#if defined(__x86_64__) && defined(__gnu_linux__) && !defined(__SANITIZE_THREAD__)
__attribute__((target_clones("avx2", "default")))
#endif
int64_t decode_lz4(const uint8_t* block, int64_t size, uint8_t* target, int64_t n_bytes) noexcept {
    const uint8_t *at = block, *end = block + size;
    uint8_t *out = target, *until = target + n_bytes;
    if (size > READ && n_bytes > WRITTEN) {
        const uint8_t* near_end = end - READ;
        uint8_t* near_until = until - WRITTEN;
        while (at < near_end && out < near_until) {
            const uint8_t* begin = at;
            const int token = *at++;
            int64_t literals = token >> 4, length = token & ESCAPE;
            if (literals == ESCAPE) {
                const int64_t more = rest_of_length(at, near_end);
                literals += more;
                if (more < 0 || literals >= near_end - at || literals >= near_until - out) {
                    at = begin;
                    break;
                }
                for (int64_t k = 0; k < literals; k += 16) copy<Vector>(out + k, at + k);
            } else {
                copy<Vector>(out, at);
            }
            out += literals, at += literals;
            const int64_t distance = load<uint16_t>(at);
            const int64_t escaped = length == ESCAPE;  // a number, as the processor cannot guess it; a branch would cost more
            int64_t more = -escaped & at[2];
            length += SHORTEST + more, at += 2 + escaped;
            if (more == MORE) {
                more = rest_of_length(at, end);
                if (more < 0) return MALFORMED;
                length += more;
            }
            if (distance == 0 || distance > out - target) return MALFORMED;
            if (length > near_until - out) {
                length = std::min<int64_t>(length, until - out);
                repeat(out, distance, length);
            } else if (distance >= FAR) {
                copy_far(out, out - distance, length);
            } else if (distance == 1) {
                fill(out, out[-1] * PATTERNS[1].repeat, length);
            } else {
                copy_near(out, distance, length);
            }
            out += length;
        }
    }
    return out == until ? n_bytes : decode_with_care(at, end, out, target, until);
}

}  // namespace diskbuffer
