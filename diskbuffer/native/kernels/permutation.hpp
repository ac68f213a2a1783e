// A shuffled order that is computed, not stored.
#pragma once

#include <cstdint>

namespace diskbuffer {

// Compute the numbers at the places `first`, `first + 1`, ... of a shuffled order of those below `n`.
//
// A Feistel network with random functions between its halves, of `half_bits` bits each, is a permutation of the numbers of twice as many
// bits (Luby and Rackoff, 1988, "How to construct pseudorandom permutations from pseudorandom functions"); where it leads out of the
// range, it is applied again until it leads back (cycle walking: Black and Rogaway, 2002, "Ciphers with arbitrary finite domains").
void permute(uint64_t first, uint64_t n, int half_bits, const uint64_t* keys, int64_t rounds, int64_t* numbers, int64_t count) noexcept;

}  // namespace diskbuffer
