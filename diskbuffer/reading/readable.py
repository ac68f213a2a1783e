"""What a reader needs of a store, however its files lie: of one, or of several that are read as one.

Rows lie in segments, and segment ``s`` in file ``s // lanes``, lane ``s % lanes``, of every column. Format 1 has one lane: a
segment's number is its slot's.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np
import numpy.typing as npt

from diskbuffer.schema import Schema

if TYPE_CHECKING:
    from diskbuffer.storage.store import Store

Int64 = npt.NDArray[np.int64]


class Shape(Protocol):
    """The shape of a store: its `Layout`."""

    @property
    def schema(self) -> Schema:
        """All columns."""

    @property
    def derived(self) -> frozenset[str]:
        """Paths of the columns that were written later."""

    @property
    def packed(self) -> tuple[str, ...]:
        """Paths of the columns in chunks."""

    @property
    def streams(self) -> int:
        """Logs of rows."""

    @property
    def environments(self) -> int:
        """How many of them environments write."""

    @property
    def segment_rows(self) -> int:
        """Rows of a lane."""

    @property
    def lanes(self) -> int:
        """Segments in a file."""

    @property
    def tags(self) -> tuple[str, ...]:
        """Names of what is numbered in the column "tag"."""

    @property
    def capacity_each(self) -> bool:
        """Whether every environment keeps its part of the capacity."""

    @property
    def environment(self) -> Mapping[str, Any] | None:
        """Where the steps come from."""

    def chunks(self, path: str) -> int:
        """Chunks in a lane of a packed column."""

    def chunk_bytes(self, path: str) -> int:
        """Bytes of a chunk, uncompressed."""


class Mapped(Protocol):
    """Which memory each file is mapped to: `Maps`, or those of several stores."""

    @property
    def tables(self) -> list[tuple[Int64, int, int]]:
        """Of each store: addresses and sizes of files, (columns, files, 2), the number of the first, and how many lanes one has.

        One table alone may be that of several stores, which have no number of a file in common.
        """

    @property
    def epoch(self) -> Any:
        """Keep what is mapped now as long as this is held."""

    def of(self, store: int, /) -> Mapped:
        """Return the maps of a store of several, by the number that runs have of it; where there is one table, these."""

    def ensure(self, files: Iterable[int], paths: Iterable[str] | None = None) -> None:
        """Map files of some columns, or of all, where they are not, and as far as there may be more maps."""

    def private(
        self, sources: Int64, paths: Iterable[str], files: Int64, lanes: Int64, rows: Int64, counts: Int64, /
    ) -> Sequence[Any]:
        """Read what runs, (n,), need of files that are not mapped; set `sources`, and return what is to be held as long.

        The store's lock need not be held.
        """


class Readable(Protocol):
    """An open store, or several."""

    lock: threading.RLock

    @property
    def root(self) -> Path:
        """Where it is."""

    @property
    def writable(self) -> bool:
        """Whether this process writes to it."""

    @property
    def layout(self) -> Shape:
        """Its shape."""

    @property
    def maps(self) -> Mapped:
        """What is mapped."""

    def describe_rows(self, path: str, file: int, stream: int, first: int, last: int, store: int, /) -> str:
        """Name rows of a store's own stream in a column, and the file in which they are, for errors."""

    def map_segments(self, segments: Int64, paths: Iterable[str], /) -> None:
        """Map what some columns have of segments, (n,), at once, as far as there may be more maps."""

    def values(self, name: str, segment: int, /) -> npt.NDArray[Any]:
        """View one segment of a flat column, (segment_rows, ...), to read from it."""

    def completed(self, segments: Int64, /) -> Int64:
        """Return how many steps the store had when segments were complete, (n,); 0 where that is not known."""


def file_values(store: Readable, name: str, file: int) -> npt.NDArray[Any]:
    """View a file of a flat column, (lanes, segment_rows, ...), to read from it: one call for many short segments."""
    if store.layout.lanes == 1:
        return store.values(name, file)[np.newaxis]
    return cast("Store", store).columns.values(name, file)
