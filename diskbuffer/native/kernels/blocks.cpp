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

}  // namespace diskbuffer
