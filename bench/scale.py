"""What grows with the steps that are stored: drawing sequences, a reader's refresh, and the buffers for other libraries.

    python -m bench.scale [--only draws] --json FILE

*draws*: from stores of millions and of hundreds of millions of steps; the draw alone, of 256 sequences of 4 (`bench.slices` has
whole batches, beside TorchRL). Takes 4 GB of disk. *refreshing*: a writer adds 1,000 steps, and a reader beside it refreshes,
which alone is timed; then a learner of many writers' stores, some of which have changed. Reading the index anew, as when a store
is opened, or after a power loss, is timed beside it. Takes 6 GB. Of both all columns are flat and the page cache is warm.
*adapters*: stores for Stable-Baselines3 and Tianshou, each opened in a process of its own, whose memory is compared with that of
one whose store has 1,000 steps. Episodes have 500 steps everywhere.
"""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import diskbuffer as db
from bench.measure import Part, Report, anonymous, parser, ratio, run, settled
from bench.worker import Worker
from diskbuffer.index.index import Index
from diskbuffer.reading.restore_index import read_index

EPISODE, SLICES, LENGTH = 500, 256, 4
AT_ONCE = 4096  # starts, in an epoch
PART = 4_000_000  # steps, a multiple of EPISODE
COLUMNS = {"obs": db.Column((), "int8"), "action": db.Column((), "int8")}
NEW, ROOM, ENVS = 1_000, 1_000_000, 16  # of refreshing
GATHERED = ((8, 1), (8, 8), (200, 10))  # writers, of which so many add between two refreshes
SETTLED = 2.5  # seconds after which a store that nobody writes to is not looked into
LIBRARIES, FEW = ("Stable-Baselines3", "Tianshou"), 1000


def steps(n: int) -> dict[str, Any]:
    """Return `n` steps of whole episodes."""
    terminated = np.zeros(n, np.bool_)
    terminated[EPISODE - 1 :: EPISODE] = True
    obs = (np.arange(n) % 100).astype(np.int8)
    next_obs = np.append(obs[1:], np.int8(0))
    next_obs[terminated] = -1
    return {"obs": obs, "next_obs": next_obs, "action": obs, "reward": np.ones(n, np.float32), "terminated": terminated}


def seconds_of(call: Callable[[], Any]) -> float:
    """Return the seconds that a call takes."""
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def fill(buffer: db.ReplayBuffer, n: int) -> float:
    """Add `n` steps; return the seconds that took."""
    part, seconds = steps(min(PART, n)), 0.0
    for first in range(0, n, PART):
        some = {name: values[: n - first] for name, values in part.items()}
        seconds += seconds_of(lambda some=some: buffer.extend(**some))  # type: ignore[misc]
    return seconds


def time_draws(buffer: db.ReplayBuffer, rounds: int, between: Callable[[], Any] = lambda: None) -> list[float]:
    """Time draws; `between` is called before each."""
    index, sampler, seconds = buffer._reader.index, db.Slices(LENGTH, seed=0), []
    for k in range(rounds):
        between()
        generator = sampler.generator(k)
        begin = time.perf_counter()
        sampler.draw(index, SLICES, generator)
        seconds.append(time.perf_counter() - begin)
    return seconds


