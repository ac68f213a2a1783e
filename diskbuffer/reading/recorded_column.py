"""A column, segment by segment, for samplers: here one that was recorded, to read."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from diskbuffer.errors import InputError
from diskbuffer.index.index import Index
from diskbuffer.reading.batch_reader import BatchReader
from diskbuffer.reading.readable import Readable


class OfStore:
    """A column of a store, and what samplers ask of that beside its values."""

    def __init__(self, store: Readable, reader: BatchReader, name: str, check: Callable[[], Any]) -> None:
        self._store, self._reader, self._name, self.check = store, reader, name, check

    @property
    def lock(self) -> threading.RLock:
        """The store's."""
        return self._store.lock

    @property
    def index(self) -> Index:
        """The store's."""
        return self._reader.index


class RecordedColumn(OfStore):
    """A column of one number a row, segment by segment; an InputError where there is none such."""

    is_there = True

    def __init__(self, store: Readable, reader: BatchReader, name: str, check: Callable[[], Any]) -> None:
        schema = store.layout.schema
        if name not in schema.columns or name in schema.derived:
            recorded = ", ".join(path for path in schema.columns if path not in schema.derived)
            raise InputError(f"there is no column {name!r} that was recorded with the steps; there are {recorded}")
        column = schema[name]
        if column.shape or column.np_dtype.kind not in "iuf":
            raise InputError(f"column {name!r} must have one number a step, an integer or a float, found {column}")
        super().__init__(store, reader, name, check)

    def values(self, slot: int) -> npt.NDArray[Any]:
        """View the values of a segment."""
        return self._store.values(self._name, slot)

    def hold(self, rows: npt.NDArray[np.int64]) -> bool:  # noqa: ARG002
        """Return True: nothing is written, and what is mapped stays what it was."""
        return True
