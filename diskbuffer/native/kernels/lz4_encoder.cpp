#include "lz4_encoder.hpp"

#include <algorithm>
#include <cstring>

#include "memory.hpp"

namespace diskbuffer {

namespace {

constexpr int64_t SHORTEST = 4;                      // bytes of a match
constexpr int64_t LAST_LITERALS = 5, LAST_MATCH = 12;  // bytes at the end of a block that are no match, and in which none may begin
constexpr int DEPTH = 3;                             // positions of a chain that are tried
constexpr int64_t INSIDE = 4;                        // positions at the begin and the end of a match that others can find
constexpr int64_t NOWHERE = -(1 << 20), NO_DISTANCE = 1ll << 40;
constexpr int64_t ESCAPE = 15, MORE = 255;  // what four bits of a length, and a byte of it, say where more bytes of it follow
constexpr int HURRY = 7;  // where nothing comes again, every 128 bytes the search goes by steps that are one byte longer

// Count the bytes that are the same from `a` and from `b`, which lies before it, on, up to `end`.
inline int64_t same_after(const uint8_t* a, const uint8_t* b, const uint8_t* end) {
    const uint8_t* begin = a;
    for (; end - a >= 8; a += 8, b += 8)
        if (const uint64_t different = load<uint64_t>(a) ^ load<uint64_t>(b)) return a - begin + (__builtin_ctzll(different) >> 3);
    while (a < end && *a == *b) a++, b++;
    return a - begin;
}

// Count the bytes that are the same before `a` and before `b`, back to `begin`.
inline int64_t same_before(const uint8_t* a, const uint8_t* b, const uint8_t* begin) {
    const uint8_t* end = a;
    for (; a - begin >= 8; a -= 8, b -= 8)
        if (const uint64_t different = load<uint64_t>(a - 8) ^ load<uint64_t>(b - 8)) return end - a + (__builtin_clzll(different) >> 3);
    while (a > begin && a[-1] == b[-1]) a--, b--;
    return end - a;
}

}  // namespace

// Hash six bytes of eight.
inline uint64_t PictureEncoder::hash(const uint8_t* at) {
    return ((load<uint64_t>(at) << 16) * 0x9E3779B185EBCA87u) >> (64 - HASH_BITS);
}

inline void PictureEncoder::insert(int64_t position) {
    int32_t& last = head_[hash(source_ + position)];
    chain_[position & WINDOW] = static_cast<uint16_t>(std::min<int64_t>(position - last, WINDOW));
    last = static_cast<int32_t>(position);
}

// Return the longest match that `position` lies in and that begins at `low` or later, if one is longer than `least`.
inline PictureEncoder::Match PictureEncoder::find(int64_t position, int64_t low, int64_t least) const {
    const uint8_t *at = source_ + position, *first = source_ + low;
    Match best{position, least, 0};
    const auto four = load<uint32_t>(at);
    int64_t other = head_[hash(at)];
    for (int k = 0; k < FIXED + RECENT + DEPTH; k++) {
        int64_t distance;
        if (k < FIXED + RECENT) {
            distance = distances_[k];
        } else {
            distance = position - other;
            if (distance > WINDOW) break;
            other -= chain_[other & WINDOW];
        }
        if (distance > low || load<uint32_t>(at - distance) != four || first[best.length] != *(first + best.length - distance)) continue;
        const int64_t until = position + 4 + same_after(at + 4, at + 4 - distance, end_);
        if (until - low <= best.length) continue;
        const int64_t since = position - same_before(at, at - distance, first);
        if (until - since > best.length) best = {since, until - since, distance};
    }
    return best;
}

void PictureEncoder::write_length(int64_t rest) {
    for (; rest >= MORE; rest -= MORE) *target_++ = MORE;
    *target_++ = static_cast<uint8_t>(rest);
}

// Write a token without its match, and literals.
void PictureEncoder::write_literals(int64_t count) {
    *target_++ = static_cast<uint8_t>(std::min(count, ESCAPE) << 4);
    if (count >= ESCAPE) write_length(count - ESCAPE);
    std::memcpy(target_, source_ + written_, count);
    target_ += count, written_ += count;
}

// Write literals up to a position, and the match there; return whether there was room.
bool PictureEncoder::write_sequence(int64_t position, const Match& match) {
    const int64_t literals = position - written_;
    if (literals + (literals + match.length) / 255 + 8 > limit_ - target_) return false;
    uint8_t* token = target_;
    write_literals(literals);
    store(target_, static_cast<uint16_t>(match.distance));
    target_ += 2;
    const int64_t rest = match.length - SHORTEST;
    *token |= static_cast<uint8_t>(std::min(rest, ESCAPE));
    if (rest >= ESCAPE) write_length(rest - ESCAPE);
    written_ += match.length;
    remember(match.distance);
    return true;
}

inline void PictureEncoder::remember(int64_t distance) {
    for (const int64_t known : distances_)
        if (known == distance) return;
    for (int k = FIXED + RECENT - 1; k > FIXED; k--) distances_[k] = distances_[k - 1];
    distances_[FIXED] = distance;
}

int64_t PictureEncoder::encode(const uint8_t* source, int64_t size, uint8_t* target, int64_t room,
                               const int64_t (&pixel_line_frame)[3]) noexcept {
    source_ = source, end_ = source + std::max<int64_t>(size - LAST_LITERALS, 0);
    target_ = target, limit_ = target + std::max<int64_t>(room, 0);
    written_ = 0;
    std::fill_n(distances_, FIXED + RECENT, NO_DISTANCE);
    for (int k = 0; k < FIXED; k++) {
        const int64_t distance = pixel_line_frame[(k + 2) % 3];  // the frame first
        if (0 < distance && distance <= WINDOW) distances_[k] = distance;
    }
    std::fill_n(head_, 1 << HASH_BITS, static_cast<int32_t>(NOWHERE));
    const int64_t last = size - LAST_MATCH;
    int64_t at = 1, inserted = 0;
    while (at <= last) {
        Match match = find(at, at, SHORTEST - 1);
        if (match.distance == 0) {
            if (inserted <= at) {
                insert(at);
                inserted = at + 1;
            }
            at += 1 + ((at - written_) >> HURRY);
            continue;
        }
        const int64_t back = same_before(source + at, source + at - match.distance, source + std::max(written_, match.distance));
        at -= back, match.length += back;
        while (true) {
            const int64_t stop = std::min(at + match.length - 2, last), first = std::max(inserted, at);
            for (int64_t k = first; k < std::min(stop, first + INSIDE); k++) insert(k);
            for (int64_t k = std::max(first + INSIDE, stop - INSIDE); k < stop; k++) insert(k);
            inserted = std::max(inserted, stop);
            if (at + match.length - 2 > last) break;
            const Match longer = find(at + match.length - 2, at, match.length);
            if (longer.distance == 0) break;
            if (longer.begin - at >= SHORTEST) {
                match.length = std::min(match.length, longer.begin - at);
                if (!write_sequence(at, match)) return 0;
            }
            at = longer.begin, match = longer;
        }
        if (!write_sequence(at, match)) return 0;
        at = written_;
        for (int64_t k = inserted; k < std::min(at, last); k++) insert(k);
        inserted = std::max(inserted, std::min(at, last));
    }
    const int64_t rest = size - written_;
    if (rest + rest / 255 + 2 > limit_ - target_) return 0;
    write_literals(rest);
    return target_ - target;
}

}  // namespace diskbuffer
