"""What a recorder needs of the log that its rows go to."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

NO_LENGTHS = np.zeros((0, 2, 2), np.int64)


class Places(NamedTuple):
    """Where rows lie, and what has them count, for native code: addresses in others' memory, which the log keeps up to date.

    Attributes
    ----------
    addresses : (columns, streams, 2) int64
        Where the row at position 0 would lie in the older and in the newest of a stream's open segments; of packed columns, where
        its tail begins.
    begins : (streams,) int64
        The positions from which on rows are in the newest segment.
    row_salt : int
        What rows' checksums start from.
    heads, heads_salt : int
        The address of the heads, (streams, 4), and what their words are made with; 0 in stores of format 1.
    lengths : (streams, 2, 2) int64
        In stores of format 1, of the older and the newest segment: the address of its length, and what that is made with.
    fixed_rows : int
        Rows of a segment in stores of format 1, where each begins at a multiple of them; else 0.
    """

    addresses: Int64
    begins: Int64
    row_salt: int
    heads: int = 0
    heads_salt: int = 0
    lengths: Int64 = NO_LENGTHS
    fixed_rows: int = 0


class Log(Protocol):
    """Rows that grow at one end and are evicted at the other, by stream: room for them before, bookkeeping after.

    Attributes
    ----------
    added : int
        Steps ever added, but for protected ones.
    limits : (streams,) int64
        The positions before which rows may be written; then `make_room` is due.
    environments : int
        The first streams are of environments; others hold protected episodes.
    """

    added: int
    limits: Int64
    environments: int

    @property
    def places(self) -> Places:
        """Where rows are written."""

    def make_room(self, rows: Int64, starts: Bools) -> None:
        """Make room for so many rows at once in each stream, (streams,), 0 where none come, or raise before anything is recorded.

        `starts` tells where the first of them starts an episode.
        """

    def reopen_newest(self, streams: Collection[int]) -> None:
        """Have the newest rows of some streams lie where they can be read and written to."""

    def note_evictable(self, first: int, count: int) -> None:
        """Do what is due after rows were put after the newest ones of some consecutive streams."""

    @property
    def is_due(self) -> bool:
        """Whether there may be segments that are too old now."""

    def evict(self) -> None:
        """Evict segments that are too old now."""

    def count(self) -> None:
        """Count what was added, by the index."""

    def clear(self, streams: Collection[int]) -> None:
        """Drop every step of some streams, whose newest rows must be episodes' last. As a whole, or not at all."""
