"""What samplers draw, as batches: at once, or for a loader; from one store, or so many samples from each of several."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np

from diskbuffer.errors import CorruptionError, InputError
from diskbuffer.limiting.limiter import Limiter
from diskbuffer.native.single_steps import copy_drawn
from diskbuffer.reading.batch_reader import BatchReader, Planned, Take, until_found
from diskbuffer.reading.batches.base import Batch, Request
from diskbuffer.reading.batches.pool import ArraysPool, windows_of
from diskbuffer.reading.batches.single_steps import as_batch
from diskbuffer.reading.gather.targets import Columns
from diskbuffer.reading.ranks import ALONE, Ranks
from diskbuffer.reading.wanted import TENSORS, Wanted
from diskbuffer.samplers.draws import Draw, Steps
from diskbuffer.samplers.sampler import Ahead, Sampler

_SMALL = 2**20  # bytes to decode for a batch, for which the lock can be held: some 100 us


class SampleSource(NamedTuple):
    """Where samples of a batch come from, and what may have them wait."""

    reader: BatchReader
    sampler: Sampler
    limiter: Limiter | None = None


@dataclass(slots=True)
class DrawnBatch:
    """A batch that was drawn, by each part's sampler; `planned` is None where steps of it were evicted since."""

    aheads: list[Ahead]
    planned: Planned | None


