"""One capacity over the stores of several writers: who gives up segments, and when.

As long as all writers together keep more than the capacity: what a writer has left that is gone goes first. Then whoever keeps
the most gives up its oldest segment. Nobody can do that for a writer that lives but adds nothing; so that the others do not wait
for it, they give up segments of their own once there is a segment too many for every writer.
"""

from __future__ import annotations

import time
import warnings
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from diskbuffer.errors import DiskBufferError, LockedError
from diskbuffer.index.fields import LOW
from diskbuffer.index.index import Index
from diskbuffer.reading.restore_index import read_index
from diskbuffer.recording.stream_log import StreamLog
from diskbuffer.store.opening import open_store
from diskbuffer.store.system.files import Files
from diskbuffer.store.system.writer_lock import is_held
from diskbuffer.writers.counts import Counts
from diskbuffer.writers.description import read_description

T = TypeVar("T")
_PATIENCE, _ANNOUNCED_AFTER = 10.0, 1.0  # seconds


def in_turn(opened: Callable[[], T]) -> T:
    """Return what `opened` opens; wait where another writer has the store for a moment, to give up what is too old."""
    begin, announced = time.monotonic(), False
    while True:
        try:
            return opened()
        except LockedError as error:
            waited = time.monotonic() - begin
            if waited > _PATIENCE:
                raise
            if waited > _ANNOUNCED_AFTER and not announced:
                announced = True
                warnings.warn(f"{error}. Waiting for it, {_PATIENCE:.0f} seconds at most", stacklevel=3)
        time.sleep(0.02)


class SharedRetention:
    """Queue a writer's segments in the order in which they become evictable, as `Retention` does for a store of one writer.

    Parameters
    ----------
    root : Path
        The directory of all writers.
    name : str
        This one.
    index : Index
        Of its store.

    Attributes
    ----------
    look_at : float
        Number of steps added before which none may go.
    """

    def __init__(self, root: Path, name: str, index: Index) -> None:
        self._files, self._name, self._index = Files(root), name, index
        self._counts = Counts(self._files)
        self._queue: deque[int] = deque()  # streams
        self.look_at: float = 0
        self._number = self._look()

    def _look(self) -> int:
        """See who the writers are; return the number of this one."""
        description = read_description(self._files)
        self._capacity, self._writers = description.common.capacity, description.writers
        return [entry.name for entry in description.writers].index(self._name)

    def resize(self, capacity: int | None) -> None:  # noqa: ARG002
        """Look again: the capacity is that of all writers."""
        self.look_at = 0

    def add(self, stream: int, added: int) -> None:  # noqa: ARG002  it is not this writer's count that counts
        """Note that a stream's oldest segment not noted yet became evictable."""
        self._queue.append(stream)
        self.look_at = 0

    def forget(self, stream: int) -> None:
        """Forget a stream's oldest segment that was noted: it goes."""
        self._queue.remove(stream)

    def due(self, added: int, added_to: Callable[[int], int]) -> int | None:  # noqa: ARG002
        """Return a stream whose oldest segment may go, if there is one; what writers that are gone have left goes here."""
        self.look_at = float("inf")  # until a segment more is evictable
        self._counts.steps[self._number] = len(self._index)
        if self._capacity is None:
            return None
        self._look()
        steps = self._counts.steps[: len(self._writers)]
        if (excess := int(steps.sum()) - self._capacity) <= 0:
            return None
        excess -= self._give_up_of_others(excess)
        if not self._queue or excess < self._steps_of_oldest(self._queue[0]):
            return None
        largest = self._counts.steps[self._number] >= steps.max()
        if not largest and excess < len(self._writers) * self._index.segment_rows:
            return None
        self.look_at = 0
        return self._queue[0]

    def oldest(self) -> int | None:
        """Return the stream whose oldest segment became evictable first."""
        return self._queue[0] if self._queue else None

    def _steps_of_oldest(self, stream: int) -> int:
        first = self._index.first_step(stream)
        low = int(self._index.table[stream, LOW])
        return self._index.steps_before(stream, low + self._index.segment_rows) - first

    def _give_up_of_others(self, excess: int) -> int:
        """Evict up to so many steps of writers that are gone; return how many."""
        evicted = 0
        for number, entry in enumerate(self._writers):
            if number == self._number or self._counts.steps[number] == 0 or evicted >= excess:
                continue
            files = Files(self._files.root / entry.name)
            if is_held(files) is not False:
                continue
            try:
                evicted += self._evict(number, files, excess - evicted)
            except (DiskBufferError, OSError):
                continue  # it has come back, or is damaged, which it is told when it does
        return evicted

    def _evict(self, number: int, files: Files, steps: int) -> int:
        """Evict the oldest segments of a writer that is gone, up to so many steps; return how many there were."""
        store = open_store(files, writable=True)
        try:
            index = read_index(store, store.layout.frame_stack - 1, Index)
            log = StreamLog(store, index)
            try:
                before = len(index)
                log.give_up(steps)
                self._counts.steps[number] = len(index)
                return before - len(index)
            finally:
                log.close(store.lock)
        finally:
            store.close()
