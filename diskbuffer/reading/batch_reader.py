"""Reading: from a draw to a batch. The draw and the plan are made under the store's lock, the gather is not."""

from __future__ import annotations

import json
import math
import os
import threading
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from diskbuffer.arguments.inputs import integers, step_ids
from diskbuffer.errors import EvictedError, InputError
from diskbuffer.index.fields import HEAD, LOW
from diskbuffer.index.index import Index
from diskbuffer.index.named_values import Named
from diskbuffer.native.jobs import Job
from diskbuffer.native.sampling import Philox
from diskbuffer.native.single_steps import copy_numbered, copy_random, copy_recent
from diskbuffer.reading.batches.base import Arrays, Batch, Request, Windows, as_tensors
from diskbuffer.reading.batches.pool import ArraysPool, windows_of
from diskbuffer.reading.batches.single_steps import as_batch
from diskbuffer.reading.delivery import Delivery
from diskbuffer.reading.episode_columns import EpisodeColumns, EpisodeFields, list_episodes, sum_rewards, when_they_ended
from diskbuffer.reading.follow_index import IndexFollower
from diskbuffer.reading.gather.gatherer import Gatherer, default_threads, raise_damage
from diskbuffer.reading.gather.plan import plan
from diskbuffer.reading.gather.single_steps import Copy, Filled, SingleSteps
from diskbuffer.reading.gather.store_tail import StoreTail
from diskbuffer.reading.gather.targets import Columns, Memory
from diskbuffer.reading.readable import Mapped, Readable
from diskbuffer.runtime.signals import Uninterrupted
from diskbuffer.samplers.draws import Draw, Form, Steps
from diskbuffer.schema.nested import one_of
from diskbuffer.schema.schema import TAG
from diskbuffer.store.following import MOVING_SECONDS
from diskbuffer.store.store import Store

T = TypeVar("T")
Take = Callable[[Request], Arrays]
Int64 = npt.NDArray[np.int64]
_SELECTIONS = 64  # of columns that are remembered
_SMALL = 1024  # steps
_NO_COLUMNS = {  # what one may take for a column of batches, and what it is
    "steps": " (every batch has them)",
    "next_obs": " (it comes with 'obs'; of windows it is 'obs' at offset 1)",
    "is_last": " (the buffer's own, which Zarr tools can read; buffer.episodes tells where episodes end)",
}


class Planned:
    """A batch that is decided, and not gathered yet: its memory, and a job that fills it.

    What it will be gathered from stays there until it is.

    Parameters
    ----------
    arrays : Arrays
    drawn : Draw
    firsts : (size,) int64
        The names of the drawn steps.
    apart : int or (size, 1) int64
        How far the names of consecutive steps lie apart, as `Form.names` takes it.

    Attributes
    ----------
    seen : list of (Index, int)
        Of each store, and how many of its segments were gone by then.
    """

    __slots__ = ("_shares", "arrays", "drawn", "job", "seen")

    def __init__(self, arrays: Arrays, drawn: Draw, firsts: Int64, apart: int | Int64) -> None:
        self.arrays, self.drawn, self.job = arrays, drawn, Job()
        self._shares: list[tuple[Gatherer, Memory]] = []
        self.seen: list[tuple[Index, int]] = []
        self.job.keep(arrays)
        arrays.note(drawn, arrays.request.form.ids(drawn, firsts, apart))
        arrays.plan_finish(self.job, drawn)

    def add(self, reader: BatchReader, windows: Sequence[Windows], first_stream: int = 0) -> None:
        """Plan what of it comes from a store, whose first stream has that number in it; the store's lock must be held."""
        for memory, window in zip(self.arrays.memories, windows, strict=True):
            own = memory if reader.columns is self.arrays.request.columns.all else memory.bound_to(reader.columns)
            plan(self.job, reader.index, reader.maps, own.targets, *window, first_stream)
            self._shares.append((reader.gatherer, memory))
        self.seen.append((reader.index, int(reader.index.losses[0])))

    @property
    def _gatherer(self) -> Gatherer:
        return self._shares[0][0]

    def submit(self, threads: int) -> None:
        """Have so many threads gather it."""
        self._gatherer.submit(self.job, self._shares, threads)

    @property
    def is_gathered(self) -> bool:
        """Whether it is in its memory, all of it."""
        return self.job.is_over and self.job.damage is None

    def wait(self) -> Arrays:
        """Wait until it is gathered, and help; return its memory. A CorruptionError where it cannot be."""
        self._gatherer.wait(self.job)
        raise_damage(self.job, self._shares)
        self.arrays.finish(self.drawn)
        return self.arrays

    def gather(self) -> Arrays:
        """Gather it, in as many threads as are fastest; return its memory."""
        self._gatherer.run(self.job, self._shares)
        self.arrays.finish(self.drawn)
        return self.arrays


