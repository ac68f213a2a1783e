"""A shuffled order that is computed, not stored: any place of it, in any range of numbers, in no memory.

A Feistel network with random functions between its halves is a permutation of the numbers of an even count of bits (Luby and
Rackoff, 1988, "How to construct pseudorandom permutations from pseudorandom functions"); where it leads out of the range, it
is applied again until it leads back (cycle walking: Black and Rogaway, 2002, "Ciphers with arbitrary finite domains").
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from diskbuffer.native.compiling import compiled

Int64 = npt.NDArray[np.int64]
_ROUNDS = 8


class Permutation:
    """The numbers below `n`, in an order that `seed` tells. About 0.1 us a number."""

    def __init__(self, n: int, seed: int | tuple[int, ...]) -> None:
        self.n = n
        self._keys = np.random.SeedSequence(seed).generate_state(_ROUNDS, np.uint64)
        self._half = (max(2, (n - 1).bit_length()) + 1) // 2

    def __call__(self, first: int, until: int) -> Int64:
        """Return the numbers at places `first` to `until`, (until - first,) int64."""
        found = np.empty(max(0, until - first), np.int64)
        _permute(first, self.n, self._half, self._keys, found)
        return found


@compiled
def _permute(first: int, n: int, half: int, keys: Any, found: Any) -> None:
    bits, mask = np.uint64(half), (np.uint64(1) << np.uint64(half)) - np.uint64(1)
    for i in range(found.shape[0]):
        number = np.uint64(first + i)
        while True:
            left, right = number >> bits, number & mask
            for r in range(keys.shape[0]):
                mixed = right + keys[r]  # the finalizer of splitmix64 (Steele et al., 2014)
                mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
                mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
                left, right = right, left ^ ((mixed ^ (mixed >> np.uint64(31))) & mask)
            number = (left << bits) | right
            if number < np.uint64(n):
                break
        found[i] = np.int64(number)
