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
    """A batch that a sampler drew."""

    ahead: Ahead
    planned: Planned

    @property
    def request(self) -> Request:
        """What it is to be."""
        return self.planned.request


class Sampling:
    """Batches of `size` samples that a sampler draws from one store; a loader's source."""

    def __init__(self, reader: Reader, sampler: Sampler, size: int, check: Callable[[], None]) -> None:
        self._reader, self._sampler, self._size, self._check = reader, sampler, size, check

    def begin(self) -> Begun:
        """Draw the next batch."""
        self._check()
        ahead: list[Ahead] = []

        def draw(index: Index) -> Draw:
            ahead[:] = [self._sampler.begin(index, self._size)]
            return ahead[0].drawn

        with self._reader.lock:
            planned = self._reader.plan(draw, self._sampler.form)
            self._sampler.keep(ahead[0])
        return Begun(ahead[0], planned)

    def allocate(self, request: Request, pinned: bool) -> Arrays:
        """Return memory for a batch."""
        return allocate(request, pinned)

    def fill(self, begun: Begun, arrays: Arrays) -> None:
        """Gather a batch."""
        self._reader.gather(begun.planned, arrays, threads=1)

    def deliver(self, begun: Begun) -> None:
        """Count a batch."""
        with self._reader.lock:
            self._sampler.deliver(begun.ahead)

    def leave(self, begun: Begun) -> None:
        """Leave a batch to who asks next."""
        self._sampler.leave(begun.ahead)

    def sample(self) -> Batch:
        """Return the next batch."""
        begun = self.begin()
        try:
            return self._reader.batch(begun.planned)
        finally:
            self.deliver(begun)
