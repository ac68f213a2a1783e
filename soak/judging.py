"""Whether a store that a crash left is what was promised: it opens, has what it must, serves nothing wrong, and goes on."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import diskbuffer as db
from tests.support.specimens import steps_of
from tests.support.workloads import POSITIONS, STORE, TAGS, VALUE, Promise, Recorded, Workload, World, boot

Array = npt.NDArray[Any]
FRESH = 25  # steps of every environment that are added afterwards, as one episode; no other is that long


@dataclass(frozen=True)
class Expected:
    """What a store must hold after a crash, and what it may.

    Attributes
    ----------
    must : Promise or None
        What was there at the last flush, or, after a kill, at the last call that returned. None where nothing was promised.
    may : Promise
        What the call under way might have made of it; steps before its `low` may be gone.
    flushed : Promise or None
        What was there at the last flush.
    sealed : set of (stream, ordinal)
        Segments that must be there.
    seen : (streams,) int64
        Positions before which steps have ids that readers may know, so that no other steps may get them.
    killed : bool
        Whether only the process ended.
    before : str
        The last call that returned, and the one under way.
    """

    workload: Workload
    world: World
    must: Promise | None
    may: Promise
    flushed: Promise | None
    sealed: frozenset[tuple[int, int]]
    seen: Array
    killed: bool
    before: str


def expect(recording: Recorded, events: int, *, killed: bool) -> Expected:
    """Find what is expected of a crash after so many events."""
    workload, world, moments = recording.workload, recording.world, recording.moments
    n = sum(moment.events <= events for moment in moments) - 1
    if n < 0:
        none = Promise.none(workload.n_envs)
        return Expected(workload, world, None, none, None, frozenset(), none.heads, killed, "create")
    last = moments[n]
    under_way = last if last.events == events or n + 1 == len(moments) else moments[n + 1]
    must = last.kept if killed else last.flushed
    before = last.call if under_way is last else f"{last.call}, then {under_way.call}"
    return Expected(workload, world, must, under_way.now, last.flushed, frozenset(last.now.sealed), last.seen, killed, before)


class BrokenError(Exception):
    """A promise was broken; its text tells which, without numbers that differ from case to case, and then with them."""

    def __init__(self, what: str, detail: str = "") -> None:
        super().__init__(f"{what}: {detail}" if detail else what)
        self.what, self.detail = what, detail


def broken_by(what: str, error: BaseException) -> BrokenError:
    """Return an error of the library's as a promise that it breaks."""
    text = f"{type(error).__name__}: {error}"
    for pattern, short in ((r"/\S*?/runs/store", ""), (r"\.[0-9a-f]{8}\.", ".#."), (r"is not JSON: .*", "is not JSON")):
        text = re.sub(pattern, short, text)
    return BrokenError(f"{what}: {re.sub(r'-?[0-9]+(, -?[0-9]+)*', '#', text)[:160]}", str(error))


@contextlib.contextmanager
def during(what: str) -> Iterator[None]:
    """Have an error of the library's be a promise that it breaks."""
    try:
        yield
    except BrokenError:
        raise
    except Exception as error:
        raise broken_by(what, error) from error


def judge(expected: Expected, base: Path, number: int, *, reader: bool, thorough: bool) -> BrokenError | None:
    """Open the store below `base`, check it, and use it; return the first promise that is broken.

    Parameters
    ----------
    number : int
        Of the boot of the machine; another than the writer's after a power loss.
    reader : bool
        Whether a reader opens it first.
    thorough : bool
        Whether steps are added, and the store is opened again.
    """
    judgement = Judgement(expected, base / STORE)
    try:
        with boot(number), during("using it"):  # such as when it is closed
            if reader and (base / STORE).exists():
                judgement.read()
            judgement.write(thorough=thorough)
    except BrokenError as broken:
        return broken
    return None


