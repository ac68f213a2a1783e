"""Choosing how a column's chunks are compressed when they are sealed: from its own data, unless it was given a codec."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from diskbuffer.native.codec import copy_pictures
from diskbuffer.schema.schema import Column
from diskbuffer.store.format.codec import COPY, PICTURES, Method, bound, declared_method
from diskbuffer.store.format.encoding import TRIES, Recoder
from diskbuffer.store.format.layout import Layout

Int64 = npt.NDArray[np.int64]

CANDIDATES = (COPY, PICTURES, Method("lz4hc", 4), Method("lz4hc", 7))
MARGIN = 1.1  # how much larger than by the best of the candidates files may be, for the sake of speed
LATE_MARGIN = 1.25  # the same, while more is complete than can be sealed
_MUCH_FASTER = 0.8  # of the time of another; clocks are not exact, and choices should not depend on that
_SAMPLED = 8  # chunks of a segment that all candidates are tried on
_ANEW = 16  # segments after which they are tried again, for what an agent sees changes
_TRIED = 2  # chunks of a segment that nothing may make smaller, before the others are copied


@dataclass(frozen=True)
class Trial:
    """What a candidate made of some chunks."""

    method: Method
    bytes: int
    seconds: float


def cheapest(trials: list[Trial], margin: float) -> Method:
    """Return the fastest method of those whose files are at most `margin` times as large as the smallest."""
    best, *others = sorted(trials, key=lambda trial: trial.bytes)
    most = margin * best.bytes
    for trial in others:
        if trial.bytes <= most and trial.seconds < _MUCH_FASTER * best.seconds:
            best = trial
    return best.method


class Compression:
    """Say how each segment of one packed column is compressed, and count what comes of it; for the thread that seals.

    What comes out, `figures` apart, depends on the data alone as long as no candidate's time is within a fifth of another's.
    """

    def __init__(self, layout: Layout, path: str) -> None:
        column = layout.schema[path]
        self._chunk_bytes, self._row_bytes = layout.chunk_bytes(path), column.row_bytes
        self._lossy = column.is_lossy
        self._recoder = Recoder(self._chunk_bytes, distances_of(column))
        self._declared = declared_method(column)
        self._chosen, self._hurried = self._declared, self._declared
        self._until_anew = 0
        self._stores = False  # whether no chunk that LZ4 had stored became smaller, in the last segment that had any
        self._rows = self._written = 0
        self._seconds = 0.0

    @property
    def tries(self) -> int:
        """How many chunks of the next segment are tried that LZ4 could not make smaller."""
        return 1 if self._stores else _TRIED

    def begin(self, shard: int, entries: Int64) -> None:
        """Get ready for another segment: the live shard mapped at the address `shard`, and its chunks (n, 2), offset and size."""
        self._recoder.stored[:] = self.tries, 0
        if self._declared is not None:
            return
        if self._until_anew == 0:
            self._until_anew = _ANEW
            self._choose(shard, entries)
        self._until_anew -= 1

    def recode(self, shard: int, entries: Int64, out: npt.NDArray[np.uint8], moved: Int64, *, late: bool) -> int:
        """Compress chunks of the segment that was begun as `Recoder.recode` does; `late` if speed counts more than size."""
        method = self._hurried if late else self._chosen
        assert method is not None
        begin = time.thread_time()
        size = self._recode(shard, entries, out, moved, method)
        if size >= 0:
            self._seconds += time.thread_time() - begin
            self._written += size
            self._rows += len(entries) * self._chunk_bytes // self._row_bytes
        return size

    def _recode(self, shard: int, entries: Int64, out: npt.NDArray[np.uint8], moved: Int64, method: Method) -> int:
        if self._lossy:
            return copy_pictures(shard, entries, self._row_bytes, out, moved)
        return self._recoder.recode(shard, entries, out, moved, method)

    def end(self) -> None:
        """Learn from the segment that was begun."""
        tries, shrank = self._recoder.stored.tolist()
        if tries < self.tries:
            self._stores = shrank == 0

    def figures(self) -> dict[str, Any]:
        """Return the codec, the bytes on disk of each byte of the rows sealed by this writer, and the microseconds of a row."""
        raw = self._rows * self._row_bytes
        return {
            "codec": None if self._chosen is None else str(self._chosen),
            "ratio": self._written / raw if raw else None,
            "us_per_row": 1e6 * self._seconds / self._rows if raw else None,
        }

    def _choose(self, shard: int, entries: Int64) -> None:
        """Try all candidates on some chunks, of those that LZ4 could make smaller if there are such."""
        shrunk = entries[entries[:, 1] < self._chunk_bytes]
        some = shrunk if len(shrunk) else entries
        n = max(1, min(_SAMPLED, len(entries) // _SAMPLED, len(some)))
        some = np.ascontiguousarray(some[np.linspace(0, len(some) - 1, n).astype(np.int64)])
        trials = [self._try(shard, some, method) for method in (CANDIDATES if len(shrunk) else (COPY, PICTURES))]
        if any(trial.bytes < 0 for trial in trials):  # a damaged chunk, of which sealing will tell
            self._chosen, self._hurried = self._chosen or COPY, self._hurried or COPY
            self._until_anew = 0
            return
        self._chosen, self._hurried = cheapest(trials, MARGIN), cheapest(trials, LATE_MARGIN)

    def _try(self, shard: int, entries: Int64, method: Method) -> Trial:
        out, moved = np.empty(bound(self._chunk_bytes), np.uint8), np.empty((1, 2), np.int64)
        size, seconds = 0, 0.0
        tries, self._recoder.stored[TRIES] = int(self._recoder.stored[TRIES]), len(entries)
        for k in range(len(entries)):
            begin = time.thread_time()
            written = self._recoder.recode(shard, entries[k : k + 1], out, moved, method)
            seconds += time.thread_time() - begin
            if written < 0:
                return Trial(method, -1, 0.0)
            size += written
        self._recoder.stored[:] = tries, 0
        return Trial(method, size, seconds)


def unknown(column: Column) -> dict[str, Any]:
    """Return the figures of a column of which nothing was sealed yet."""
    declared = declared_method(column)
    return {"codec": None if declared is None else str(declared), "ratio": None, "us_per_row": None}


def distances_of(column: Column) -> tuple[int, int, int]:
    """Return the bytes of a pixel, of a line, and of a frame of a column: channels may come last, up to four."""
    item, shape = column.np_dtype.itemsize, column.shape
    channels = shape[-1] if len(shape) > 2 and shape[-1] <= 4 else 1
    pixels = shape[:-1] if channels > 1 else shape
    line = pixels[-1] * channels * item if len(pixels) > 1 else 0
    return channels * item, line, column.row_bytes
