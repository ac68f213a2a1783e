#include "blocks.hpp"

#include <cstring>

#include "memory.hpp"

namespace diskbuffer {

void scatter(const uint8_t* rows, int64_t row_bytes, uint8_t* const* targets, int64_t n) noexcept {
    for (int64_t i = 0; i < n; i++) std::memcpy(targets[i], rows + i * row_bytes, row_bytes);
}

bool is_unchanged(const Watched& watched) noexcept {
    const int64_t words = watched.size / 8;
    const int64_t* now = reinterpret_cast<const int64_t*>(watched.now);
    for (int64_t word = 0; word < words; word++)
        if (load_acquire(now + word) != load<int64_t>(watched.before + 8 * word)) return false;
    for (int64_t byte = 8 * words; byte < watched.size; byte++)
        if (__atomic_load_n(watched.now + byte, __ATOMIC_ACQUIRE) != watched.before[byte]) return false;
    return true;
}

void count_bytes(const uint8_t* bytes, int64_t outer, int64_t places, int64_t inner, int64_t* counts) noexcept {
    if (inner == 1) {
        for (int64_t row = 0; row < outer; row++, bytes += places)
            for (int64_t place = 0; place < places; place++) counts[256 * place + bytes[place]]++;
        return;
    }
    for (int64_t row = 0; row < outer; row++)
        for (int64_t place = 0; place < places; place++, bytes += inner) {
            int64_t* mine = counts + 256 * place;
            int64_t at = 0;
            if (inner >= 1024) {  // equal bytes next to each other go to different tables, so that none waits for the one before
                uint32_t tables[4][256] = {};
                for (; at + 8 <= inner && at < UINT32_MAX; at += 8) {
                    uint64_t eight = load<uint64_t>(bytes + at);
                    for (int byte = 0; byte < 8; byte++, eight >>= 8) tables[byte % 4][eight & 255]++;
                }
                for (int value = 0; value < 256; value++)
                    for (int table = 0; table < 4; table++) mine[value] += tables[table][value];
            }
            for (; at < inner; at++) mine[bytes[at]]++;
        }
}

}  // namespace diskbuffer
