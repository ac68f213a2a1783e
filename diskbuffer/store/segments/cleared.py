"""From which position on the rows of each stream count: words that are mapped, so that neither a clear nor an `add` syncs.

    int64 (4, streams): two rows of positions; in the first word of the third, how often that was set, and a checksum; positions

What was cleared is in one of the first two rows, in the second after an odd number of times. The other one is written, and then
that word, by one aligned store: for all streams at once. The last row has the oldest step that a capacity left of each stream: a
word of its own each, which only grows. After a power loss, what the last flush noted of both counts as cleared.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from diskbuffer.errors import CorruptionError
from diskbuffer.store.format import codec
from diskbuffer.store.format.layout import CLEARED, Layout
from diskbuffer.store.system.files import Files
from diskbuffer.store.system.overlay import Layers

Int64 = npt.NDArray[np.int64]

CLEARED_FILE = f"{CLEARED}/c.0.0"
_MOST = 2**62  # of positions
_READS = 1000  # until no writer has set it in between


class Cleared:
    """Read and set the positions."""

    def __init__(self, files: Files, layout: Layout, *, writable: bool) -> None:
        self._where, self._salt = f"{files.root}/{CLEARED_FILE}", layout.salt
        Layers(files).copy_up(CLEARED_FILE)
        mapped = files.map(CLEARED_FILE, bytes_of(layout), writable=writable)
        self._words: Int64 = mapped.array(np.int64, (4, layout.streams))  # which keeps it mapped

    @property
    def place(self) -> tuple[int, Int64]:
        """Where the word lies that is another one each time that steps are cleared: address, and a view."""
        return int(self._words[2:].ctypes.data), self._words[2, :1]

    @property
    def firsts(self) -> Int64:
        """A view of the positions of the oldest steps that a capacity left, (streams,)."""
        view: Int64 = self._words[3]
        return view

    def close(self) -> None:
        """Unmap the file, but for what somebody has a view of; what was there can still be read."""
        self._words = self._words.copy()

    def positions(self) -> Int64:
        """Return the position of each stream's first row that was not cleared, (streams,); a CorruptionError if damaged."""
        for _ in range(_READS):
            word = int(self._words[2, 0])
            row: Int64 = self._words[word >> 32 & 1].copy()
            if word == int(self._words[2, 0]) and word == _word(self._salt, word >> 32, row):
                return row
            if word == 0 and int(self._words[2, 0]) == 0:  # nothing was ever cleared
                return np.zeros_like(row)
        raise CorruptionError(f"{self._where}: which steps were cleared is damaged; `diskbuffer check --repair` has none cleared")

    def set(self, positions: Int64) -> None:
        """Set the positions, all of them, or after a kill none."""
        times = int(self._words[2, 0] >> 32) + 1 & 0x7FFFFFFF
        self._words[times & 1] = positions
        self._words[2, 0] = _word(self._salt, times, positions)

    def reset(self, positions: Int64) -> None:
        """Set the positions before which rows do not count, whatever the reason, and forget all others."""
        self.set(positions)
        self.firsts[:] = 0


def _word(salt: int, times: int, positions: Int64) -> int:
    if (positions < 0).any() or (positions >= _MOST).any():
        return -1
    fields = np.array([salt, times], np.int64)
    return times << 32 | codec.checksum(np.ascontiguousarray(positions), codec.checksum(fields))


def bytes_of(layout: Layout) -> int:
    """Return how large the file is."""
    return 4 * 8 * layout.streams


def contents_of(layout: Layout, positions: Int64) -> Int64:
    """Return the file of a store in which rows before some positions, (streams,), do not count."""
    words = np.zeros((4, layout.streams), np.int64)
    words[1], words[2, 0] = positions, _word(layout.salt, 1, positions)
    return words
