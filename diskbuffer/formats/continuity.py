"""Where episodes begin and end among steps that have an observation each, and the one that it led to."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from diskbuffer.formats.rows import rows_at_a_time
from diskbuffer.plugin import Rows


def runs(ends: npt.NDArray[np.bool_], pairs: Sequence[tuple[Rows, Rows]]) -> Iterator[tuple[int, int]]:
    """Yield the first step of each episode, and the one after its last.

    Parameters
    ----------
    ends : (steps,) bool
        Whether an episode ends with a step. One also ends where the next observation is not what the step led to.
    pairs : sequence of (Rows, Rows)
        Of each part of observations: those at which steps begin, and those that they lead to. They are read a few MB at a time.
    """
    steps, begin = len(ends), 0
    at_a_time = min((rows_at_a_time(rows) for rows, _ in pairs), default=max(1, steps))
    for first in range(0, steps, at_a_time):
        last = min(first + at_a_time, steps)
        stops = ends[first:last].copy()
        for rows, following in pairs:
            here = np.asarray(rows[first + 1 : last + 1])
            led_to = np.asarray(following[first:last])[: len(here)]
            differs = (led_to != here) & ((led_to == led_to) | (here == here))  # NaN and NaN are the same
            stops[: len(here)] |= differs.reshape(len(here), math.prod(here.shape[1:])).any(axis=1)
        for end in (np.flatnonzero(stops) + first + 1).tolist():
            yield begin, end
            begin = end
    if begin < steps:
        yield begin, steps
