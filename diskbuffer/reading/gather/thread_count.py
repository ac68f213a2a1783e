"""How many threads gather a batch fastest: measured while batches are gathered, as it depends on what else the machine does."""

from __future__ import annotations

import itertools

# Seconds that a batch takes in one thread, below which another is not tried. On two busy cores, batches of 16 stacks of Atari
# frames (40 us) take 1.2 of the time with it, of 32 (75 us) 1.1, of 64 (165 us) 0.9, of 256 0.7 to 0.8.
WORTH_A_THREAD = 100e-6
_FIRST = 4  # batches in a row for which another number is tried at first; the fastest of them counts, as threads have to start
_TRY = 16  # every so many batches, another number is tried again
_NEWEST = 0.1  # how much the last batch counts in what batches are thought to take
_LATE = 4.0  # a batch that took so many times as long as others was interrupted, and counts as no longer than that


class ThreadCount:
    """How long batches of one kind and size take in 1, 2, 4, ... threads, `most` of them at most."""

    def __init__(self, most: int) -> None:
        powers: list[int] = [2**k for k in range(most.bit_length()) if 2**k < most]
        self._numbers = [*powers, most]
        self._seconds = [float("inf")] * len(self._numbers)
        self._batches = [0] * len(self._numbers)
        self._best, self._turn = 0, itertools.count(1)

    @property
    def best(self) -> int:
        """How many threads were the fastest."""
        return self._numbers[self._best]

    def choose(self) -> int:
        """Return how many threads the next batch is to be gathered in."""
        best = self._best
        if self._batches[0] < _FIRST or self._seconds[0] < WORTH_A_THREAD:
            return 1
        turn = next(self._turn)
        if best + 1 < len(self._numbers) and (self._batches[best + 1] < _FIRST or turn % (2 * _TRY) == 0):
            return self._numbers[best + 1]
        if best and turn % (2 * _TRY) == _TRY:
            return self._numbers[best - 1]
        return self._numbers[best]

    def note(self, threads: int, seconds: float) -> None:
        """Note what a batch took in so many threads, one of those that `choose` returned."""
        n = self._numbers.index(threads)
        before = self._seconds[n]
        if self._batches[n] < _FIRST:
            self._batches[n] += 1
            self._seconds[n] = min(before, seconds)
        else:
            self._seconds[n] = before + _NEWEST * (min(seconds, _LATE * before) - before)
        self._best = min(range(len(self._seconds)), key=self._seconds.__getitem__)  # another thread may note one meanwhile
