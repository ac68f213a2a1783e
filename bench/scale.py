"""What grows with the steps that are stored: drawing sequences, a reader's refresh, and the buffers for other libraries.

    python -m bench.scale [--only draws] --json FILE

*draws*: the draw alone, of 256 sequences of 4, from up to hundreds of millions of steps. Takes 4 GB of disk. *refreshing*: a
reader refreshes after its writer added 1,000 steps, or after some of many writers did; and it reads the whole index anew. Takes
6 GB. *adapters*: buffers for Stable-Baselines3 and Tianshou, opened in processes of their own. Episodes have 500 steps
everywhere, columns are flat, and the page cache is warm.
"""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import diskbuffer as db
from bench.adapters import ADDED, EPISODE, LIBRARIES
from bench.measure import Part, Report, anonymous, in_turn, parser, ratio, run, settled
from bench.transitions import Transitions
from bench.worker import Worker
from diskbuffer.index.index import Index
from diskbuffer.reading.restore_index import read_index

SLICES, LENGTH = 256, 4
AT_ONCE = 4096  # starts, in an epoch
PART = 4_000_000  # steps, a multiple of EPISODE
COLUMNS = {"obs": db.Column((), "int8"), "action": db.Column((), "int8")}
NEW, ROOM = 1_000, 1_000_000  # steps that are added before a refresh, and room for them
WRITERS = ((8, 1), (8, 8), (200, 10))  # so many stores, of which so many get new steps
SETTLED = 2.5  # seconds after which a store that nobody writes to is not looked into
FEW = 1000  # steps of a store with which the memory of larger ones is compared


def steps(n: int) -> dict[str, Any]:
    """Return `n` steps of whole episodes."""
    terminated = np.arange(n) % EPISODE == EPISODE - 1
    obs = (np.arange(n) % 100).astype(np.int8)
    next_obs = np.where(terminated, np.int8(-1), np.append(obs[1:], np.int8(0)))
    return {"obs": obs, "next_obs": next_obs, "action": obs, "reward": np.ones(n, np.float32), "terminated": terminated}


def seconds_of(call: Callable[[], Any]) -> float:
    """Return the seconds that a call takes."""
    return in_turn(1, {"it": lambda _: call()}, lambda: None)["it"][0]


def fill(buffer: db.ReplayBuffer, n: int) -> None:
    """Add `n` steps."""
    part = steps(min(PART, n))
    for first in range(0, n, PART):
        buffer.extend(**{name: values[: n - first] for name, values in part.items()})


