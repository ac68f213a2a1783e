"""One index of the streams of several stores, numbered through."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from diskbuffer.index.index import Index

Int64 = npt.NDArray[np.int64]


class Part(NamedTuple):
    """A store's index, None where it is gone; the number that its first stream has here, the store's, and those of its slots."""

    of: Index | None
    first_stream: int
    store: int
    slots: Int64


class _Known(NamedTuple):
    """A part's index, and how it was when it was taken."""

    of: Index
    first_stream: int
    version: int
    dropped: int


class GatheredIndex(Index):
    """Know where every step of several stores lies; streams for which there is room, and no store, are empty."""

    def __init__(self, streams: int, segment_rows: int, context: int) -> None:
        super().__init__(streams, segment_rows, context)
        self.environments = np.empty(0, np.int64)
        self._known: dict[int, _Known] = {}

    def update(self, parts: Sequence[Part]) -> None:
        """Take what has changed in some of the stores."""
        for part in parts:
            known = self._known.pop(part.store, None)
            if known is not None and known.of is not part.of:
                self.clear(known.first_stream, len(known.of.table))
                self.dropped, known = self.dropped + 1, None
            if part.of is None:
                continue
            version, dropped = (-1, 0) if known is None else (known.version, known.dropped)
            self.take(part.first_stream, part.of, version, part.store, part.slots)
            self.dropped += part.of.dropped - dropped
            self._known[part.store] = _Known(part.of, part.first_stream, part.of.version, part.of.dropped)
        of = [self._known[store] for store in sorted(self._known)]
        self.environments = np.concatenate([np.empty(0, np.int64), *(part.first_stream + part.of.environments for part in of)])