class BatchReader(ABC):
    """Bring steps of what is open into batches; any number of threads at once.

    Attributes
    ----------
    index : Index
        Read from the store; whoever writes keeps it up, others `refresh` it.
    columns : Columns
        All that there are.
    identity : int or str
        What no other store has, but copies of this one: its number, or where it is, of several writers' stores.
    refreshed : float
        When that was, in seconds of `time.monotonic`.
    """

    def __init__(self, store: Readable, frame_stack: int, zeros: bool, threads: int | None = None) -> None:
        layout = store.layout
        self._store, self.streams, self.closed = store, layout.streams, False
        self.identity: int | str = layout.salt or os.path.realpath(store.root)
        self.frame_stack, self._zeros = frame_stack, zeros
        self.index, self.refreshed = self._read(), time.monotonic()
        self._owned = self._tails()
        self.columns = self._look(self._owned)
        self._selected: dict[tuple[str, ...] | None, Columns] = {}  # some of these, as they were asked for
        self._single: dict[tuple[str, ...] | None, SingleSteps | None] = {}  # for these
        self.pool = ArraysPool()
        largest = max((layout.chunk_bytes(path) for path in layout.packed), default=0)
        self.gatherer = Gatherer(largest, default_threads() if threads is None else threads, store.verification.describe_rows)

    @abstractmethod
    def _read(self) -> Index:
        """Return the index as it is by now."""

    @abstractmethod
    def _tails(self) -> list[StoreTail]:
        """Return what is their own of the stores that are read."""

    def look_again(self) -> None:
        """See which columns there are by now, and which stores."""
        owned = self._tails()
        if self.columns.schema is not self._store.layout.schema or owned != self._owned:
            columns = self._look(owned)
            with Uninterrupted():
                self._owned, self.columns, self._selected, self._single = owned, columns, {}, {}

    def _look(self, owned: list[StoreTail]) -> Columns:
        layout = self._store.layout
        packed = {path: (layout.chunk_rows(path), layout.chunks(path)) for path in layout.packed}
        return Columns.of(layout.schema, packed, self._zeros, owned)

    def refresh(self) -> None:
        """See what a writer elsewhere has added and evicted; a writer knows that itself."""
        if self._store.writable:
            return
        with self._store.lock:
            try:
                self.index = self._read()
                self.look_again()
            except BaseException:  # whoever goes on with the older index must not take rows that came into its slots for its own
                with Uninterrupted():
                    self._store.forget_rows()
                raise
            self.refreshed = time.monotonic()

    def episodes(self) -> EpisodeColumns:
        """List the episodes of which a step can be sampled."""
        with self._store.lock:
            return until_found([self], lambda: list_episodes(self._store, self.index, self.refresh))

    def values_of_episodes(self, ids: Int64) -> dict[str, Named]:
        """Return the values of episodes by name, as of now: of those names that one of them has a value of."""
        return self._store.values_of_episodes(ids)

    def when_they_ended(self, episodes: EpisodeColumns) -> Int64:
        """Return when each of the listed episodes ended, in steps of all environments, about."""
        with self._store.lock:
            return when_they_ended(self._store, self.index, episodes)

    def sum_rewards(self, episodes: EpisodeColumns) -> npt.NDArray[np.float64]:
        """Sum up the rewards of episodes; NaN where one was evicted."""
        with self._store.lock:
            return until_found([self], lambda: sum_rewards(self._store, self.index, episodes))

    @property
    def origin(self) -> dict[str, Any]:
        """Where the steps come from: ``path``, and ``environment``, which is None where nothing is known of it."""
        return {"path": str(self._store.root), "environment": self._store.layout.environment}

    @property
    def fps(self) -> float | None:
        """Steps a second, as the store's metadata has them; None where it does not. An InputError where it has no such number."""
        found = {json.dumps((metadata or {}).get("fps")) for metadata in self._store.metadata}
        if len(found) > 1:
            raise InputError(f"{self._store.root}: the writers' metadata has several steps a second, {', '.join(sorted(found))}")
        fps = json.loads(found.pop()) if found else None
        if fps is not None and (not isinstance(fps, int | float) or isinstance(fps, bool) or not 0 < fps < 1e9):
            raise InputError(f"{self._store.root}: metadata['fps'] is {fps!r}, and steps a second are a number above 0")
        return None if fps is None else float(fps)

    def refuse_another(self, identity: int | str | None) -> None:
        """Raise an InputError where episodes are of the store with another identity."""
        if identity not in (None, self.identity):
            raise InputError(f"these episodes are of another buffer than {self._store.root}: take them from its own `episodes`")

    @property
    def lock(self) -> threading.RLock:
        """The store's."""
        return self._store.lock

    # Batches

    def plan(self, draw: Callable[[Index], Draw], form: Form, take: Take, paths: tuple[str, ...] | None = None) -> Planned:
        """Draw steps, and plan how to gather them; `take` returns memory."""

        def attempt() -> Planned:
            drawn = draw(self.index)
            return self.planned(take(Request(self.select(paths), self.frame_stack, form, drawn.size)), drawn)

        with self._store.lock:
            return until_found([self], attempt)

    def select(self, paths: tuple[str, ...] | None) -> Columns:
        """Return some of the columns, None for those of batches by default; an InputError where one is missing."""
        columns = self._selected.get(paths)
        if columns is None:
            schema = self.columns.schema
            for path in paths or ():
                if path not in self.columns.paths:
                    why = _NO_COLUMNS.get(path.split("/")[0], "")
                    raise InputError(f"there is no column {path!r}{why}; there are {', '.join(self.columns.paths)}")
            if len(self._selected) >= _SELECTIONS:
                self._selected = {}
            some = tuple(path for path in self.columns.paths if not schema[path].on_request) if paths is None else paths
            columns = self._selected[paths] = self.columns if some == self.columns.paths else self.columns.select(some)
        return columns

    @property
    def maps(self) -> Mapped:
        """What is mapped of the store."""
        return self._store.maps

    def planned(self, arrays: Arrays, drawn: Draw) -> Planned:
        """Plan a batch of steps that are all in this store."""
        planned = Planned(arrays, drawn, self.ids(drawn), self.streams)
        planned.add(self, windows_of(arrays.request, drawn))
        return planned

    def ids(self, drawn: Draw) -> Int64:
        """Return the names of drawn steps."""
        return drawn.positions.copy() if self.streams == 1 else drawn.positions * self.streams + drawn.streams

    def at(self, steps: Any, form: Form, paths: tuple[str, ...] | None = None, *, numpy: bool = False) -> Batch:
        """Return given steps, or the sequences that they start, in a form; tensors, or arrays."""
        ids = step_ids(steps)
        batch = self._at_once(form, paths, numpy, copy_numbered, ids)
        if batch is not None:
            return batch
        self.gatherer.call_threads()
        length = form.length if isinstance(form, Steps) else None
        if length is not None and length > len(self.index):  # before memory is taken for it
            raise InputError(f"no sequence of {length} steps can be read: the buffer holds {len(self.index)} in all, or by now")
        return self._batch(self.draw_named(ids, length), len(ids), form, paths, numpy=numpy)

    def recent(self, ages: Any, streams: Any, form: Form, paths: tuple[str, ...] | None = None, *, numpy: bool = False) -> Batch:
        """Return single steps, in a form, by how many steps of their stream came after them; tensors, or arrays."""
        back, of = _by_age(ages, streams)
        batch = self._at_once(form, paths, numpy, copy_recent, back, of)
        if batch is not None:
            return batch
        self.gatherer.call_threads()
        return self._batch(_draw_recent(back, of), len(back), form, paths, numpy=numpy)

    def episode(self, episode: EpisodeFields, paths: tuple[str, ...] | None = None, *, numpy: bool = False) -> Batch:
        """Return the steps of an episode, and their observations with the final one."""
        steps: Batch = one_of(self.at([episode.start], Steps(episode.length), paths, numpy=True), 0)
        if "obs" in steps:
            steps["obs"] = _with_last(steps["obs"], steps.pop("next_obs"))
        return steps if numpy else as_tensors(steps)

    def draw_named(self, ids: Int64, length: int | None = None) -> Callable[[Index], Draw]:
        """Return what draws given steps, or the sequences that they start; an InputError where one cannot be read."""
        streams, positions = ids % self.streams, ids // self.streams

        def draw(index: Index) -> Draw:
            starts, ends = index.episodes_of(streams, positions)
            remaining = np.where(starts < 0, 0, ends - positions)
            if (remaining < 1).any():
                raise InputError(
                    f"step {ids[remaining < 1][0]} cannot be read: it was evicted, was never added, or is no step",
                    advice="Steps are named as in a batch's steps, not counted from 0: ReplayBuffer.steps() returns all names",
                )
            if length is not None and (remaining < length).any():
                step, few = ids[np.argmin(remaining)], remaining.min()
                raise InputError(f"no {length} steps can be read from step {step} on: its episode has {few} from there on")
            return Draw(streams, positions, starts, ends)

        return draw

    def single_steps(self, paths: tuple[str, ...] | None) -> SingleSteps | None:
        """Return what reads single steps without a plan; None where there are stacks, or chunks.

        The lock must be held until it was used: columns may be removed meanwhile.
        """
        try:
            return self._single[paths]
        except KeyError:
            columns = self.select(paths)
            if len(self._single) >= _SELECTIONS:
                self._single = {}
            single = SingleSteps(columns) if self.frame_stack == 1 and SingleSteps.can_be(columns) else None
            self._single[paths] = single
            return single

    def _batch(
        self, draw: Callable[[Index], Draw], size: int, form: Form, paths: tuple[str, ...] | None, *, numpy: bool
    ) -> Batch:
        """Return drawn steps; the memory of all columns is kept for the next batch of its kind, in any case if it is small."""
        delivery = Delivery(self.pool if paths is None or size <= _SMALL else ArraysPool(), numpy=numpy)
        batch: Batch = delivery.delivered(self.plan(draw, form, delivery.take, paths).gather())
        return batch

    def _at_once(self, form: Form, paths: tuple[str, ...] | None, numpy: bool, copy: Copy, *steps: Int64) -> Batch | None:
        """Copy single steps, and make a batch of them; None where it has another form, or they have to be planned."""
        if not isinstance(form, Steps) or form.length is not None:
            return None
        with self._store.lock:
            single = self.single_steps(paths)
            filled = None if single is None else self.copy_at_once(single, copy, len(steps[0]), *steps)
            return None if single is None or filled is None else as_batch(single, filled, numpy=numpy)

    def copy_at_once(self, single: SingleSteps, copy: Copy, size: int, *steps: Any) -> Filled | None:
        """Return the arrays of so many single steps; None where they have to be planned.

        The lock must be held until a batch holds them: what nobody holds is filled with the next one.
        """
        return self.gatherer.quickly(size, single.filled, copy, self.index, self._store.maps.sources, size, *steps)

    def copy_random(self, single: SingleSteps, size: int, random: Philox, numpy: bool) -> Batch | None:
        """Draw and copy single steps; None where they have to be planned. The lock must be held."""
        filled = self.gatherer.quickly(size, single.filled, copy_random, self.index, self._store.maps.sources, size, random)
        return None if filled is None else as_batch(single, filled, numpy=numpy)

    def gather_random(self, request: Request, random: Philox, numpy: bool) -> Batch | None:
        """Draw, plan and gather single steps; None where only a plan can, or can say why not. The lock must be held."""
        arrays, stack = self.pool.take(request), request.frame_stack
        ids = np.empty(request.size, np.int64)
        what = self.index, self._store.maps.sources, arrays.memories[0], random, stack - 1, stack + 1, ids
        batch = None
        if self.gatherer.quickly(request.size, self.gatherer.draw, *what):
            arrays.notes = {"steps": ids}
            batch = arrays.batch(numpy=numpy)
        self.pool.give(arrays)
        return batch

    def recent_ids(self, ages: Any, streams: Any) -> Int64:
        """Return their names."""
        with self._store.lock:
            return self.ids(_draw_recent(*_by_age(ages, streams))(self.index))

    def count(self) -> int:
        """Return how many steps can be sampled."""
        with self._store.lock:
            return len(self.index)

    def count_episodes(self) -> int:
        """Return how many episodes have a step that can be sampled."""
        with self._store.lock:
            return self.index.count_episodes()

    def counts(self) -> tuple[Int64, Int64]:
        """Return how many steps of each stream can be sampled, and how many there have ever been."""
        with self._store.lock:
            return self.index.steps(), np.array([self.index.added_to(stream) for stream in range(self.streams)], np.int64)

    def all_ids(self) -> Int64:
        """Return the ids of all steps that can be sampled, stream after stream."""
        with self._store.lock:
            streams, positions, *_ = self.index.locate(np.arange(len(self.index)))
        return np.asarray(positions * self.streams + streams)

    def remaining(self, steps: Any) -> Int64:
        """Count the steps of its episode from each step on; 0 where it cannot be read."""
        ids = step_ids(steps)
        with self._store.lock:
            starts, ends = self.index.episodes_of(ids % self.streams, ids // self.streams)
        return np.where(starts < 0, 0, ends - ids // self.streams)

    def elapsed(self, steps: Any) -> Int64:
        """Count the steps of its episode before each step; -1 where it cannot be read."""
        ids = step_ids(steps)
        with self._store.lock:
            starts, _ = self.index.episodes_of(ids % self.streams, ids // self.streams)
        return np.where(starts < 0, -1, ids // self.streams - starts)

    def rows(self, path: str, draw: Callable[[Index], Draw], before: int, rows: int) -> npt.NDArray[Any]:
        """Return a column's rows around drawn ones, (n, rows, ...): windows of which the drawn row is number `before`.

        No other column is read, and no other row's chunk.
        """

        def attempt() -> tuple[Job, Memory]:
            drawn = draw(self.index)
            return self._rows(self.select((path,)), drawn, before, rows)

        with self._store.lock:
            job, memory = until_found([self], attempt)
        self.gatherer.run(job, [(self.gatherer, memory)])
        return memory.arrays[0]

    def _rows(self, columns: Columns, drawn: Draw, before: int, rows: int) -> tuple[Job, Memory]:
        """Plan rows of a column, (size, rows, ...)."""
        job, memory = Job(), Memory(columns, [(0, rows, False)], drawn.size)
        plan(job, self.index, self._store.maps, memory.targets, drawn, before, rows)
        return job, memory

    def has_tag(self, tag: str, drawn: Draw) -> npt.NDArray[np.bool_]:
        """Return which of some steps lie in an episode with a tag. The lock must be held."""
        layout = self._store.layout
        if tag not in layout.tags or TAG not in layout.derived:
            if layout.tags:
                warnings.warn(
                    f"{self._store.root}: no episode has the tag {tag!r}; there are {', '.join(layout.tags[:9])}", stacklevel=2
                )
            return np.zeros(drawn.size, np.bool_)
        job, memory = self._rows(self.select((TAG,)), drawn, 0, 1)
        self.gatherer.run(job, [(self.gatherer, memory)])
        return np.asarray(memory.arrays[0].ravel() == layout.tags.index(tag) + 1)

    def newest(self, path: str, only: int | None = None) -> npt.NDArray[Any]:
        """Return the stack, (streams, frame_stack, ...), that each stream ends with; zeros where a stream is empty.

        With `only`, of all streams but this one there are zeros, too.
        """
        stack, index = self.frame_stack, self.index
        heads = index.table[:, HEAD]
        streams = np.flatnonzero(heads >= 0) if only is None else np.flatnonzero(heads[only : only + 1] >= 0) + only
        starts = np.array([index.episode_of(int(s), int(heads[s])) for s in streams], np.int64)
        low = index.table[streams, LOW]
        drawn = Draw(streams, heads[streams], np.maximum(starts, low), heads[streams])
        frames = self.rows(path, lambda _: drawn, before=stack - 1, rows=stack)
        stacks = np.zeros((len(heads), *frames.shape[1:]), frames.dtype)
        stacks[streams] = frames
        return stacks

    def close(self) -> None:
        """Stop the threads."""
        self.closed = True
        self.gatherer.close()


class StoreReader(BatchReader):
    """Read one store."""

    _store: Store

    def __init__(self, store: Store, frame_stack: int, zeros: bool, threads: int | None = None) -> None:
        self._follower = IndexFollower(store, frame_stack - 1)
        super().__init__(store, frame_stack, zeros, threads)

    def _read(self) -> Index:
        return self._follower.read()

    def _tails(self) -> list[StoreTail]:
        return [StoreTail.of(self._store)]


def _with_last(obs: Any, following: Any) -> Any:
    """Put the last of the observations that came next after all others."""
    if isinstance(obs, dict):
        return {name: _with_last(part, following[name]) for name, part in obs.items()}
    return np.concatenate([obs, following[-1:]])


def _by_age(ages: Any, streams: Any) -> tuple[Int64, Int64]:
    """Return ages and streams as arrays of one shape."""
    back, of = integers("ages", ages), integers("envs", 0 if streams is None else streams, (0, 1))
    if of.shape not in (back.shape, (), (1,)):
        raise InputError(f"envs: expected one, or {len(back)}, as there are ages, found {len(of)}")
    return back, of if of.shape == back.shape else np.broadcast_to(of, back.shape)


def _draw_recent(back: Int64, of: Int64) -> Callable[[Index], Draw]:
    """Return what draws steps by age, of streams."""

    def draw(index: Index) -> Draw:
        located, missing = index.recent(of, back)
        if missing >= 0:
            env, envs = of[missing], len(index.table)
            if not 0 <= env < envs:
                raise InputError(f"envs: there is no environment {env}; they are numbered from 0 to {envs - 1}")
            raise InputError(f"environment {env} has {index.steps()[env]} steps; there is none of age {back[missing]}")
        return Draw(*located)

    return draw


def until_found(readers: Sequence[BatchReader], attempt: Callable[[], T]) -> T:
    """Return what an attempt returns, made again while a writer elsewhere moves segments under it; all locks must be held."""
    begun = math.inf
    while True:
        try:
            return attempt()
        except EvictedError:
            begun = min(begun, time.monotonic())
            if time.monotonic() - begun > MOVING_SECONDS:
                raise
            for reader in readers:
                reader.refresh()
