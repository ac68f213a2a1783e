"""Passes over the steps of all shards, and functions over them whose values are written back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from diskbuffer.adapters.ray.ahead import ahead
from diskbuffer.adapters.ray.steps import StepsOfShards
from diskbuffer.plugin import Batch, arrays_of, names_of, progress_bar

Int64 = npt.NDArray[np.int64]


class Pass:
    """An iterable over batches of steps, each of which comes once. What is evicted while a loop runs is left out.

    Parameters
    ----------
    steps : StepsOfShards
    named : callable
        Returns the ids of the steps, in order, when a loop begins.
    size : int
        Of a batch.
    merge_last : bool
        Whether the last batch takes the rest, or is a small one.
    deliver : callable
        What is done with each batch, in the threads that fetch it.
    prefetch : int
    """

    def __init__(
        self,
        steps: StepsOfShards,
        named: Callable[[], Int64],
        size: int,
        merge_last: bool,
        deliver: Callable[[Batch], Any],
        prefetch: int,
    ) -> None:
        self._steps, self._named, self._size, self._merge_last = steps, named, size, merge_last
        self._deliver, self._prefetch = deliver, prefetch

    def __len__(self) -> int:
        """Return how many batches a loop has that begins now."""
        return self._count(len(self._named()))

    def __iter__(self) -> Iterator[Any]:
        ids = self._named()
        count = self._count(len(ids))
        cuts = [n * self._size for n in range(count)] + [len(ids)]
        calls = (partial(self._fetch, ids[begin:end]) for begin, end in pairwise(cuts))
        return (batch for batch in ahead(calls, self._prefetch) if batch is not None)

    def _count(self, steps: int) -> int:
        return max(steps // self._size, min(steps, 1)) if self._merge_last else -(-steps // self._size)

    def _fetch(self, ids: Int64) -> Any:
        batch = self._steps.at(ids, None, None, skip=True)
        return None if batch is None else self._deliver(batch)


def shuffled(ids: Int64, seed: int | None) -> Int64:
    """Return names in an order that is drawn: the same for the same seed, steps and shards."""
    return np.random.default_rng(seed).permutation(ids)


def map_batches(
    batches: Pass, steps: StepsOfShards, function: Callable[[Batch], Any], out: str | Sequence[str], total: int, *, shown: bool
) -> int:
    """Call a function with every batch, and write what it returns to columns; return of how many steps."""
    names, done = names_of(out), 0
    with progress_bar(total, 0, shown, " steps") as progress:
        for batch in batches:
            arrays = arrays_of(function(batch), names, len(batch["steps"]))  # all of them before the first is written
            for name, array in zip(names, arrays, strict=True):
                steps.write(name, batch["steps"].cpu(), array)
            done += len(batch["steps"])
            progress.update(len(batch["steps"]))
    return done