class Judgement:
    """Look at one store."""

    def __init__(self, expected: Expected, path: Path) -> None:
        self._expected, self._path, self._workload, self._world = expected, path, expected.workload, expected.world
        self._streams = expected.workload.n_envs
        self._fresh = False
        self._read: tuple[list[list[int]], int] | None = None  # what a reader saw

    def read(self) -> None:
        """Look at it with mode="r"."""
        nothing_is_promised = [db.errors.NotAStoreError] if self._expected.must is None else []
        buffer = None
        with during("reader: opening"), contextlib.suppress(*nothing_is_promised):
            buffer = self._workload.open(self._path, "r")
        if buffer is not None:
            with buffer:
                self._read = self._check(buffer, "reader: ")

    def write(self, *, thorough: bool) -> None:
        """Look at it with mode="a", and go on."""
        promised = self._expected.must is not None or self._expected.sealed
        with self._opened("opening" if promised else "opening before the first flush") as buffer:
            seen = self._check(buffer, "")
            if self._read not in (None, seen):
                raise BrokenError("a reader and a writer see other steps, or count others", f"{self._read}, {seen}")
            self._must_be_fine("check of the open buffer", buffer)
            if not thorough:
                return
            with during("going on"):
                self._go_on(buffer)
            self._check(buffer, "after adding: ")
            with during("closing"):
                buffer.close()
        self._must_be_fine("check of the closed store")
        with self._opened("opening again") as buffer:
            self._check(buffer, "after opening again: ")

    def _opened(self, what: str) -> db.ReplayBuffer:
        with during(what):
            return self._workload.open(self._path)

    def _must_be_fine(self, what: str, buffer: db.ReplayBuffer | None = None) -> None:
        with during(what):
            report = db.check(self._path, progress=False) if buffer is None else buffer.check(progress=False)
        if not report.ok:
            first = re.sub("[0-9]+", "#", str(report.problems[0].what))
            raise BrokenError(f"{what}: {first[:120]}", str(report.problems))

    # Contents

    def _check(self, buffer: db.ReplayBuffer, when: str) -> tuple[list[list[int]], int]:
        """Check every step; return the positions of those that a crash left, by stream, and how many steps there were ever."""
        with during(f"{when}reading"):
            episodes = buffer.episodes
            steps = steps_of(episodes, self._streams)
            batch = self._workload.taken(buffer.at(steps)) if len(steps) else {}
        if len(steps) != len(buffer):
            raise BrokenError(f"{when}episodes and len() differ", f"{len(steps)} and {len(buffer)}")
        had = []
        for stream in range(self._streams):
            mine = steps % self._streams == stream
            columns = {name: values.numpy()[mine] for name, values in batch.items()}
            found = Found(stream, steps[mine] // self._streams, columns, episodes.tag_names, when)
            if self._fresh:
                found = self._check_fresh(found)
            had.append(found.at.tolist())
            self._check_stream(found)
        return had, buffer.stats()["added"]

    def _check_stream(self, found: Found) -> None:
        at, stream, may = found.at, found.stream, self._expected.may
        found.refuse(at >= POSITIONS - 1, "a position that cannot be")
        must = self._expected.must or Promise.none(self._streams)
        low = int(may.low[stream])
        promised = self._world.steps(stream, low, int(must.heads[stream]))
        for name, values in self._world.step(stream, at).items():
            if name in found.columns and not np.array_equal(found.columns[name], values):
                wrong = (found.columns[name] != values).reshape(len(at), -1).any(axis=1)
                kind = "another's or torn" if found.columns[name][wrong].any() else "zeros"
                of = " of flushed steps" if np.isin(at[wrong], promised).any() else ""
                found.refuse(wrong, f"wrong {name}{of}: {kind}")
        found.refuse(at >= may.heads[stream], "steps that were never added")
        found.refuse(self._world.last[stream, at], "a step at an episode's last row")
        self._check_derived(found, must, may)
        if self._fresh:  # which may have evicted what there was
            return
        what = "acknowledged steps are missing after a kill" if self._expected.killed else "flushed steps are missing"
        found.require(promised, what)
        rows = self._workload.segment_rows
        for ordinal in sorted(ordinal for of, ordinal in self._expected.sealed if of == stream):
            steps = self._world.steps(stream, max(low, ordinal * rows), (ordinal + 1) * rows - 1)
            found.require(steps, "steps of a sealed segment are missing")

    def _check_derived(self, found: Found, must: Promise, may: Promise) -> None:
        at, stream = found.at, found.stream
        there = at >= may.low[stream]  # the others are evicted, and back, perhaps without what was derived
        least, most = np.where(there, must.versions[stream, at], 0), may.versions[stream, at]
        if VALUE in found.columns:
            values = found.columns[VALUE]
            version = values.astype(np.int64) // 8 % 64
            given = np.where(values == 0, 0, version)
            right = (values == 0) | (values == self._world.values(stream, at, version))
            found.refuse(~right, "a derived value of another step, or torn")
            found.refuse(given < least, "a derived value is older than promised")
            found.refuse(given > most, "a derived value that was never written")
        else:
            found.refuse(least > 0, "a derived column is missing")
        names = np.array(["", *found.tags])
        numbers = found.columns.get("tag", np.zeros(len(at), np.uint16)).astype(np.int64)
        tags = np.where(numbers < len(names), names[np.minimum(numbers, len(names) - 1)], "?")
        settled = there & (must.tagged[stream, at] == may.tagged[stream, at])
        found.refuse(settled & (tags != np.array(["", *TAGS])[must.tags[stream, at]]), "a tag that was not given")
        found.refuse(~np.isin(tags, ["", *TAGS]), "a tag without a name, or of later")

    # Going on

    def _go_on(self, buffer: db.ReplayBuffer) -> None:
        """Sample, add an episode in every environment, tag it, and flush."""
        if len(buffer):
            buffer.sample(8)
        for t in range(FRESH):
            steps = [self._fresh_step(stream, np.array([t])) for stream in range(self._streams)]
            buffer.add(**self._workload.given({name: np.concatenate([step[name] for step in steps]) for name in steps[0]}))
        episodes = buffer.episodes
        episodes[episodes.length == FRESH].set_tag("fresh")
        buffer.flush()
        self._fresh = True

    def _fresh_step(self, stream: int, t: Array) -> dict[str, Array]:
        depths = np.full((len(t), 16, 32), -1 - stream, np.int16)
        return {
            "obs": fresh_frames(stream, t),
            "next_obs": fresh_frames(stream, t + 1),
            "action": -t - 1,
            "reward": (-t - stream).astype(np.float32),
            "terminated": t == FRESH - 1,
            "truncated": t < 0,
            "noise": np.full((len(t), 3), -1.0 - stream, np.float32),
            "depth": depths,
            "next_depth": depths,
        }

    def _check_fresh(self, found: Found) -> Found:
        """Check the steps that were added afterwards; return the others."""
        older, fresh, what = found.part(slice(None, -FRESH)), found.part(slice(-FRESH, None)), "steps that were added afterwards"
        if len(fresh.at) < FRESH:
            raise BrokenError(f"{found.when}{what} are missing", f"stream {found.stream}")
        fresh.refuse(fresh.at < self._expected.seen[found.stream], f"{what} have ids that others had")
        expected = self._fresh_step(found.stream, np.arange(FRESH)) | {VALUE: np.zeros(FRESH)}
        expected["tag"] = np.full(FRESH, found.tags.index("fresh") + 1 if "fresh" in found.tags else -1)
        for name, values in expected.items():
            if name in fresh.columns or name == "tag":
                wrong = (fresh.columns[name] != values).reshape(FRESH, -1).any(axis=1)
                fresh.refuse(wrong, f"{what} have another {name}")
        return older


@dataclass(frozen=True)
class Found:
    """What was found of a stream: the positions of its steps, their columns, and the names of all tags."""

    stream: int
    at: Array
    columns: dict[str, Array]
    tags: tuple[str, ...]
    when: str

    def part(self, which: slice) -> Found:
        """Return some of the steps."""
        columns = {name: values[which] for name, values in self.columns.items()}
        return Found(self.stream, self.at[which], columns, self.tags, self.when)

    def refuse(self, bad: Array, what: str) -> None:
        """Break a promise where any step is `bad`."""
        if bad.any():
            raise BrokenError(f"{self.when}{what}", f"stream {self.stream}, positions {self.at[bad].tolist()}")

    def require(self, steps: Array, what: str) -> None:
        """Break a promise where one of these is not there."""
        missing = np.setdiff1d(steps, self.at)
        if len(missing):
            has = f"it has {self.at.min()} to {self.at.max()}" if len(self.at) else "it has none"
            raise BrokenError(f"{self.when}{what}", f"stream {self.stream}, positions {missing.tolist()}, {has}")


def fresh_frames(stream: int, t: Array) -> Array:
    """Return frames that no world has."""
    frames = np.full((len(t), 32, 32), 2 * stream + 2, np.uint8)
    frames[:, 0, 0] = t * 2
    return frames
