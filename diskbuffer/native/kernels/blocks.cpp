#include "blocks.hpp"

#include <algorithm>
#include <cstring>

#include "memory.hpp"

namespace diskbuffer {

void scatter(const uint8_t* rows, int64_t row_bytes, uint8_t* const* targets, int64_t n) noexcept {
    for (int64_t i = 0; i < n; i++) std::memcpy(targets[i], rows + i * row_bytes, row_bytes);
}

void find_set(const uint8_t* const* runs, const int64_t* counts, int64_t n, std::vector<int64_t>& which, std::vector<int64_t>& places) {
    for (int64_t i = 0; i < n; i++) {
        for (int64_t at = 0; at < counts[i];) {
            const int64_t end = std::min<int64_t>(at + 8, counts[i]);
            uint64_t word = 1;
            if (end == at + 8) std::memcpy(&word, runs[i] + at, 8);
            for (; word != 0 && at < end; at++) {
                if (runs[i][at] == 0) continue;
                which.push_back(i);
                places.push_back(at);
            }
            at = end;
        }
    }
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

}  // namespace diskbuffer
