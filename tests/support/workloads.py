"""Seeded workloads on small stores, traced, with what was promised after every call."""

from __future__ import annotations

import contextlib
import copy
import errno
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import numpy.typing as npt
import torch

import diskbuffer as db
from diskbuffer.store.system.files import Files
from diskbuffer.store.writing.sealer import Sealer
from tests.support import pictures
from tests.support.simulated_disk import Disk, Event
from tests.support.tracing import Fault, Trace

Array = npt.NDArray[Any]
VALUE, TAGS = "value", ("red", "green", "blue")
POSITIONS = 4096  # more than any workload writes
STORE = "runs/store"  # below the traced directory; `runs` is made by the library, too


class World:
    """Experience of which every row is a function of its stream, position and generation; episodes are seeded.

    Positions that are written again after a crash, as what was there was lost, are of another generation.
    """

    def __init__(self, seed: int, streams: int, *, noisy: bool = False) -> None:
        rng = np.random.default_rng([seed, 77])
        self._noise = rng.integers(1, 256, 2**20, np.uint8) if noisy else None  # of which frames are made that cannot be packed
        self.generation = np.zeros((streams, POSITIONS + 1), np.int64)
        self.last = np.zeros((streams, POSITIONS), np.bool_)
        self.ending = np.zeros((streams, POSITIONS), np.int8)  # of the step before an episode's last row: 1, 2, both, cut off
        for stream in range(streams):
            ends = np.cumsum(rng.integers(2, 24, POSITIONS)) - 1
            ends = ends[ends < POSITIONS]
            self.last[stream, ends] = True
            self.ending[stream, ends - 1] = rng.integers(0, 4, len(ends))

    def frames(self, stream: int, positions: Array) -> Array:
        """Return (n, 32, 32), no byte of it zero behind the first eight."""
        places = np.asarray(positions, np.int64)
        generation = self.generation[stream, places]
        if self._noise is None:
            flat = pictures.patterned(places, stream, generation)
        else:  # neighbours share nothing
            first = (places * 1031 + stream * 2**18 + generation * 4099) % (len(self._noise) - 1024)
            flat = self._noise[first[:, None] + np.arange(1024)]
            flat[:, :8] = pictures.numbered(places, stream, generation)
        return np.asarray(flat.reshape(-1, 32, 32))

    def depths(self, stream: int, positions: Array) -> Array:
        """Return (n, 16, 32)."""
        at = np.asarray(positions, np.int64)
        first = at * 3 + stream + 1 + self.generation[stream, at] * 9000
        return np.repeat(first.astype(np.int16)[:, None], 512, axis=1).reshape(-1, 16, 32)

    def step(self, stream: int, positions: Array) -> dict[str, Array]:
        """Return all columns of steps but derived ones."""
        at = np.asarray(positions, np.int64)
        new = self.generation[stream, at]
        return {
            "obs": self.frames(stream, at),
            "next_obs": self.frames(stream, at + 1),
            "action": at * 10 + stream + 1 + new * 10**6,
            "reward": (at % 1000 + 0.5 + stream + new * 2000).astype(np.float32),
            "terminated": self.ending[stream, at] % 2 == 1,
            "truncated": self.ending[stream, at] >= 2,
            "noise": np.stack([at + 0.25, at * 2 + 0.5, new * 100 + stream + 1], axis=1).astype(np.float32),
            "depth": self.depths(stream, at),
            "next_depth": self.depths(stream, at + 1),
        }

    def steps(self, stream: int, first: int, until: int) -> Array:
        """Return the positions of steps among those from `first` on."""
        at = np.arange(max(first, 0), max(until, first, 0))
        return np.asarray(at[~self.last[stream, at]])

    def lose(self, stream: int, newest_step: int, head: int) -> None:
        """Have all rows behind `head` be of the next generation, and those behind the newest step be no steps."""
        self.generation[stream, head + 1 :] += 1
        if head >= 0:
            self.last[stream, newest_step + 1 : head + 1] = True
            self.last[stream, head + 1] = False  # an episode has a step at least

    @staticmethod
    def values(stream: int, positions: Array, version: Array) -> Array:
        """Return what a version of the derived column has: not zero, and different everywhere."""
        return ((np.asarray(positions) * 64 + version) * 8 + stream + 1).astype(np.float32)


