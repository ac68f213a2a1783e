// The bytes of files that a batch reads, before it does: to ask the disk for many pages at a time.
#pragma once

#include <cstdint>

#include "runs.hpp"

namespace diskbuffer {

// Whole pages, one after the other.
struct Pages {
    uintptr_t begin, end;
};

// Joins ranges of memory to stretches of pages, and hands each on to `send` when the next range lies apart from it.
template <typename Send>
class PageStretches {
public:
    PageStretches(uintptr_t page_bytes, Send send) : page_bytes_(page_bytes), send_(send) {}

    void add(const uint8_t* at, int64_t size) {
        const auto address = reinterpret_cast<uintptr_t>(at);
        const uintptr_t begin = address / page_bytes_ * page_bytes_;
        const uintptr_t end = (address + size + page_bytes_ - 1) / page_bytes_ * page_bytes_;
        if (pages_.begin <= begin && begin <= pages_.end) {
            pages_.end = end > pages_.end ? end : pages_.end;
        } else {
            send();
            pages_ = {begin, end};
        }
    }

    void send() {
        if (pages_.end > pages_.begin) send_(pages_);
        pages_ = {0, 0};
    }

private:
    const uintptr_t page_bytes_;
    Send send_;
    Pages pages_{0, 0};
};

// Write the stretches of pages that pieces of memory lie in, in their order, to `stretches`, which has room for `n`; return how many.
int64_t join_pages(const Source* pieces, int64_t n, int64_t page_bytes, Pages* stretches) noexcept;

// Ask the system for all pages of a batch: first those of flat columns and of indices, then those of chunks, which indices point to.
void request_pages(const Batch& batch, int64_t page_bytes) noexcept;

}  // namespace diskbuffer