def draws(report: Report, directory: Path) -> None:
    """Draw from three stores."""
    (small, large), rounds = ((400_000, 4_000_000), 50) if report.quick else ((5_000_000, 346_000_000), 400)
    medians, one = [], steps(EPISODE)
    for n, capacity in ((small, small * 6 // 5), (small, 120 * small), (large, 120 * small)):
        path = directory / f"{n}-of-{capacity}"
        with db.ReplayBuffer(path, capacity, columns=COLUMNS) as buffer:
            seconds = fill(buffer, n)
            buffer.flush(recompress=True)
            time_draws(buffer, 50)
            medians.append(float(np.median(time_draws(buffer, rounds))) * 1e3)
            report.row(f"draw of 256 slices of 4, {n:,} of {capacity:,} steps", medians[-1], "ms", at_most=0.15)
            if n == large:
                report.row(f"extend of flat columns, {n:,} steps", n / seconds / 1e6, "M/s", at_least=5)
                report.times("a draw right after an extend", time_draws(buffer, rounds, lambda: buffer.extend(**one)))
                add = time_draws(buffer, rounds, lambda: buffer.add(np.int8(0), 0, 0.0, np.int8(1), False, False))
                report.times("a draw right after an add", add)
                epoch(report, buffer)
                report.row(f"RAM of the index, {n:,} steps", buffer.stats()["index_bytes"] / 1e6, "MB", at_most=50)
    value = seconds_of(lambda: db.ReplayBuffer(path).close())
    report.row(f"opening and closing a store of {large:,} steps", value, "s", at_most=2)
    report.row("the slowest draw against the fastest", max(medians) / min(medians), "x", at_most=2)


def epoch(report: Report, buffer: db.ReplayBuffer) -> None:
    """Draw every start of a sequence once, without replacement, and watch the memory."""
    index, sampler = buffer._reader.index, db.Slices(LENGTH, seed=0, replace=False)
    _, firsts, _, lasts = index.locate_episodes(np.arange(index.episodes))
    valid = np.maximum(lasts - firsts - LENGTH + 1, 0)
    starts, expected = int(valid.sum()), int((valid * (2 * firsts + valid - 1) // 2).sum())
    del firsts, lasts, valid
    drawn = total = draws = most = before = 0
    while drawn < starts:
        found = sampler.draw(index, min(AT_ONCE, starts - drawn), sampler.generator(0))
        sampler.advance()
        drawn, total, draws = drawn + found.size, total + int(found.positions.sum()), draws + 1
        if draws == 100:
            before = anonymous()
        if draws % 100 == 0:
            most = max(most, anonymous())
    assert total == expected, "not every start came once"
    report.row(f"memory of an epoch over {drawn:,} starts", (most - before) / 1e6, "MB", at_most=1)


class Pair:
    """A writer of a store, or writers of a store each of which some stay, and a reader beside them.

    Attributes
    ----------
    seconds, idle : list of float
        What refreshes took that found new steps, and none.
    """

    def __init__(self, stack: contextlib.ExitStack, path: Path, n: int, envs: int = 1) -> None:
        writer = stack.enter_context(db.ReplayBuffer(path, n + ROOM, columns=COLUMNS, n_envs=envs))
        if envs == 1:
            fill(writer, n)
        for env in range(envs if envs > 1 else 0):
            writer.extend(**steps(n // envs), env=env)
        writer.flush(recompress=True)
        self._start(stack, path, [writer], envs)

    @classmethod
    def of_many(cls, stack: contextlib.ExitStack, path: Path, writers: int, adding: int) -> Pair:
        """Make a store for each of several writers, and keep those open that go on."""
        pair, stay = cls.__new__(cls), []
        for n in range(writers):
            writer = db.ReplayBuffer(path, columns=COLUMNS, writer=f"actor-{n}", segment_rows=16384)
            writer.extend(**steps(NEW))
            if n < adding:
                stay.append(stack.enter_context(writer))
            else:
                writer.close()
        pair._start(stack, path, stay, 1)
        time.sleep(SETTLED)
        return pair

    def _start(self, stack: contextlib.ExitStack, path: Path, writers: list[db.ReplayBuffer], envs: int) -> None:
        self._writers, self._envs, self._new = writers, envs, steps(NEW // envs)
        self._reader = stack.enter_context(db.ReplayBuffer(path, mode="r"))
        self.seconds: list[float] = []
        self.idle: list[float] = []

    def refresh(self) -> None:
        """Add 1,000 steps to each store; time a refresh, and another one, for which there is nothing new."""
        for writer in self._writers:
            for env in range(self._envs):
                writer.extend(**self._new, **({"env": env} if self._envs > 1 else {}))
        there = len(self._reader)
        for seconds in (self.seconds, self.idle):
            seconds.append(seconds_of(self._reader.refresh))
        assert len(self._reader) == there + NEW // self._envs * self._envs * len(self._writers)

    def read_anew(self) -> None:
        """Read the whole index."""
        read_index(self._reader._store, 0, Index)


def refreshing(report: Report, directory: Path) -> None:
    """Refresh readers of small and large stores, by turns, and of many writers' stores."""
    sizes, rounds = ((100_000, 1_000_000), 30) if report.quick else ((100_000, 1_000_000, 346_000_000), 300)
    with contextlib.ExitStack() as stack:
        pairs = {f"{n:,} steps": Pair(stack, directory / str(n), n) for n in sizes}
        pairs[f"{sizes[0]:,} steps, {ENVS} environments"] = Pair(stack, directory / "envs", sizes[0], ENVS)
        for _ in range(rounds):
            for pair in pairs.values():
                pair.refresh()
        for name, pair in pairs.items():
            report.times(f"refresh, {NEW:,} new in {name}", pair.seconds[5:])
            report.times(f"the same, all read anew, {name}", [seconds_of(pair.read_anew) for _ in range(5)])
        few, many = (pairs[f"{n:,} steps"].seconds[5:] for n in sizes[-2:])
        for n, seconds in zip(sizes[-2:], (few, many), strict=True):
            report.row(f"refresh with {NEW:,} new, {n:,} steps", float(np.median(seconds)) * 1e3, "ms", at_most=2.0)
        report.row(f"refresh with {sizes[-1]:,} steps against {sizes[-2]:,}", ratio(many, few), "x", at_most=2.0)
        for writers, adding in GATHERED:
            pair = Pair.of_many(stack, directory / f"{writers}-{adding}", writers, adding)
            for _ in range(rounds // 5 + 1):
                pair.refresh()
            report.times(f"refresh of {writers} writers' stores, {NEW:,} new in {adding}", pair.seconds[1:])
            report.times(f"refresh of {writers} writers' stores, nothing new, {adding} of them open", pair.idle[1:])


def make(library: str, size: int, path: Path) -> Any:
    """Return an adapter's buffer of vectors of 4 bytes, of one environment."""
    if library == "Tianshou":
        from diskbuffer.adapters.tianshou import DiskReplayBuffer as DiskTianshouBuffer

        return DiskTianshouBuffer(size, path=path)
    from gymnasium import spaces

    from diskbuffer.adapters.sb3 import DiskReplayBuffer

    return DiskReplayBuffer(size, spaces.Box(0, 255, (4,), np.uint8), spaces.Discrete(2), "cpu", path=path)


def add(library: str, buffer: Any, step: int) -> None:
    """Add a step."""
    obs, following = (np.full(4, at % 251, np.uint8) for at in (step, step + 1))
    over = step % EPISODE == EPISODE - 1
    if library == "Tianshou":
        from tianshou.data import Batch

        buffer.add(Batch(obs=obs, act=0, rew=1.0, obs_next=following, info={}, terminated=over, truncated=False))
    else:
        buffer.add(obs[None], following[None], np.zeros((1, 1)), np.ones(1), np.array([over]), [{}])


def close(buffer: Any) -> None:
    """Close an adapter's buffer."""
    (buffer.close if hasattr(buffer, "close") else buffer.stored.close)()


def fill_for(library: str, path: Path, n: int) -> None:
    """Fill a store as its adapter would."""
    buffer = make(library, n, path)
    add(library, buffer, 0)
    close(buffer)
    with db.ReplayBuffer(path, mode="r+", autoreset="disabled") as store:
        action, places = store.columns["action"], "slot" in store.columns
        for first in range(1, n, 500_000):
            step = np.arange(first, min(first + 500_000, n))
            obs, following = (np.repeat((at % 251).astype(np.uint8)[:, None], 4, axis=1) for at in (step, step + 1))
            given: dict[str, Any] = {
                "action": np.zeros((len(step), *action.shape), action.np_dtype),
                "reward": np.ones(len(step)),
            }
            given |= {"slot": step} if places else {}
            over = step % EPISODE == EPISODE - 1
            store.extend(obs=obs, next_obs=following, terminated=over, truncated=np.zeros(len(step), np.bool_), **given)


class Opened:
    """A buffer of an adapter's, over a store that is there."""

    def __init__(self, library: str, n: int, path: Path) -> None:
        self._library, self._steps = library, n
        first = make(library, FEW, path.with_name(f"{path.name}-first"))
        add(library, first, 0)  # what is imported is no part of the opening
        close(first)
        begin = time.perf_counter()
        self._buffer = make(library, n, path)
        self._opened = time.perf_counter() - begin
        self.sample()
        self.add()

    def sample(self) -> None:
        """Draw 256 steps."""
        self._buffer.sample(256)

    def add(self) -> None:
        """Add one."""
        add(self._library, self._buffer, self._steps)
        self._steps += 1

    def told(self) -> tuple[float, int]:
        """Return how long it took to open it, and the bytes of RAM that the process has to itself."""
        return self._opened, settled()


def adapters(report: Report, directory: Path) -> None:
    """Open larger and larger stores of other libraries' buffers."""
    for library in LIBRARIES:
        least = 0
        for n in (FEW, 100_000) if report.quick else (FEW, 1_000_000, 10_000_000, 100_000_000):
            fill_for(library, path := directory / f"{library}-{n}", n)
            with Worker(Opened, library, n, path) as worker:
                taken = {name: worker.time(name, calls=200, seconds=3) for name in ("sample", "add")}
                opened, memory = worker.ask("told")
            shutil.rmtree(path)
            least, of = least or memory, f"{library}, {n:,} steps"
            report.row(f"{of}: sample(256)", taken["sample"] * 1e3, "ms")
            report.row(f"{of}: add", taken["add"] * 1e6, "us")
            report.row(f"{of}: opening", opened, "s")
            if n > FEW:
                report.row(f"{of}: memory", (memory - least) / (n - FEW), "bytes a step")


PARTS: dict[str, Part] = {part.__name__: part for part in (draws, refreshing, adapters)}

if __name__ == "__main__":
    run("scale", PARTS, parser(__doc__))