def values_of(id_: int, count: int) -> dict[str, Any]:
    """Return what an episode is given as the one of that count: as much as some sectors now and then."""
    return {"count": count, "of": id_, "text": f"{id_} {count}, " * (1 + 7 * (count + id_) % 200), "even": count % 2 == 0}


@dataclass(frozen=True)
class Workload:
    """A kind of store, and how often each call is made to it."""

    name: str
    n_envs: int = 1
    segment_rows: int = 8
    chunk_rows: int | None = None
    capacity: int | None = None
    wide: bool = False  # a second packed column, which belongs to steps
    views: bool = False  # a second packed column, which belongs to observations
    noisy: bool = False  # frames that cannot be packed
    lossy: bool = False  # frames as pictures that are compressed with a loss
    calls: int = 60
    weights: dict[str, float] = field(default_factory=dict)
    faults: float = 0.0  # how often the disk fails in a call
    concurrent: bool = False  # whether the sealer runs beside calls; else between them, so that a trace depends on its seed alone

    def open(self, path: Path, mode: Any = "a", *, mark: str | None = None) -> db.ReplayBuffer:
        """Open the store, or create it; with mode "r" also a mark."""
        frame, depth = db.Column((32, 32), "uint8"), db.Column((16, 32), "int16")
        if self.lossy:
            frame = db.Column(pictures.SHAPE, "uint8", codec="webp:90")
        columns = {"obs/frame": frame, "obs/depth": depth} if self.views else {"obs": frame}
        columns["action"] = db.Column((), "int64")
        extra = {"noise": db.Column((3,), "float32")}
        if self.wide:
            extra["depth"] = depth
        return db.ReplayBuffer(
            path,
            self.capacity,
            columns=columns,
            extra=extra,
            n_envs=self.n_envs,
            autoreset="disabled",
            segment_rows=self.segment_rows,
            chunk_rows=self.chunk_rows,
            threads=1,
            flush_every=None,  # or it flushes where a recording takes half a minute
            seed=0,
            mode=mode,
            mark=mark,
        )

    def world(self, seed: int) -> World:
        """Return what there is to be recorded."""
        return World(seed, self.n_envs, noisy=self.noisy)

    def given(self, step: dict[str, Array]) -> dict[str, Any]:
        """Return what `add` is given of a world's step."""
        columns: dict[str, Any] = {name: array for name, array in step.items() if not name.endswith("depth")}
        if self.lossy:
            columns |= {name: pictures.drawn(step[name]) for name in ("obs", "next_obs")}
        if self.views:
            for at in ("", "next_"):
                columns[f"{at}obs"] = {"frame": columns[f"{at}obs"], "depth": step[f"{at}depth"]}
        if self.wide:
            columns["depth"] = step["depth"]
        return columns

    def taken(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Return the columns of a batch under the names that a world has for them."""
        found = dict(batch)
        for at in ("", "next_") if batch else ():
            if self.views:
                found |= {f"{at}obs": batch[f"{at}obs"]["frame"], f"{at}depth": batch[f"{at}obs"]["depth"]}
            if self.lossy:
                found[f"{at}obs"] = torch.from_numpy(pictures.seen(found[f"{at}obs"].numpy()))
        return found


USUAL = {"add": 12.0, "extend": 2.0, "flush": 0.6, "flush_by_itself": 0.6, "flush_while_adding": 0.8, "seal": 0.5, "reopen": 0.4}
DERIVED = {"write": 4.0, "tag": 2.0, "map": 0.5}
GIVEN = {"values": 6.0, "flush": 2.0, "reopen": 0.8}
FAULTY = {"add": 12.0, "extend": 3.0, "flush": 3.0, "seal": 1.0, "write": 2.0, "tag": 1.0, "values": 2.0}
WORKLOADS = (
    Workload("add", weights=USUAL),
    Workload("three", n_envs=3, capacity=90, weights=USUAL),
    Workload("extend", n_envs=2, segment_rows=16, capacity=150, weights=USUAL | {"extend": 12.0}, calls=40),
    Workload("evict", capacity=30, weights=USUAL | {"extend": 4.0, "flush": 3.0}, calls=80),
    Workload("derived", capacity=60, weights=USUAL | DERIVED),
    Workload("grow", n_envs=2, weights=USUAL | {"extend": 8.0, "flush": 3.0}, calls=40),
    Workload("long segments", n_envs=2, segment_rows=128, chunk_rows=1, weights=USUAL | {"extend": 8.0, "flush": 3.0}, calls=40),
    Workload("wide", wide=True, segment_rows=16, capacity=60, weights=USUAL | {"extend": 4.0}),
    Workload("sealed", capacity=100, weights=USUAL | {"extend": 5.0, "seal": 4.0, "flush": 0.2}, calls=50),
    Workload("reopen", n_envs=2, capacity=60, weights=USUAL | DERIVED | {"reopen": 3.0}),
    Workload("views", views=True, n_envs=2, capacity=60, weights=USUAL | {"extend": 4.0}),
    Workload("noisy", noisy=True, n_envs=2, capacity=70, weights=USUAL | {"extend": 4.0}),
    Workload("noisy views", noisy=True, views=True, segment_rows=16, weights=USUAL | DERIVED, calls=40),
    Workload("background", n_envs=2, capacity=80, weights=USUAL | DERIVED | {"extend": 6.0}, concurrent=True),
    Workload("clear", n_envs=2, weights=USUAL | DERIVED | {"extend": 4.0, "clear": 1.5}),
    Workload("clear a ring", capacity=60, weights=USUAL | {"extend": 4.0, "clear": 1.5}),
    Workload("faults", n_envs=2, weights=FAULTY, faults=0.25, calls=50),
    Workload("faults in a ring", capacity=60, weights=FAULTY | {"extend": 4.0}, faults=0.25),
    Workload("faults in noise", noisy=True, capacity=70, weights=FAULTY, faults=0.25, calls=50),
    Workload("marks", n_envs=2, weights=USUAL | {"extend": 4.0, "seal": 1.0, "mark": 1.0}, calls=50),
    Workload("marks of a ring", capacity=60, weights=USUAL | {"extend": 4.0, "seal": 1.0, "mark": 1.0, "clear": 0.5}, calls=50),
    Workload("values", n_envs=2, weights=USUAL | GIVEN, calls=80),
    Workload("values of a ring", capacity=60, weights=USUAL | GIVEN | {"extend": 4.0, "mark": 0.5, "clear": 0.3}, calls=80),
    Workload("lossy", lossy=True, n_envs=2, capacity=60, weights=USUAL | {"extend": 4.0, "flush": 3.0}),
    Workload("lossy views", lossy=True, views=True, segment_rows=16, weights=USUAL | DERIVED | {"extend": 4.0}, calls=50),
    Workload("lossy faults", lossy=True, views=True, weights=FAULTY | {"extend": 4.0}, faults=0.25, calls=50),
)


@dataclass
class Promise:
    """What must be there, and what may be, after calls that returned.

    Attributes
    ----------
    heads, low : (streams,) int64
        Positions of the newest row, and of the oldest step that was not evicted.
    versions : (streams, POSITIONS) int64
        Of the derived column; 0 where nothing was written.
    tags, tagged : (streams, POSITIONS) int64
        The number of each step's tag in `TAGS`, from 1 on, and how often it was tagged.
    marks : dict of str to ((streams,) int64, (streams,) int64)
        The heads and lows that marks were made of, by name.
    values : dict of int to int
        Of episodes, by their ids, how many were given values when they were given theirs: see `values_of`.
    """

    heads: Array
    low: Array
    versions: Array
    tags: Array
    tagged: Array
    marks: dict[str, tuple[Array, Array]] = field(default_factory=dict)
    values: dict[int, int] = field(default_factory=dict)

    @classmethod
    def none(cls, streams: int) -> Promise:
        """Return what is promised of an empty store."""
        versions, tags, tagged = np.zeros((3, streams, POSITIONS), np.int64)
        return cls(np.full(streams, -1), np.zeros(streams, np.int64), versions, tags, tagged)


@dataclass
class Moment:
    """The state of things when a call had returned, at an event of the trace."""

    events: int
    call: str
    now: Promise
    kept: Promise | None  # what a kill must leave: all of that, but right after a crash, when nobody knows how much is left
    flushed: Promise | None  # what a power loss must leave; None before the first flush
    synced: Array  # the positions of the newest rows that it may leave, (streams,)


@dataclass
class Recorded:
    """A workload's trace."""

    workload: Workload
    world: World
    trace: Trace
    moments: list[Moment]

    def disk(self) -> Disk:
        """Return the disk at the beginning."""
        return self.trace.disk()

    @property
    def events(self) -> list[Event]:
        """The trace's events."""
        return self.trace.events


@dataclass(frozen=True)
class Left:
    """What a crash leaves, at least and at most.

    Attributes
    ----------
    must : Promise or None
        What was there at the last flush, or, after a kill, at the last call that returned. None where nothing was promised.
    may : Promise
        What the call under way might have made of it; steps before its `low` may be gone.
    flushed : Promise or None
        What was there at the last flush.
    synced : (streams,) int64
        The positions of the newest rows that a power loss may leave from then on.
    killed : bool
        Whether only the process ended.
    marks : dict of str to ((streams,) int64, (streams,) int64)
        Those that must be there, as of a `Promise`.
    """

    world: World
    must: Promise | None
    may: Promise
    flushed: Promise | None
    synced: Array
    killed: bool
    marks: dict[str, tuple[Array, Array]] = field(default_factory=dict)


class GivenUpError(Exception):
    """The disk has failed to sync, and the library makes that call no longer: the store is to be opened again."""


class Driver:
    """Make calls to a store, and keep account of what they promise."""

    def __init__(self, workload: Workload, seed: int, base: Path, trace: Trace, gate: Gate, left: Left | None = None) -> None:
        self._workload, self._path, self._trace, self._gate = workload, base / STORE, trace, gate
        self._rng = np.random.default_rng([seed, 5])
        self.world = workload.world(seed)
        self._now = Promise.none(workload.n_envs)
        self._flushed: Promise | None = None
        self._synced = np.full(workload.n_envs, -1)
        self.moments: list[Moment] = []
        self._version = self._given = 0
        self._faulty = False  # whether the disk may fail in the call that is made
        self._lost = False  # whether a sync failed, so that nobody knows what later ones are worth
        if left is not None:
            self.world, self._now, self._flushed = copy.deepcopy((left.world, left.may, left.flushed))
            self._version = int(self._now.versions.max())
            self._given = max(self._now.values.values(), default=0)
            self._synced = left.synced
            self.moments.append(Moment(-1, "crash", copy.deepcopy(self._now), left.must, self._flushed, self._synced))
            self._call("open", self._recover, flushes=not left.killed)
        else:
            self._call("create", self._open)

    def run(self) -> None:
        """Make the workload's calls, then close the store."""
        weights = self._workload.weights
        names, shares = list(weights), np.array(list(weights.values()))
        for _ in range(self._workload.calls):
            name = str(self._rng.choice(names, p=shares / shares.sum()))
            self._faulty = self._rng.random() < self._workload.faults
            try:
                getattr(self, f"_{name}")()
            except GivenUpError:
                if name not in ("flush", "seal"):
                    self._now.heads[:] = self._buffer._reader.index.heads
                    break
        self._faulty = False
        with contextlib.suppress(GivenUpError):
            self._call("close", self._buffer.close, flushes=True)

    def _call(self, name: str, call: Callable[[], Any], *, flushes: bool | Promise = False) -> None:
        """Make a call, which brings everything to the disk if it `flushes`, or what was promised before."""
        if self._workload.faults:
            self._attempt(name, call)
        else:
            with self._gate.closed():
                call()
            if name != "close" and not self._workload.concurrent:
                self._wait_for_sealing()
        if name != "close":
            self._take_stock()
        if flushes:
            self._flushed = copy.deepcopy(self._now if flushes is True else flushes)
            self._synced = self._now.heads.copy()  # what was added between two streams may be brought to the disk, too
        self._note(name)

    def _attempt(self, name: str, call: Callable[[], Any]) -> None:
        """Make a call in which the disk may fail, and make it again where it did; a GivenUpError where it fails still."""
        if self._faulty:
            sync = bool(self._rng.random() < 0.5)
            code, lasting = int(self._rng.choice([errno.EIO, errno.ENOSPC])), int(self._rng.choice([0, 0, 3, 10**6]))
            self._trace.fault = Fault(int(self._rng.integers(20)), code, lasting)
            if sync:
                self._trace.fault = Fault(int(self._rng.integers(12)), errno.EIO, only="fsync")
        fault = self._trace.fault
        try:
            for again in (False, True):
                try:
                    with self._gate.closed():
                        call()
                    break
                except OSError as error:
                    self._trace.fault = None
                    happened = fault is not None and bool(fault.failed)
                    self._lost |= happened and any("fsync" in what for what in fault.failed)  # type: ignore[union-attr]
                    if self._lost and (again or not happened):
                        raise GivenUpError from error
                    if again or not happened:
                        raise
            if name != "close":
                try:
                    self._wait_for_sealing()
                except OSError:  # it is tried again at the next call
                    self._lost |= fault is not None and any("fsync" in what for what in fault.failed)
        finally:
            self._trace.fault = None

    def _note(self, name: str) -> None:
        """Note what is promised now that a call has returned."""
        events = self._trace.look(f"after {name}")
        now = copy.deepcopy(self._now)
        self.moments.append(Moment(events, name, now, now, self._flushed, self._synced))

    def _open(self) -> None:
        self._buffer = self._workload.open(self._path)

    def _recover(self) -> None:
        """Open what a crash left, and take up what is there."""
        self._open()
        streams, episodes = self._workload.n_envs, self._buffer.episodes
        heads = self._buffer._reader.index.heads
        self._now.marks.clear()  # of steps that may be lost by now
        self._now.values = {episode.id: int(episode.values["count"]) for episode in episodes if episode.values}
        names = np.concatenate([[0], *(e + streams * np.arange(n) for e, n in zip(episodes.start, episodes.length, strict=True))])
        batch = self._buffer.at(names[1:]) if len(names) > 1 else {}
        at, of = names[1:] // streams, names[1:] % streams
        for stream in range(streams):
            self.world.lose(stream, int(at[of == stream].max(initial=-1)), int(heads[stream]))
            for values in (self._now.versions, self._now.tags):
                values[stream] = 0
        self._now.heads[:] = heads
        if VALUE in batch:
            self._now.versions[of, at] = batch[VALUE].numpy().astype(np.int64) // 8 % 64
        if "tag" in batch:
            tags = np.array([0, *(TAGS.index(tag) + 1 for tag in self._buffer.episodes.tag_names)])
            self._now.tags[of, at] = tags[batch["tag"].numpy()]

    def _wait_for_sealing(self) -> None:
        log = self._buffer._access.log()
        log.sealer.wait()

    def _take_stock(self) -> None:
        """Find out what was evicted; the rest is known."""
        episodes, streams = self._buffer.episodes, self._workload.n_envs
        for stream in range(streams):
            starts = episodes.start[episodes.stream == stream] // streams
            low = starts[0] if len(starts) else self._now.heads[stream]  # all steps of one may be evicted, by others'
            self._now.low[stream] = max(low, self._now.low[stream])  # evicted ones may come back

    # Calls

    def _next(self, stream: int) -> int:
        """Return the position of a stream's next step."""
        head = int(self._now.heads[stream])
        return head + 1 if head < 0 or self.world.last[stream, head] else head

    def _add(self) -> None:
        for _ in range(int(self._rng.integers(1, 4))):
            at = [self._next(stream) for stream in range(self._workload.n_envs)]
            parts = [self.world.step(stream, np.array([p])) for stream, p in enumerate(at)]
            values = self._workload.given({name: np.concatenate([part[name] for part in parts]) for name in parts[0]})
            if self._rng.random() < 0.3:
                self._cut_off()
            self._now.heads[: len(at)] = np.array(at) + 1
            self._call("add", partial(self._buffer.add, **values))

    def _cut_off(self) -> None:
        """Tell of episodes that were cut off, where some were."""
        heads = self._now.heads
        which = [s for s in range(self._workload.n_envs) if heads[s] >= 0 and self.world.last[s, heads[s]]]
        if which:
            self._call("cut_off", lambda: self._buffer.cut_off(which))

    def _clear(self) -> None:
        """Bring the episodes that run to their ends, and drop every step."""
        for stream in range(self._workload.n_envs):
            head = int(self._now.heads[stream])
            if head >= 0 and not self.world.last[stream, head]:
                end = head + int(self.world.last[stream, head:].argmax())
                keywords = self._workload.given(self.world.step(stream, np.arange(head, end)))
                self._now.heads[stream] = end
                self._call("extend", partial(self._buffer.extend, env=stream, **keywords))
        self._cut_off()
        self._call("clear", self._buffer.clear)

    def _extend(self) -> None:
        stream = int(self._rng.integers(self._workload.n_envs))
        first, n = self._next(stream), int(self._rng.integers(1, 30))
        at = self.world.steps(stream, first, first + 2 * n + 2)[:n]
        self._now.heads[stream] = at[-1] + 1
        self._call("extend", lambda: self._extend_by(stream, at))

    def _extend_by(self, stream: int, at: Array) -> None:
        """Add steps, but those that a call which failed has added."""
        head = int(self._buffer._reader.index.heads[stream])
        left = at[at >= head + (head >= 0 and self.world.last[stream, head])]
        if len(left):
            self._buffer.extend(env=stream, **self._workload.given(self.world.step(stream, left)))

    def _mark(self) -> None:
        """Make a mark, which must be there from then on, whatever is lost of the store."""
        name = f"m{len(self._now.marks)}"
        self._now.marks[name] = self._now.heads.copy(), self._now.low.copy()
        arrays = {"heads": self._now.heads.copy()}
        self._call("mark", partial(self._buffer.copies.mark, name, replace=True, arrays=arrays))

    def _flush(self) -> None:
        self._call("flush", self._buffer.flush, flushes=True)

    def _flush_by_itself(self) -> None:
        self._call("flush by itself", lambda: self._buffer._closing.sync(only_new=True), flushes=True)

    def _flush_while_adding(self) -> None:
        """Flush, and add some steps between streams, or while it syncs one of its first files: only those before are promised."""
        real, left, before = Files.sync, int(self._rng.integers(1, 12)), copy.deepcopy(self._now)
        thread = threading.current_thread()
        by_itself = bool(self._rng.random() < 0.5)

        def pause(_: float) -> None:
            if self._rng.random() < 0.3:
                self._add()

        def sync(self_: Files, name: str) -> None:
            nonlocal left
            is_free = not self._buffer._store.lock._is_owned()  # type: ignore[attr-defined]
            left -= threading.current_thread() is thread and is_free
            if left == 0:
                left = -1
                for _ in range(int(self._rng.integers(1, 12))):
                    self._add()
            real(self_, name)

        setattr(Files, "sync", sync)  # noqa: B010
        with mock.patch.multiple("diskbuffer.recording.flush", _AT_ONCE=1, time=SimpleNamespace(sleep=pause)):
            try:
                flush = partial(self._buffer._closing.sync, only_new=True) if by_itself else self._buffer.flush
                self._call("flush while adding", flush, flushes=before)
            finally:
                setattr(Files, "sync", real)  # noqa: B010

    def _seal(self) -> None:
        self._call("seal", lambda: self._buffer.flush(recompress=True), flushes=True)

    def _reopen(self) -> None:
        self._call("close", self._buffer.close, flushes=True)
        self._call("open", self._open)

    def _some(self) -> tuple[Array, Array]:
        """Return streams and positions of some steps."""
        found = [(s, p) for s in range(self._workload.n_envs) for p in self._there(s).tolist()]
        some = self._rng.permutation(len(found))[: int(self._rng.integers(1, 20))]
        pairs = np.array([found[n] for n in some], np.int64).reshape(-1, 2)
        return pairs[:, 0], pairs[:, 1]

    def _there(self, stream: int) -> Array:
        return self.world.steps(stream, int(self._now.low[stream]), int(self._now.heads[stream]))

    def _write(self) -> None:
        streams, at = self._some()
        if not len(at):
            return
        self._version = self._version % 62 + 1
        values = np.zeros(len(at), np.float32)
        for stream in range(self._workload.n_envs):
            mine = streams == stream
            values[mine] = self.world.values(stream, at[mine], np.full(mine.sum(), self._version))
        self._now.versions[streams, at] = self._version
        names = at * self._workload.n_envs + streams
        self._call("write", lambda: self._buffer.columns.write(VALUE, names, values))

    def _map(self) -> None:
        if not len(self._some()[0]):
            return
        self._version = version = self._version % 62 + 1
        streams = self._workload.n_envs

        def function(batch: dict[str, Any]) -> Array:
            steps = batch["steps"].numpy()
            return np.asarray(self.world.values(0, steps // streams, np.full(len(steps), version)) + steps % streams, np.float32)

        for stream in range(streams):
            self._now.versions[stream, self._there(stream)] = version
        self._call("map", lambda: self._buffer.columns.map(function, 16, VALUE, progress=False, threads=1))

    def _tag(self) -> None:
        episodes = self._buffer.episodes
        over = np.flatnonzero(episodes.ending != "running")
        if not len(over):
            return
        one, tag = int(self._rng.choice(over)), int(self._rng.integers(len(TAGS) + 1))
        stream, streams = int(episodes.stream[one]), self._workload.n_envs
        first = int(episodes.start[one]) // streams
        steps = slice(first, first + int(episodes.length[one]))
        self._now.tags[stream, steps] = tag
        self._now.tagged[stream, steps] += 1
        name = None if tag == 0 else TAGS[tag - 1]
        self._call("tag", lambda: self._buffer.episodes.of([int(episodes.start[one])]).set_tag(name))

    def _values(self) -> None:
        episodes = self._buffer.episodes
        some = episodes[episodes.ending != "running"][-int(self._rng.integers(1, 6)) :]
        self._given += 1
        self._now.values |= dict.fromkeys(some.id.tolist(), self._given)
        rows = [values_of(id_, self._given) for id_ in some.id.tolist()]
        columns = {name: [row[name] for row in rows] for name in values_of(0, 0)}
        self._call("values", lambda: some.set_values(**columns))


class Gate:
    """Have other threads work where they are waited for, so that a trace depends on its seed alone; not where it is `free`."""

    def __init__(self, free: bool) -> None:
        self._free, self._opened = free, threading.Event()
        self._opened.set()
        self._real: list[tuple[type, str, Any]] = []

    @contextlib.contextmanager
    def closed(self) -> Iterator[None]:
        """Have segments wait while a call runs, until it waits for them."""
        if not self._free:
            self._opened.clear()
        try:
            yield
        finally:
            self._opened.set()

    def __enter__(self) -> Gate:
        if not self._free:
            self._replace(Sealer, "_seal", self._wait)
            self._replace(Sealer, "wait", self._open)
            self._replace(Sealer, "stop", self._open)
            self._replace(ThreadPoolExecutor, "submit", submit_at_once)
        return self

    def __exit__(self, *_: object) -> None:
        for owner, name, real in self._real:
            setattr(owner, name, real)

    def _wait(self, real: Callable[..., None], sealer: Sealer) -> None:
        self._opened.wait()
        real(sealer)

    def _open(self, real: Callable[..., None], sealer: Sealer) -> None:
        self._opened.set()
        real(sealer)

    def _replace(self, owner: type, name: str, function: Callable[..., Any]) -> None:
        real = getattr(owner, name)
        self._real.append((owner, name, real))
        setattr(owner, name, lambda *args, **keywords: function(real, *args, **keywords))


def submit_at_once(_real: Any, _pool: Any, function: Callable[..., Any], *args: Any, **keywords: Any) -> Future[Any]:
    """Do at once what a pool would do beside its caller."""
    done: Future[Any] = Future()
    try:
        done.set_result(function(*args, **keywords))
    except Exception as error:  # noqa: BLE001  which its caller asks for
        done.set_exception(error)
    return done


@contextlib.contextmanager
def boot(number: int) -> Iterator[None]:
    """Have the machine be in its boot of that number, where what was on its disk is in its place, though it was built anew."""
    boot_id = f"00000000-0000-4000-8000-{number:012d}"
    with mock.patch.object(Files, "boot_id", return_value=boot_id), mock.patch.object(Files, "place_id", return_value="here"):
        yield


def record(
    workload: Workload, seed: int, base: Path, left: Left | None = None, number: int = 1, disk: Disk | None = None
) -> Recorded:
    """Run a workload below an empty directory, or go on with what a crash left there; return its trace.

    `number` is that of the boot of the machine, and `disk`, after a kill, what of it is synced, and what is not. After a power
    loss all is that is there.
    """
    often = mock.patch("diskbuffer.store.episode_values._SMALL", 64)  # bytes of which files of values are looked at
    with often, boot(number), Trace(base, disk) as trace, Gate(workload.concurrent) as gate:
        driver = Driver(workload, seed, base, trace, gate, left)
        driver.run()
    return Recorded(workload, driver.world, trace, driver.moments)