class Sampling:
    """Batches of samples from one part or several; a loader's source.

    Parameters
    ----------
    sources : sequence of SampleSource
    sizes : callable
        Returns how many samples the next batch has from each of these, multiples of the ranks; always as many in all.
    pool : ArraysPool
        Memory for `sample`.
    check : callable
        Raises where a buffer was closed.
    numbered : bool
        Whether batches tell which part each sample is from; there may be several only then.
    ranks : Ranks
        For whom batches are drawn, and whose share of each is read.
    paths : tuple of str, optional
        The columns that are wanted; those that batches have where none are named.
    refresh_every : float
        Seconds after which a loader sees what was added elsewhere.
    """

    def __init__(
        self,
        sources: Sequence[SampleSource],
        sizes: Callable[[], list[int]],
        pool: ArraysPool,
        check: Callable[[], None],
        *,
        numbered: bool = False,
        paths: tuple[str, ...] | None = None,
        ranks: Ranks = ALONE,
        refresh_every: float = math.inf,
    ) -> None:
        self._sources, self._sizes, self._pool, self._check = sources, sizes, pool, check
        self._numbered, self._ranks = numbered, ranks
        self._paths, self._refresh_every = sources[0].sampler.form.chosen(paths), refresh_every
        self._readers = [source.reader for source in sources]
        if any(reader.frame_stack != self._readers[0].frame_stack for reader in self._readers[1:]):
            raise InputError("the buffers of a mixture must have the same frame_stack")
        form = sources[0].sampler.form
        self._is_single = (
            ranks.world_size == 1 and len(sources) == 1 and not numbered and isinstance(form, Steps) and form.length is None
        )
        self._look()

    def _locked(self) -> AbstractContextManager[Any]:
        """Hold the locks of all stores, always in the same order."""
        if len(self._readers) == 1:
            return self._readers[0].lock
        stack = ExitStack()
        for _, lock in sorted({id(reader.lock): reader.lock for reader in self._readers}.items()):
            stack.enter_context(lock)
        return stack

    def wait(self) -> None:
        """Block as long as a limiter has samples wait; no lock may be held."""
        for source in self._sources:
            if source.limiter is not None and source.limiter.wait_to_sample() and self._ranks.world_size == 1:
                source.reader.refresh()  # not of ranks, which must all see the same

    def begin(self, take: Take) -> DrawnBatch:
        """Draw the next batch, or return one that was drawn and left; `take` returns memory, and may wait for it."""
        taken = take(self._request)
        with self._locked():
            self._check()
            if self._refresh_every < math.inf:
                for reader in self._readers:
                    if time.monotonic() - reader.refreshed >= self._refresh_every:
                        reader.refresh()
            return until_found(self._readers, lambda: self._begin(lambda r: taken if taken.request == r else take(r)))

    def _begin(self, take: Take) -> DrawnBatch:
        drawn, whole = self._draw()
        planned = self._plan(drawn, take) if whole else None
        self._keep(drawn)
        return DrawnBatch(drawn, planned)

    def _draw(self) -> tuple[list[Ahead], bool]:
        """Draw the next batch, or return one that was left; tell whether all of its steps are still there."""
        drawn, whole = [], True
        for (reader, sampler, _), size in zip(self._sources, self._next_sizes(), strict=True):
            left = sampler.left(size)
            whole &= left is None or sampler.is_whole(reader.index, left)
            drawn.append(left or (sampler.next(reader.index, size) if size else Ahead(Draw.of_nothing(sampler.form))))
        return drawn, whole

    def _next_sizes(self) -> list[int]:
        """Return how many samples of each part the next batch has: of one that was left, as many as it was drawn with."""
        sizes = self._sizes()
        oldest = [source.sampler.oldest_left for source in self._sources] if self._numbered else []
        left = [0 if ahead is None else ahead.drawn.size for ahead in oldest]
        return left if sum(left) == sum(sizes) else sizes

    def _keep(self, aheads: list[Ahead]) -> None:
        for source, ahead in zip(self._sources, aheads, strict=True):
            source.sampler.keep(ahead)

    def _plan(self, aheads: list[Ahead], take: Take) -> Planned:
        """Plan a batch of what was drawn, the streams of all parts numbered through."""
        self._look_again()
        drawn = [self._ranks.own(ahead.drawn) for ahead in aheads]
        arrays = take(self._request)
        if not self._numbered:
            return self._readers[0].planned(arrays, drawn[0])
        first_streams = [0, *accumulate(reader.streams for reader in self._readers[:-1])]
        together = self._together(drawn, first_streams)
        steps = [reader.ids(draw) for reader, draw in zip(self._readers, drawn, strict=True)]
        apart = np.repeat([reader.streams for reader in self._readers], [draw.size for draw in drawn])
        planned, windows = Planned(arrays, together, np.concatenate(steps), apart[:, None]), windows_of(self._request, together)
        for reader, first in zip(self._readers, first_streams, strict=True):
            planned.add(reader, windows, first)
        return planned

    def _look_again(self) -> None:
        for reader, known in zip(self._readers, self._known_columns, strict=True):
            if reader.columns is not known:  # some were written since
                self._look()
                return

    def _look(self) -> None:
        self._known_columns = [reader.columns for reader in self._readers]
        size = sum(map(self._ranks.share, self._sizes()))
        columns = _common([reader.select(self._paths) for reader in self._readers])
        self._request = Request(columns, self._readers[0].frame_stack, self._sources[0].sampler.form, size)
        self._is_small = size * self._request.columns.sample_bytes(self._request.frame_stack) <= _SMALL

    def _together(self, drawn: list[Draw], first_streams: list[int]) -> Draw:
        streams = [draw.streams + first for draw, first in zip(drawn, first_streams, strict=True)]
        positions, starts, ends = (np.concatenate(each) for each in zip(*(draw[1:4] for draw in drawn), strict=True))
        notes = {
            name: np.concatenate([draw.notes.get(name, np.ones(draw.size, np.float32)) for draw in drawn])  # weights
            for name in {name: None for draw in drawn for name in draw.notes}
        }
        notes["part"] = np.repeat(np.arange(len(drawn)), [draw.size for draw in drawn])
        return Draw(np.concatenate(streams), positions, starts, ends, notes)

    def finalize(self, begun: DrawnBatch, take: Take) -> DrawnBatch:
        """Return a batch whose turn has come, or another where steps of it were evicted since it was drawn."""
        if self._is_fresh(begun):
            return begun
        with self._locked():
            whole = [
                source.sampler.is_whole(source.reader.index, a) for source, a in zip(self._sources, begun.aheads, strict=True)
            ]
            if begun.planned is not None and all(whole):
                return begun
            return until_found(self._readers, lambda: self._mend(begun, take))

    def _is_fresh(self, begun: DrawnBatch) -> bool:
        """Return whether all steps are known to be there still; no lock is needed for that."""
        if begun.planned is None:
            return False
        for source, ahead, (index, losses) in zip(self._sources, begun.aheads, begun.planned.seen, strict=True):
            if source.reader.index is not index or (index.losses[0] != losses and ahead.has_lost(index, source.sampler.form)):
                return False
        return True

    def _mend(self, begun: DrawnBatch, take: Take) -> DrawnBatch:
        self._replace(begun.aheads)
        return DrawnBatch(begun.aheads, self._plan(begun.aheads, take))

    def _replace(self, aheads: list[Ahead]) -> None:
        """Draw others in place of steps that are gone."""
        for source, ahead in zip(self._sources, aheads, strict=True):
            if not source.sampler.is_whole(source.reader.index, ahead):
                source.sampler.mend(source.reader.index, ahead)

    def deliver(self, begun: DrawnBatch) -> None:
        """Count a batch."""
        with self._locked():
            for source, ahead in zip(self._sources, begun.aheads, strict=True):
                source.sampler.deliver(ahead)
        for source, ahead in zip(self._sources, begun.aheads, strict=True):
            if source.limiter is not None:
                source.limiter.note_sampled(self._ranks.share(ahead.drawn.size) * source.sampler.form.steps)

    def leave(self, begun: DrawnBatch) -> None:
        """Leave a batch for the next caller. Without the lock: the collector of garbage may be what stops a loader."""
        for source, ahead in zip(self._sources, begun.aheads, strict=True):
            source.sampler.leave(ahead)

    def _fail(self, begun: DrawnBatch, error: BaseException) -> None:
        """Leave a batch that could not be delivered; one that is damaged counts, or it would come again and again."""
        if isinstance(error, CorruptionError):
            self.deliver(begun)
        else:
            self.leave(begun)

    def draw(self) -> dict[str, Any]:
        """Return what the next batch would be of, without reading it."""
        self.wait()
        with self._locked():
            self._check()
            begun = self._next_drawn()
            drawn = self._ranks.own(begun.aheads[0].drawn)
            steps = self._readers[0].ids(drawn)
        self.deliver(begun)
        return {"steps": steps, **drawn.delivered_notes()}

    def _next_drawn(self) -> DrawnBatch:
        """Draw the next batch, with other steps in place of those that are gone. The lock must be held."""
        aheads, whole = until_found(self._readers, self._draw)
        self._keep(aheads)
        begun = DrawnBatch(aheads, None)
        try:
            if not whole:
                until_found(self._readers, lambda: self._replace(aheads))
        except BaseException as error:
            self._fail(begun, error)
            raise
        return begun

    def sample(self, wanted: Wanted = TENSORS) -> Batch:
        """Return the next batch, or what is wanted of it."""
        self.wait()
        if self._is_single and wanted.transform is None and wanted.device is None:
            at_once = self._sample_at_once(wanted.numpy)
            if at_once is not None:
                return at_once
        self._readers[0].gatherer.call_threads()
        delivery = wanted.delivery(self._pool)
        begun = self.begin(delivery.take)
        try:
            planned = self.finalize(begun, delivery.take).planned
            assert planned is not None
            batch: Batch = delivery.delivered(planned.gather())
        except BaseException as error:
            self._fail(begun, error)
            raise
        self.deliver(begun)
        return batch

    def _sample_at_once(self, numpy: bool) -> Batch | None:
        """Return the next batch of single steps, if it takes so short that the lock can be held until all is done."""
        reader, (_, sampler, limiter), (size,) = self._readers[0], self._sources[0], self._sizes()
        with reader.lock:
            self._check()
            self._look_again()
            single, begun, batch = reader.single_steps(self._paths), None, None
            if single is None and not self._is_small:
                return None
            random = sampler.random()
            if random is not None:
                try:
                    if single is None:
                        batch = reader.gather_random(self._request, random, numpy)
                    else:
                        batch = reader.copy_random(single, size, random, numpy)
                except BaseException as error:
                    ahead = sampler.next(reader.index, size)  # the same again
                    sampler.keep(ahead)
                    self._fail(DrawnBatch([ahead], None), error)
                    raise
                if batch is not None:
                    sampler.batches += 1
            elif single is not None and size <= single.most:
                begun, batch = self._copy_drawn(numpy)
        if begun is not None:
            self.deliver(begun)
        elif batch is not None and limiter is not None:
            limiter.note_sampled(size)
        return batch

    def _copy_drawn(self, numpy: bool) -> tuple[DrawnBatch | None, Batch | None]:
        """Return the next batch as it was drawn and as it is; None, and it is left, where it has to be planned.

        The lock must be held.
        """
        reader = self._readers[0]
        begun = self._next_drawn()
        try:
            drawn = begun.aheads[0].drawn
            single = reader.single_steps(self._paths)  # as columns are, once steps that are gone were looked for
            if single is not None:
                filled = reader.copy_at_once(single, copy_drawn, drawn.size, drawn.streams, drawn.positions)
                if filled is not None:
                    return begun, as_batch(single, filled, drawn.delivered_notes(), numpy=numpy)
        except BaseException as error:
            self._fail(begun, error)
            raise
        self.leave(begun)  # it is on the disk, or some of it was evicted elsewhere
        return None, None


def _common(per_reader: list[Columns]) -> Columns:
    """Return the columns that all have, as the first has them."""
    first = per_reader[0]
    if all(columns is first for columns in per_reader):
        return first
    for other in per_reader[1:]:
        difference = first.schema.recorded.difference(other.schema.recorded)
        if difference:
            raise InputError(
                f"the buffers of a mixture must have recorded the same columns; of the first, and another:\n{difference}"
            )
    return first.select(tuple(p for p in first.paths if all(p in c.paths and c.schema[p] == first.schema[p] for c in per_reader)))
