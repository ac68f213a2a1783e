"""Names of steps that are unique over all shards: a shard's own name of a step, and the shard's number.

    name = own name * SHARDS + shard          own name = position * streams + stream, as in every store

A disk's shards are read together as the stores of several writers, where a step's name is made of other numbers:

    name there = position * STREAMS + first stream of the shard + stream
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from diskbuffer.gathering.description import STREAMS, Entry

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
    stores : iterable of Entry
        The shards' stores, and their streams.
    """

    def __init__(self, stores: Iterable[Entry]) -> None:
        self._shards, self._firsts, self._streams = (np.zeros(STREAMS, np.int64) for _ in range(3))
        for entry in stores:
            mine = slice(entry.first_stream, entry.first_stream + entry.streams)
            self._shards[mine], self._firsts[mine], self._streams[mine] = shard_of(entry.name), entry.first_stream, entry.streams

    def unique(self, names: Int64) -> Int64:
        """Return unique names."""
        streams = names % STREAMS
        own = names // STREAMS * self._streams[streams] + streams - self._firsts[streams]
        return np.where(names < 0, -1, own * SHARDS + self._shards[streams])
