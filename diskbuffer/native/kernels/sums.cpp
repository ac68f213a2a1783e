#include "sums.hpp"

namespace diskbuffer {

void Sums::assign(const int64_t* counts) noexcept {
    int64_t total = 0;
    for (int64_t block = 0; block < static_cast<int64_t>(blocks_.size()); block++) {
        const int64_t until = std::min<int64_t>((block + 1) * BLOCK, static_cast<int64_t>(within_.size()));
        int64_t sum = 0;
        for (int64_t stream = block * BLOCK; stream < until; stream++) within_[stream] = sum += counts[stream];
        blocks_[block] = total += sum;
    }
}

void Sums::set(const int64_t* streams, const int64_t* counts, int64_t n) noexcept {
    int64_t total_shift = 0, next_block = 0;
    for (int64_t i = 0; i < n;) {
        const int64_t block = streams[i] / BLOCK, until = std::min<int64_t>((block + 1) * BLOCK, static_cast<int64_t>(within_.size()));
        int64_t shift = 0;
        for (int64_t stream = streams[i]; stream < until; stream++) {
            if (i < n && streams[i] == stream) {
                const int64_t before = stream % BLOCK == 0 ? 0 : within_[stream - 1] - shift;  // as it was: that one is shifted
                shift += counts[i] - (within_[stream] - before);
                i++;
            }
            within_[stream] += shift;
        }
        for (; next_block < block; next_block++) blocks_[next_block] += total_shift;
        total_shift += shift;
    }
    for (; next_block < static_cast<int64_t>(blocks_.size()); next_block++) blocks_[next_block] += total_shift;
}

}  // namespace diskbuffer
