"""Whether a store that a crash left is what was promised: it opens, has what it must, serves nothing wrong, and goes on."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import diskbuffer as db
from tests.support.workloads import POSITIONS, STORE, TAGS, VALUE, Left, Promise, Recorded, Workload, boot, values_of

Array = npt.NDArray[Any]
FRESH = 25  # steps of every environment that are added afterwards, as one episode; no other is that long


@dataclass(frozen=True, kw_only=True)
class Expected(Left):
    """What a store must hold after a crash, and what it may.

    Attributes
    ----------
    heads : (streams,) int64
        The positions of the newest rows that may be there: after a power loss, those of the last flush, or of one under way.
    before : str
        The last call that returned, and the one under way.
    """

    workload: Workload
    heads: Array
    before: str


def expect(recording: Recorded, events: int, *, killed: bool) -> Expected:
    """Find what is expected of a crash after so many events."""
    workload, world, moments = recording.workload, recording.world, recording.moments
    n = sum(moment.events <= events for moment in moments) - 1
    if n < 0:
        none = Promise.none(workload.n_envs)
        return Expected(world, None, none, None, none.heads, killed, workload=workload, heads=none.heads, before="create")
    last = moments[n]
    under_way = last if last.events == events or n + 1 == len(moments) else moments[n + 1]
    flushes = next((one for one in moments[n + 1 :] if one.call not in ("add", "cut_off")), last)  # it may add meanwhile
    synced = np.maximum(last.synced, flushes.synced)
    told = last.call if under_way is last else f"{last.call}, then {under_way.call}"
    left = (world, last.kept if killed else last.flushed, under_way.now, last.flushed, synced, killed)
    heads = under_way.now.heads if killed else synced
    return Expected(*left, last.now.marks, workload=workload, heads=heads, before=told)


class BrokenError(Exception):
    """A promise was broken; its text tells which, without numbers that differ from case to case, and then with them."""

    def __init__(self, what: str, detail: str = "") -> None:
        super().__init__(f"{what}: {detail}" if detail else what)
        self.what, self.detail = what, detail


def broken_by(what: str, error: BaseException) -> BrokenError:
    """Return an error of the library's as a promise that it breaks."""
    text = f"{type(error).__name__}: {error}"
    text = re.sub(r"/\S*?/runs/store", "", text)
    text = re.sub(r"\.[0-9a-f]{8}\.", ".#.", text)
    text = re.sub(r"is not JSON: .*", "is not JSON", text)
    return BrokenError(f"{what}: {re.sub(r'-?[0-9]+(, -?[0-9]+)*', '#', text)[:160]}", str(error))


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
        with boot(number):
            if reader and (base / STORE).exists():
                judgement.read()
            judgement.write(thorough=thorough)
    except BrokenError as broken:
        return broken
    except Exception as error:  # noqa: BLE001  such as when it is closed
        return broken_by("using it", error)
    return None


