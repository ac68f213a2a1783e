// The hash that checksums and shuffled orders are made of.
#pragma once

#include <cstdint>

namespace diskbuffer {

// Scramble 64 bits: the finalizer of splitmix64 (Steele, Lea and Flood, 2014).
inline uint64_t mix(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

}  // namespace diskbuffer
