"""The column in which a step tells where another library's buffer has it: what places a store is opened again with."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from diskbuffer import ReplayBuffer
from diskbuffer.plugin import BUILT_IN

Int64 = npt.NDArray[np.int64]
SLOT = "slot"
OURS = (*BUILT_IN, "tag", SLOT)  # columns that are not what the other library gave
_PLACES = 2**32  # more than any buffer has
_AT_ONCE = 65_536  # steps that are looked at together


class Placement(NamedTuple):
    """Where steps are in the other library, (n,) int64 each.

    Attributes
    ----------
    places
        Where they were put.
    extra
        A small number that an adapter may need.
    """

    places: Int64
    extra: Int64


def pack(places: Int64, extra: int = 0) -> Int64:
    """Return what is stored with steps."""
    return places + extra * _PLACES if extra else places


def unpack(slots: Int64) -> Placement:
    """Return the placements that are stored."""
    return Placement(slots % _PLACES, slots // _PLACES)


def placements_of(buffer: ReplayBuffer, steps: Int64) -> Placement:
    """Return the placements of steps, (n,), read from the store."""
    parts: list[Any] = [
        buffer.at(steps[n : n + _AT_ONCE], columns=[SLOT], numpy=True)[SLOT].copy() for n in range(0, len(steps), _AT_ONCE)
    ]
    return unpack(np.concatenate([np.zeros(0, np.int64), *parts]))