class Judgement:
    """Look at one store."""

    def __init__(self, expected: Expected, path: Path) -> None:
        self._expected, self._path, self._workload = expected, path, expected.workload
        self._streams = expected.workload.n_envs
        self._world = expected.world
        self._fresh = False
        self._had: list[Array] = []
        self._read: tuple[list[list[int]], int] | None = None  # what a reader saw

    def read(self) -> None:
        """Look at it with mode="r"."""
        try:
            buffer = self._workload.open(self._path, "r")
        except Exception as error:
            if self._expected.must is None and isinstance(error, db.errors.NotAStoreError):
                return
            raise broken_by("reader: opening", error) from error
        with buffer:
            self._check(buffer, "reader: ")
            self._read = self._seen(buffer)

    def write(self, *, thorough: bool) -> None:
        """Look at it with mode="a", and go on."""
        if self._expected.must is None:
            phase = "opening before the first flush"
        else:
            phase = "opening"
        with self._opened(phase) as buffer:
            self._check(buffer, "")
            self._check_marks(buffer)
            if self._read not in (None, self._seen(buffer)):
                raise BrokenError("a reader and a writer see other steps, or count others", f"{self._read}, {self._seen(buffer)}")
            self._report(lambda: buffer.check(progress=False), "check of the open buffer")
            if not thorough:
                return
            self._go_on(buffer)
            self._check(buffer, "after adding: ")
            try:
                buffer.close()
            except Exception as error:
                raise broken_by("closing", error) from error
        self._report(lambda: db.check(self._path, progress=False), "check of the closed store")
        with self._opened("opening again") as buffer:
            self._check(buffer, "after opening again: ")

    def _seen(self, buffer: db.ReplayBuffer) -> tuple[list[list[int]], int]:
        """Return the positions that were checked last, by stream, and how many steps there were ever."""
        return [at.tolist() for at in self._had], buffer.stats()["added"]

    def _opened(self, what: str) -> db.ReplayBuffer:
        try:
            return self._workload.open(self._path)
        except Exception as error:
            raise broken_by(what, error) from error

    @staticmethod
    def _report(check: Any, what: str) -> None:
        try:
            report = check()
        except Exception as error:
            raise broken_by(what, error) from error
        if not report.ok:
            first = report.problems[0]
            raise BrokenError(f"{what}: {re.sub('[0-9]+', '#', str(first.what))[:120]}", str(report.problems))

    # Contents

    def _check(self, buffer: db.ReplayBuffer, when: str) -> None:
        streams, at, batch = self._steps_of(buffer, when)
        if len(at) != len(buffer):
            raise BrokenError(f"{when}episodes and len() differ", f"{len(at)} and {len(buffer)}")
        self._had = []
        for stream in range(self._streams):
            mine = streams == stream
            columns = {name: values.numpy()[mine] for name, values in batch.items()}
            self._check_stream(stream, at[mine], columns, buffer.episodes.tag_names, when)
        self._check_values(buffer, when)

    def _steps_of(self, buffer: db.ReplayBuffer, when: str) -> tuple[Array, Array, dict[str, Any]]:
        """Return the streams and positions of all steps, and what they hold."""
        try:
            episodes = buffer.episodes
            runs = zip(
                episodes.stream.tolist(), (episodes.start // self._streams).tolist(), episodes.length.tolist(), strict=True
            )
            found = [np.stack([np.full(n, stream), np.arange(first, first + n)]) for stream, first, n in runs]
            streams, at = np.concatenate([np.zeros((2, 0), np.int64), *found], axis=1)
            return streams, at, self._workload.taken(buffer.at(at * self._streams + streams)) if len(at) else {}
        except Exception as error:
            raise broken_by(f"{when}reading", error) from error

    def _check_stream(self, stream: int, at: Array, columns: dict[str, Array], tags: tuple[str, ...], when: str) -> None:
        if self._fresh:
            at, columns = self._check_fresh(stream, at, columns, tags, when)
        self._had.append(at)
        if (at >= POSITIONS - 1).any():
            raise BrokenError(f"{when}a position that cannot be", f"{at.max()} of stream {stream}")
        for name, values in self._world.step(stream, at).items():
            if name in columns and not np.array_equal(columns[name], values):
                wrong = at[np.flatnonzero((columns[name] != values).reshape(len(at), -1).any(axis=1))]
                zeros = "zeros" if not columns[name][np.isin(at, wrong)].any() else "another's or torn"
                promised = self._promised(stream)
                of = " of flushed steps" if np.isin(wrong, promised).any() else ""
                raise BrokenError(f"{when}wrong {name}{of}: {zeros}", f"stream {stream}, positions {wrong.tolist()}")
        beyond = at[at >= self._expected.heads[stream]]
        if len(beyond):
            what = "steps that were never added" if self._expected.killed else "steps that were never flushed"
            raise BrokenError(f"{when}{what}", f"stream {stream}, positions {beyond.tolist()}")
        if self._world.last[stream, at].any():
            raise BrokenError(f"{when}a step at an episode's last row", f"stream {stream}")
        self._check_derived(stream, at, columns, tags, when)
        if not self._fresh:  # which may have evicted what there was
            self._check_promised(stream, at, when)

    def _promised(self, stream: int) -> Array:
        """Return the positions of steps that were flushed, or, after a kill, acknowledged."""
        must, low = self._expected.must, int(self._expected.may.low[stream])
        return np.zeros(0, np.int64) if must is None else self._world.steps(stream, low, int(must.heads[stream]))

    def _check_promised(self, stream: int, at: Array, when: str) -> None:
        missing = np.setdiff1d(self._promised(stream), at)
        if len(missing):
            what = "acknowledged steps are missing after a kill" if self._expected.killed else "flushed steps are missing"
            raise BrokenError(f"{when}{what}", f"stream {stream}, positions {missing.tolist()}, {self._has(at)}")

    @staticmethod
    def _has(at: Array) -> str:
        return f"it has {at.min()} to {at.max()}" if len(at) else "it has none"

    def _check_derived(self, stream: int, at: Array, columns: dict[str, Array], tags: tuple[str, ...], when: str) -> None:
        must, may = self._expected.must, self._expected.may
        if must is None:
            must = Promise.none(self._streams)
        least, most = must.versions[stream, at], may.versions[stream, at]
        back = at < may.low[stream]  # evicted, and back, perhaps without this column's file; and `map` may have written to it
        least, most = np.where(back, 0, least), np.where(back, 64, most)
        if VALUE in columns:
            values = columns[VALUE]
            version = (values.astype(np.int64) // 8) % 64
            given = np.where(values == 0, 0, version)
            right = (values == 0) | (values == self._world.values(stream, at, version))
            self._refuse(~right, f"{when}a derived value of another step, or torn", stream, at)
            self._refuse(given < least, f"{when}a derived value is older than promised", stream, at)
            self._refuse(given > most, f"{when}a derived value that was never written", stream, at)
        else:
            self._refuse(least > 0, f"{when}a derived column is missing", stream, at)
        names = np.array(["", *tags])
        numbers = columns.get("tag", np.zeros(len(at), np.uint16)).astype(np.int64)
        found = np.where(numbers < len(names), names[np.minimum(numbers, len(names) - 1)], "?")
        settled = (must.tagged[stream, at] == may.tagged[stream, at]) & (at >= may.low[stream])
        self._refuse(
            settled & (found != np.array(["", *TAGS])[must.tags[stream, at]]), f"{when}a tag that was not given", stream, at
        )
        self._refuse(~np.isin(found, ["", *TAGS]), f"{when}a tag without a name, or of later", stream, at)

    @staticmethod
    def _refuse(bad: Array, what: str, stream: int, at: Array) -> None:
        if bad.any():
            raise BrokenError(what, f"stream {stream}, positions {at[bad].tolist()}")

    def _check_values(self, buffer: db.ReplayBuffer, when: str) -> None:
        """Check that each episode has the values that were promised, or later ones, and none that it was not given."""
        must, may, lows = self._expected.must, self._expected.may, self._expected.may.low
        try:
            found = [(episode, episode.values) for episode in buffer.episodes]
        except Exception as error:
            raise broken_by(f"{when}reading values of episodes", error) from error
        for episode, values in found:
            at, count = f"episode {episode.id}, {str(values)[:100]}", values.get("count", 0)
            if self._fresh and episode.length == FRESH:
                if values != {"fresh": True}:
                    raise BrokenError(f"{when}an episode that was added afterwards has other values", at)
                continue
            if values and values != values_of(episode.id, int(count)):
                raise BrokenError(f"{when}an episode has values of another, or some of them", at)
            is_back = episode.start // self._streams < lows[episode.stream]
            least = 0 if must is None or is_back else must.values.get(episode.id, 0)
            if not least <= int(count) <= may.values.get(episode.id, 0):
                raise BrokenError(f"{when}an episode has older values than promised, or some that it was not given", at)

    def _check_marks(self, buffer: db.ReplayBuffer) -> None:
        """Check that all marks are there that were acknowledged, and that each has what it was made of."""
        marked = self._expected.marks
        missing = set(marked) - set(buffer.copies.marks)
        if missing:
            raise BrokenError("marks are missing", str(sorted(missing)))
        for name in buffer.copies.marks:
            try:
                mark = self._workload.open(self._path, "r", mark=name)
            except Exception as error:
                raise broken_by("opening a mark", error) from error
            with mark:
                self._report(lambda mark=mark: mark.check(progress=False), "check of a mark")
                if name in marked:  # others are of before a crash, or of the call under way
                    self._check_mark(mark, *marked[name])

    def _check_mark(self, mark: db.ReplayBuffer, heads: Array, low: Array) -> None:
        if mark.copies.arrays().get("heads", np.zeros(0)).tolist() != heads.tolist():
            raise BrokenError("a mark lacks the arrays that were kept with it", str(mark.copies.arrays()))
        streams, positions, batch = self._steps_of(mark, "a mark: ")
        for stream in range(self._streams):
            mine = streams == stream
            at = positions[mine]
            if not np.isin(self._world.steps(stream, int(low[stream]), int(heads[stream])), at).all():
                raise BrokenError("a mark lacks steps that it was made of", f"stream {stream}, {self._has(at)}")
            if (at >= heads[stream]).any():
                raise BrokenError("a mark has steps that came later", f"stream {stream}, {self._has(at)}")
            for name, values in self._world.step(stream, at).items():
                if name in batch and not np.array_equal(batch[name].numpy()[mine], values):
                    raise BrokenError(f"wrong {name} in a mark", f"stream {stream}")

    # Going on

    def _go_on(self, buffer: db.ReplayBuffer) -> None:
        """Sample, add an episode in every environment, tag it, and flush."""
        envs = self._workload.n_envs
        try:
            if len(buffer):
                buffer.sample(8)
            for t in range(FRESH):
                steps = [self._fresh_step(stream, np.array([t])) for stream in range(envs)]
                buffer.add(**self._workload.given({name: np.concatenate([step[name] for step in steps]) for name in steps[0]}))
            episodes = buffer.episodes
            episodes[episodes.length == FRESH].set_tag("fresh")
            episodes[episodes.length == FRESH].set_values(fresh=True)
            buffer.flush()
        except Exception as error:
            raise broken_by("going on", error) from error
        self._fresh = True

    def _fresh_step(self, stream: int, t: Array) -> dict[str, Array]:
        step = {
            "obs": fresh_frames(stream, t),
            "next_obs": fresh_frames(stream, t + 1),
            "action": -t - 1,
            "reward": (-t - stream).astype(np.float32),
            "terminated": t == FRESH - 1,
            "truncated": t < 0,
            "noise": np.full((len(t), 3), -1.0 - stream, np.float32),
        }
        depths = np.full((len(t), 16, 32), -1 - stream, np.int16)
        return step | {"depth": depths, "next_depth": depths}

    def _check_fresh(
        self, stream: int, at: Array, columns: dict[str, Array], tags: tuple[str, ...], when: str
    ) -> tuple[Array, dict[str, Array]]:
        """Check the steps that were added afterwards; return the others."""
        if len(at) < FRESH:
            raise BrokenError(f"{when}steps that were added afterwards are missing", f"stream {stream}")
        must = self._expected.must
        if must is not None and len(at) > FRESH and at[-FRESH] < must.heads[stream]:
            what = "steps that were added afterwards have ids of others that are there"
            raise BrokenError(f"{when}{what}", f"stream {stream}, from {at[-FRESH]} on; {must.heads[stream]}")
        for name, values in self._fresh_step(stream, np.arange(FRESH)).items():
            if name in columns and not np.array_equal(columns[name][-FRESH:], values):
                raise BrokenError(f"{when}wrong {name} in steps that were added afterwards", f"stream {stream}")
        if VALUE in columns and columns[VALUE][-FRESH:].any():
            raise BrokenError(f"{when}steps that were added afterwards have an old derived value", f"stream {stream}")
        number = tags.index("fresh") + 1 if "fresh" in tags else -1
        if (columns["tag"][-FRESH:] != number).any():
            raise BrokenError(f"{when}steps that were added afterwards have another tag", f"stream {stream}")
        return at[:-FRESH], {name: values[:-FRESH] for name, values in columns.items()}


def fresh_frames(stream: int, t: Array) -> Array:
    """Return frames that no world has."""
    frames = np.full((len(t), 32, 32), 2 * stream + 2, np.uint8)
    frames[:, 0, 0] = t * 2
    return frames
