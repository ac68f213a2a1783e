"""What it costs a reader to see 1,000 new steps, in stores of a hundred thousand, a million, and hundreds of millions of them.

    python -m bench.refreshing --json FILE

A writer adds 1,000 steps, and a reader beside it refreshes, which alone is timed; all stores by turns, so that the machine's
moods strike them all. Episodes of 500 steps, flat columns only, the page cache warm; the writer evicts nothing. Reading it all
anew, as is done when a store is opened and after a recovery from a power loss, is timed beside it. Takes 6 GB of disk, minutes.

Then a learner of many writers' stores: none of which has changed since its last refresh, some, or all.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import time
from pathlib import Path

import numpy as np

import diskbuffer as db
from bench.measure import Report, arguments, ratio
from bench.scale import COLUMNS, fill, steps
from diskbuffer.index.index import Index
from diskbuffer.reading.restore_index import read_index

SIZES, QUICK = (100_000, 1_000_000, 346_000_000), (100_000, 1_000_000)
NEW, MOST_MS, MOST_TIMES, ROOM = 1_000, 2.0, 2.0, 1_000_000
ENVS = 16
GATHERED = ((8, 1), (8, 8), (200, 10))  # writers, of which so many add between two refreshes
SETTLED = 2.5  # seconds after which a store that nobody writes to is not looked into


class Pair:
    """A writer, and a reader beside it.

    Attributes
    ----------
    seconds : list of float
        What refreshes took.
    """

    def __init__(self, stack: contextlib.ExitStack, path: Path, n: int, envs: int = 1) -> None:
        self._envs, self._new = envs, steps(NEW // envs)
        self._writer = stack.enter_context(db.ReplayBuffer(path, n + ROOM, columns=COLUMNS, n_envs=envs))
        if envs == 1:
            fill(self._writer, n)
        for env in range(envs if envs > 1 else 0):
            self._writer.extend(**steps(n // envs), env=env)
        self._writer.flush(recompress=True)
        self._reader = stack.enter_context(db.ReplayBuffer(path, mode="r"))
        self.seconds: list[float] = []

    def refresh(self, *, timed: bool = True) -> None:
        """Add 1,000 steps, and time a refresh."""
        for env in range(self._envs):
            self._writer.extend(**self._new, env=env)
        there = len(self._reader)
        begin = time.perf_counter()
        self._reader.refresh()
        if timed:
            self.seconds.append(time.perf_counter() - begin)
        assert len(self._reader) == there + NEW // self._envs * self._envs

    def read_anew(self) -> float:
        """Return the seconds that it takes to read the whole index."""
        begin = time.perf_counter()
        read_index(self._reader._store, 0, Index)
        return time.perf_counter() - begin


class Many:
    """Writers of a store each, of which some stay, and a learner of all."""

    def __init__(self, stack: contextlib.ExitStack, path: Path, writers: int, adding: int) -> None:
        self._new, self._writers = steps(NEW), list[db.ReplayBuffer]()
        for n in range(writers):
            writer = db.ReplayBuffer(path, columns=COLUMNS, writer=f"actor-{n}", segment_rows=16384)
            writer.extend(**self._new)
            if n < adding:
                self._writers.append(stack.enter_context(writer))
            else:
                writer.close()
        self._learner = stack.enter_context(db.ReplayBuffer(path, mode="r"))
        time.sleep(SETTLED)
        self._learner.refresh()
        self.seconds: list[float] = []
        self.idle: list[float] = []

    def refresh(self) -> None:
        """Have some add 1,000 steps; time a refresh, and another one, for which there is nothing new."""
        for writer in self._writers:
            writer.extend(**self._new)
        there = len(self._learner)
        for seconds in (self.seconds, self.idle):
            begin = time.perf_counter()
            self._learner.refresh()
            seconds.append(time.perf_counter() - begin)
        assert len(self._learner) == there + NEW * len(self._writers)


def main() -> None:
    """Run everything."""
    args = arguments(__doc__.splitlines()[0])
    report = Report("refreshing", args.seed, quick=args.quick)
    sizes, rounds = (QUICK, 30) if args.quick else (SIZES, 300)
    directory = Path(tempfile.mkdtemp(prefix="diskbuffer-bench-"))
    try:
        with contextlib.ExitStack() as stack:
            pairs = {f"{n:,} steps": Pair(stack, directory / str(n), n) for n in sizes}
            pairs |= {f"{sizes[0]:,} steps, {ENVS} environments": Pair(stack, directory / "envs", sizes[0], ENVS)}
            for number in range(rounds + 5):
                for pair in pairs.values():
                    pair.refresh(timed=number >= 5)
            for name, pair in pairs.items():
                report.times(f"refresh, {NEW:,} new in {name}", pair.seconds)
                report.times(f"the same, all read anew, {name}", [pair.read_anew() for _ in range(5)])
            small, large = (pairs[f"{n:,} steps"] for n in (sizes[-2], sizes[-1]))
            for n, pair in zip(sizes[-2:], (small, large), strict=True):
                report.row(f"refresh with {NEW:,} new, {n:,} steps", float(np.median(pair.seconds)) * 1e3, "ms", at_most=MOST_MS)
            for writers, adding in GATHERED:
                many = Many(stack, directory / f"{writers}-{adding}", writers, adding)
                for _ in range(rounds // 5):
                    many.refresh()
                report.times(f"refresh of {writers} writers' stores, {NEW:,} new in {adding}", many.seconds)
                report.times(f"refresh of {writers} writers' stores, nothing new, {adding} of them open", many.idle)
            of = f"refresh with {sizes[-1]:,} steps against {sizes[-2]:,}"
            report.row(of, ratio(large.seconds, small.seconds), "x", at_most=MOST_TIMES)
    finally:
        shutil.rmtree(directory)
    report.write(args.json)


if __name__ == "__main__":
    main()
