"""How many threads gather a batch fastest: measured while batches are gathered, as it depends on what else the machine does."""

from __future__ import annotations

import itertools

WORTH_A_THREAD = 100e-6  # seconds that a batch takes in one thread, below which another is not tried: waking it takes some 50 us
_TRY = 16  # every so many batches, another number is tried
_NEWEST = 0.1  # how much the last batch counts in what batches are thought to take
_LATE = 4.0  # a batch that took so many times as long as others was interrupted, and counts as no longer than that


class Pace:
    """How long batches of one kind and size take in 1, 2, 4, ... threads, `most` of them at most."""

    def __init__(self, most: int) -> None:
        self._numbers: list[int] = [*itertools.takewhile(lambda n: n < most, (2**k for k in itertools.count())), most]
        self._seconds: list[float | None] = [None] * len(self._numbers)
        self._best = self._batches = 0

    def choose(self) -> int:
        """Return how many threads the next batch is to be gathered in."""
        alone = self._seconds[0]
        if alone is None or alone < WORTH_A_THREAD:
            return 1
        self._batches += 1
        other = self._best + (-1 if self._batches // _TRY % 2 and self._best else 1)
        if other < len(self._numbers) and (self._seconds[other] is None or self._batches % _TRY == 0):
            return self._numbers[other]
        return self._numbers[self._best]

    def note(self, threads: int, seconds: float) -> None:
        """Note what a batch took in so many threads, one of those that `choose` returned."""
        n = self._numbers.index(threads)
        before = self._seconds[n]
        self._seconds[n] = seconds if before is None else before + _NEWEST * (min(seconds, _LATE * before) - before)
        known = [(taken, n) for n, taken in enumerate(self._seconds) if taken is not None]
        self._best = min(known)[1]