def draws(report: Report, directory: Path) -> None:
    """Draw from three stores; the last one is also added to, drawn from as a whole, and opened again."""
    (small, large), rounds = ((400_000, 4_000_000), 50) if report.quick else ((5_000_000, 346_000_000), 400)
    medians, one = [], steps(EPISODE)
    for n, capacity in ((small, small * 6 // 5), (small, 120 * small), (large, 120 * small)):
        path = directory / f"{n}-of-{capacity}"
        with db.ReplayBuffer(path, capacity, columns=COLUMNS) as buffer:
            seconds = seconds_of(partial(fill, buffer, n))
            buffer.flush(recompress=True)
            time_draws(buffer, 50)
            medians.append(float(np.median(time_draws(buffer, rounds))) * 1e3)
            report.row(f"draw of 256 slices of 4, {n:,} of {capacity:,} steps", medians[-1], "ms", at_most=0.15)
            if n == large:
                report.row(f"extend of flat columns, {n:,} steps", n / seconds / 1e6, "M/s", at_least=5)
                report.times("a draw right after an extend", time_draws(buffer, rounds, lambda: buffer.extend(**one)))
                add = partial(buffer.add, np.int8(0), 0, 0.0, np.int8(1), False, False)
                report.times("a draw right after an add", time_draws(buffer, rounds, add))
                epoch(report, buffer)
                report.row(f"RAM of the index, {n:,} steps", buffer.stats()["index_bytes"] / 1e6, "MB", at_most=50)
    value = seconds_of(lambda: db.ReplayBuffer(path).close())
    report.row(f"opening and closing a store of {large:,} steps", value, "s", at_most=2)
    report.row("the slowest draw against the fastest", max(medians) / min(medians), "x", at_most=2)


def time_draws(buffer: db.ReplayBuffer, rounds: int, before_each: Callable[[], Any] = lambda: None) -> list[float]:
    """Return the seconds of draws."""
    index, sampler, number = buffer._reader.index, db.Slices(LENGTH, seed=0), iter(range(rounds))

    def generator() -> Any:
        before_each()
        return sampler.generator(next(number))

    return in_turn(rounds, {"draw": lambda given: sampler.draw(index, SLICES, given)}, generator)["draw"]


def epoch(report: Report, buffer: db.ReplayBuffer) -> None:
    """Draw every start of a sequence once, without replacement, and watch the memory."""
    index, sampler = buffer._reader.index, db.Slices(LENGTH, seed=0, replace=False)
    _, firsts, _, lasts = index.locate_episodes(np.arange(index.episodes))
    valid = np.maximum(lasts - firsts - LENGTH + 1, 0)
    starts, expected = int(valid.sum()), int((valid * (2 * firsts + valid - 1) // 2).sum())
    del firsts, lasts, valid
    drawn, total, memory = 0, 0, list[int]()
    while drawn < starts:
        found = sampler.draw(index, min(AT_ONCE, starts - drawn), sampler.generator(0))
        sampler.advance()
        drawn, total = drawn + found.size, total + int(found.positions.sum())
        if drawn % (100 * AT_ONCE) == 0:
            memory.append(anonymous())
    assert total == expected, "not every start came once"
    report.row(f"memory of an epoch over {drawn:,} starts", (max(memory) - memory[0]) / 1e6, "MB", at_most=1)


class Pair:
    """Writers, and a reader beside them, whose refreshes are timed: those that find new steps, and those that do not."""

    def __init__(self, stack: contextlib.ExitStack, path: Path, writers: list[db.ReplayBuffer]) -> None:
        self._writers, self._new = writers, steps(NEW)
        self._reader = stack.enter_context(db.ReplayBuffer(path, mode="r"))
        self.seconds, self.idle = list[float](), list[float]()

    def refresh(self) -> None:
        """Add steps to each writer's store, and refresh twice."""
        for writer in self._writers:
            writer.extend(**self._new)
        there = len(self._reader)
        for seconds in (self.seconds, self.idle):
            seconds.append(seconds_of(self._reader.refresh))
        assert len(self._reader) == there + NEW * len(self._writers)

    def read_anew(self) -> None:
        """Read the whole index."""
        read_index(self._reader._store, 0, Index)


def refreshing(report: Report, directory: Path) -> None:
    """Refresh readers of a small and a large store, by turns, and of many writers' stores."""
    sizes, rounds = ((100_000, 1_000_000), 30) if report.quick else ((1_000_000, 346_000_000), 300)
    with contextlib.ExitStack() as stack:
        pairs = {}
        for n in sizes:
            writer = stack.enter_context(db.ReplayBuffer(directory / str(n), n + ROOM, columns=COLUMNS))
            fill(writer, n)
            writer.flush(recompress=True)
            pairs[n] = Pair(stack, directory / str(n), [writer])
        for _ in range(rounds):
            for pair in pairs.values():
                pair.refresh()
        for n, pair in pairs.items():
            report.times(f"the index of {n:,} steps, all read anew", [seconds_of(pair.read_anew) for _ in range(5)])
            value = float(np.median(pair.seconds[5:])) * 1e3
            report.row(f"refresh with {NEW:,} new, {n:,} steps", value, "ms", at_most=2.0)
        small, large = (pairs[n].seconds[5:] for n in sizes)
        report.row(f"refresh with {sizes[1]:,} steps against {sizes[0]:,}", ratio(large, small), "x", at_most=2.0)
        for writers, adding in WRITERS:
            pair = of_many(stack, directory / f"{writers}-{adding}", writers, adding)
            for _ in range(rounds // 5 + 1):
                pair.refresh()
            report.times(f"refresh of {writers} writers' stores, {NEW:,} new in {adding}", pair.seconds[1:])
            report.times(f"refresh of {writers} writers' stores, nothing new, {adding} of them open", pair.idle[1:])


def of_many(stack: contextlib.ExitStack, path: Path, writers: int, adding: int) -> Pair:
    """Make a store for each of several writers, and keep those open that go on."""
    stay = []
    for n in range(writers):
        writer = db.ReplayBuffer(path, columns=COLUMNS, writer=f"actor-{n}", segment_rows=16384)
        writer.extend(**steps(NEW))
        if n < adding:
            stay.append(stack.enter_context(writer))
        else:
            writer.close()
    pair = Pair(stack, path, stay)
    time.sleep(SETTLED)
    return pair


def open_for(library: str, transitions: Transitions, steps: int, path: Path, filled: int = 0) -> Any:
    """Return what has our buffer for another library, over a store that is there, or gets its first steps."""
    return LIBRARIES[library]("ours", transitions, 1, filled, steps, path)


def fill_for(library: str, transitions: Transitions, n: int, path: Path) -> None:
    """Make a store as a library's buffer does, and fill it at once."""
    open_for(library, transitions, n, path, filled=1).close()
    with db.ReplayBuffer(path / "store", mode="r+", autoreset="disabled") as store:
        action = store.columns["action"]
        for first in range(1, n, 500_000):
            step = np.arange(first, min(first + 500_000, n))
            obs, over = transitions.frames[step % EPISODE], step % EPISODE == EPISODE - 1
            given: dict[str, Any] = {"obs": obs, "next_obs": transitions.frames[step % EPISODE + 1], "terminated": over}
            given |= {"truncated": np.zeros_like(over), "reward": np.ones(len(step))}
            given |= {"action": np.zeros((len(step), *action.shape), action.np_dtype)}
            given |= {"slot": step} if "slot" in store.columns else {}
            store.extend(**given)


class Opened:
    """A library's buffer over a store that is there, in a process that opened another one before."""

    def __init__(self, library: str, transitions: Transitions, n: int, path: Path) -> None:
        open_for(library, transitions, FEW, path / "first", filled=1).close()
        begin = time.perf_counter()
        self._buffer = open_for(library, transitions, n, path)
        self._opened = time.perf_counter() - begin
        self.sample = self._buffer.sample
        self.add = self._buffer.add
        self.sample(256)
        self.add()

    def told(self) -> tuple[float, int]:
        """Return how long it took to open it, and the bytes of RAM that the process has to itself."""
        return self._opened, settled()


def adapters(report: Report, directory: Path) -> None:
    """Open larger and larger stores of other libraries' buffers."""
    frames = np.repeat((np.arange(EPISODE + 1) % 251).astype(np.uint8)[:, None], 4, axis=1)
    transitions = Transitions.save(frames, directory / "frames.npy")
    for library in ("Stable-Baselines3", "Tianshou"):
        least = 0
        for n in (FEW, 100_000) if report.quick else (FEW, 1_000_000, 10_000_000, 100_000_000):
            fill_for(library, transitions, n, path := directory / f"{library}-{n}")
            with Worker(Opened, library, transitions, n, path) as worker:
                sample = worker.time("sample", 256, calls=200, seconds=3)
                add = worker.time("add", calls=200, seconds=3)
                opened, memory = worker.ask("told")
            shutil.rmtree(path)
            least, of = least or memory, f"{library}, {n:,} steps"
            report.row(f"{of}: sample(256)", sample * 1e3, "ms")
            report.row(f"{of}: add", add / ADDED * 1e6, "us")
            report.row(f"{of}: opening", opened, "s")
            if n > FEW:
                report.row(f"{of}: memory", (memory - least) / (n - FEW), "bytes a step")


PARTS: dict[str, Part] = {part.__name__: part for part in (draws, refreshing, adapters)}

if __name__ == "__main__":
    run("scale", PARTS, parser(__doc__))
