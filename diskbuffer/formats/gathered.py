"""The stores of several writers, with the face that `StoreView` has for one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from diskbuffer.buffer import ReplayBuffer
from diskbuffer.draws import Draw
from diskbuffer.inspect.episodes import EpisodeTable, build
from diskbuffer.inspect.rows import read_rows
from diskbuffer.reading.reader import until_found
from diskbuffer.schema import CHECKSUM, Schema


class GatheredView:
    """Look at the stores of several writers, as a buffer reads them; with the memory that a buffer takes.

    Parameters
    ----------
    path : pathlib.Path
    frame_stack : int, optional
        Frames in an observation. As the stores say, by default.
    """

    damage = None  # a buffer refuses to open such stores

    def __init__(self, path: Path, frame_stack: int | None) -> None:
        self.path = path
        self._buffer = ReplayBuffer(path, mode="r", frame_stack=frame_stack)
        self.store, self.frame_stack = self._buffer._store, self._buffer.frame_stack
        self.index = self._buffer._reader.index

    @property
    def schema(self) -> Schema:
        """The columns."""
        return self.store.layout.schema

    def episodes(self) -> EpisodeTable:
        """Return the episodes of which a step can be sampled."""
        reader = self._buffer._reader
        with self.store.lock:
            return until_found([reader], lambda: build(self.store, reader.index))

    def read(self, column: str, steps: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        """Read rows of a column by the names of their steps, (n, ...)."""
        streams, positions = steps % self.store.layout.streams, steps // self.store.layout.streams
        reader = self._buffer._reader
        if column == CHECKSUM:  # which is in no batch
            with self.store.lock:
                return until_found([reader], lambda: read_rows(self.store, reader.index, column, streams, positions))
        drawn = Draw(streams, positions, positions, positions)
        return reader.rows(column, lambda _: drawn, before=0, rows=1)[:, 0]

    def let_go(self) -> None:
        """Do nothing: a buffer keeps its maps."""
