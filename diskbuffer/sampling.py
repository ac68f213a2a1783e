"""What samplers draw, as batches: at once, or for a loader."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from diskbuffer.form import Draw
from diskbuffer.gather.arrays import Arrays, Batch, Request
from diskbuffer.gather.batch import allocate
from diskbuffer.index import Index
from diskbuffer.reader import Planned, Reader
from diskbuffer.samplers.sampler import Ahead, Sampler


@dataclass(frozen=True)
class Begun:
    """A batch that a sampler drew; `planned` is None where steps of it were evicted since."""

    ahead: Ahead
    planned: Planned | None

    @property
    def request(self) -> Request | None:
        """What it is to be; None where that is not settled before its turn."""
        return None if self.planned is None else self.planned.request


class Sampling:
    """Batches of `size` samples that a sampler draws from one store; a loader's source."""

    def __init__(self, reader: Reader, sampler: Sampler, size: int, check: Callable[[], None]) -> None:
        self._reader, self._sampler, self._size, self._check = reader, sampler, size, check

    def begin(self) -> Begun:
        """Draw the next batch, or take up one that was drawn and left."""
        self._check()
        sampler = self._sampler
        with self._reader.lock:
            left = sampler.left(self._size)
            if left is not None and not sampler.is_whole(self._reader.index, left):
                sampler.keep(left)
                return Begun(left, None)
            found = left

            def draw(index: Index) -> Draw:
                nonlocal found
                found = left or sampler.next(index, self._size)
                return found.drawn

            planned = self._reader.plan(draw, sampler.form)
            assert found is not None
            sampler.keep(found)
            return Begun(found, planned)

    def settle(self, begun: Begun) -> Begun:
        """Return a batch whose turn has come, or another where steps of it were evicted since it was drawn."""
        planned, reader = begun.planned, self._reader
        if planned is not None and planned.is_fresh:
            return begun
        with reader.lock:
            if planned is not None and self._sampler.is_whole(reader.index, begun.ahead):
                return begun

            def draw(index: Index) -> Draw:
                self._sampler.mend(index, begun.ahead)
                return begun.ahead.drawn

            return Begun(begun.ahead, reader.plan(draw, self._sampler.form))

    def allocate(self, request: Request, pinned: bool) -> Arrays:
        """Return memory for a batch."""
        return allocate(request, pinned)

    def fill(self, begun: Begun, arrays: Arrays) -> None:
        """Gather a batch."""
        assert begun.planned is not None
        begun.planned.gather(arrays, threads=1)

    def deliver(self, begun: Begun) -> None:
        """Count a batch."""
        with self._reader.lock:
            self._sampler.deliver(begun.ahead)

    def leave(self, begun: Begun) -> None:
        """Leave a batch to who asks next."""
        with self._reader.lock:
            self._sampler.leave(begun.ahead)

    def sample(self) -> Batch:
        """Return the next batch."""
        begun = self.begin()
        try:
            settled = self.settle(begun)
            assert settled.planned is not None
            return self._reader.batch(settled.planned)
        finally:
            self.deliver(begun)
