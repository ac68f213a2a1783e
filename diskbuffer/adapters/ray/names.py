"""Ids of steps that are unique over all shards: a shard's own id of a step, and the shard's number.

    name = own name * SHARDS + shard          own name = position * streams + stream, as in every store

A disk's shards are read together as the stores of several writers, where a step's id is made of other numbers:

    name there = position * room + first stream of the shard + stream

where `room` is how many streams there may be of all writers together, and first streams follow from the order in which they came.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from diskbuffer.plugin import read_info, writers_of

Int64 = npt.NDArray[np.int64]
SHARDS = 1024
_STORE = "shard-"


def store_of(shard: int) -> str:
    """Return the name of a shard's store, as a writer's."""
    return f"{_STORE}{shard}"


def shard_of(store: str) -> int:
    """Return which shard's a store is."""
    return int(store.removeprefix(_STORE))


def unique(own: Int64, shard: int) -> Int64:
    """Return the names of a shard's steps; -1, where sequences are padded, stays."""
    return np.where(own < 0, -1, own * SHARDS + shard)


class Together:
    """The names that steps have where a disk's shards are read together, as unique ones.

    Parameters
    ----------
    stores : sequence of (int, int)
        The shards, in the order in which they came, and how many streams each has.
    room : int
        For how many streams of all writers together names have room.

    Attributes
    ----------
    shards : frozenset of int
    """

    def __init__(self, stores: Sequence[tuple[int, int]], room: int) -> None:
        numbers, counts = np.array(stores, np.int64).reshape(-1, 2).T
        self.shards, self._room = frozenset(numbers.tolist()), room
        of_streams = np.zeros((3, room), np.int64)
        of_streams[:, : counts.sum()] = np.repeat([numbers, counts, np.cumsum(counts) - counts], counts, axis=1)
        self._shards, self._streams, self._firsts = of_streams

    @classmethod
    def of(cls, path: Path) -> Together:
        """Return the names in a directory, those of shards that have not made their stores yet among them."""
        return cls([(shard_of(store), streams) for store, streams in (writers_of(path) or {}).items()], read_info(path).streams)

    def know(self, ids: Int64) -> bool:
        """Return whether the shards of all names are known."""
        return bool((self._streams[ids[ids >= 0] % self._room] > 0).all())

    def unique(self, ids: Int64) -> Int64:
        """Return unique names."""
        streams = ids % self._room
        own = ids // self._room * self._streams[streams] + streams - self._firsts[streams]
        return np.where(ids < 0, -1, own * SHARDS + self._shards[streams])
