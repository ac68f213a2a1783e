"""Loops over loaders that are left, closed, dropped, forked and interrupted, or whose buffer is closed, with batches under way.

Several loops over one buffer, or a reader of its store, take batches by turns with one that changes it. A fork goes on with the
loops of its parent. Ctrl-C comes at any instant. Every row that a batch has is compared with its number, what memory the process
takes must not grow, and at the end there may be no thread of ours.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import random
import signal
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import diskbuffer as db
from diskbuffer.errors import ClosedError
from diskbuffer.samplers.draws import NSteps
from soak.table import Row, seeded
from soak.threads import GONE, Kind, World
from tests.support.in_fork import in_fork
from tests.support.storm import Storm

KINDS = ("flat", "packed", "stacks")
SAMPLERS: tuple[Callable[[], Any], ...] = (
    *(lambda: None, db.Uniform, lambda: db.Uniform(newest=4), lambda: db.Uniform(n_step=3)),
    *(lambda: db.Uniform(replace=False), lambda: db.Slices(4), lambda: db.Slices(3, burn_in=2), db.Prioritized),
)
ACTS = {"take": 12, "change": 4, "begin": 3, "close": 1, "drop": 1, "fork": 0.5, "interrupt": 2, "reopen": 0.2}  # how often
LOOPS = 4  # at once
ROUND = 400  # acts of a case, some ten seconds
SETTLED = 0.4  # of them, after which memory does not grow any more
GROWTH = 48 * 2**20  # bytes, though, for the allocator


class Loop:
    """A loop over a loader of a world's buffer, or of another's that reads the same store."""

    def __init__(self, world: World, rng: random.Random) -> None:
        self._world, sampler = world, rng.choice(SAMPLERS)()
        self._other = db.ReplayBuffer(world.path, mode="r", frame_stack=world.kind.stack) if rng.random() < 0.2 else None
        how: dict[str, Any] = {"prefetch": rng.randint(1, 6), "threads": rng.randint(1, 3)}
        if rng.random() < 0.3:
            how |= {"transform": lambda batch: batch, "transform_threads": rng.randrange(3)}
        self._is_n_step = sampler is not None and isinstance(sampler.form, NSteps)  # whose next_obs are of later steps
        if self._other is not None and isinstance(sampler, db.Prioritized):
            sampler = None  # its column is written
        self._batches: Any = iter((self._other or world.buffer).loader(rng.choice([8, 64, 200]), sampler, **how))

    @property
    def has_reader(self) -> bool:
        """Whether it reads by a buffer of its own."""
        return self._other is not None

    def take(self, n: int) -> bool:
        """Take some batches, and check them; return whether there may be others."""
        try:
            for batch in itertools.islice(self._batches, n):
                rows = len(batch["steps"]) if self._is_n_step else self._world.kind.check(batch, self._world.named)
                self._world.done["rows"] += rows
        except (*GONE, ClosedError):
            self._world.done["refused"] += 1
            return False
        return self._batches.gi_frame is not None

    def close(self) -> None:
        """Leave it."""
        self._batches.close()
        if self._other is not None:
            self._other.close()


class Case:
    """A buffer, and loops over it."""

    def __init__(self, kind: Kind, path: Path, seed: int) -> None:
        self._rng = random.Random(seed)
        self._world = World(kind, path, seed)
        self._world.begin(self._rng)
        self._loops: list[Loop] = []
        self._storm = Storm()

    def run(self, acts: int) -> str:
        """Do something at random so often; return what is wrong with memory or threads, or nothing."""
        signal.signal(signal.SIGALRM, self._storm.strike)
        settled = 0
        for act in range(acts):
            if act == int(acts * SETTLED):
                settled = _resident()
            name = self._rng.choices(list(ACTS), list(ACTS.values()))[0]
            getattr(self, f"_{name}")()
            self._world.done[name] += 1
        grown = _resident() - settled
        self._close_all()
        return f"memory grew by {grown / 2**20:.0f} MB" if grown > GROWTH else _threads_left()

    @property
    def counts(self) -> dict[str, int]:
        """What was done, and how often."""
        return dict(self._world.done)

    def _any(self) -> Loop | None:
        return self._rng.choice(self._loops) if self._loops else None

    def _take(self, most: int = 8) -> None:
        loop = self._any()
        if loop is not None and not loop.take(self._rng.randint(1, most)):
            self._loops.remove(loop)

    def _change(self) -> None:
        with contextlib.suppress(*GONE):
            self._world.change(self._rng)

    def _begin(self) -> None:
        if len(self._loops) < LOOPS:
            with contextlib.suppress(db.InputError):  # another sampler has priorities
                self._loops.append(Loop(self._world, self._rng))

    def _close(self) -> None:
        loop = self._any()
        if loop is not None:
            self._loops.remove(loop)
            loop.close()

    def _drop(self) -> None:
        """Drop a loop, half of them in a ring that the collector of garbage finds later."""
        loop: Any = self._any()
        if loop is not None:
            self._loops.remove(loop)
            if self._rng.random() < 0.5:
                loop.itself = loop
            del loop
            if self._rng.random() < 0.2:
                gc.collect()

    def _fork(self) -> None:
        """Go on with all loops in a fork, and then here."""
        rng = random.Random(self._rng.random())

        def child() -> None:
            for loop in self._loops:
                if loop.take(rng.randrange(3)) and rng.random() < 0.5:
                    loop.close()
            if rng.random() < 0.5:
                self._loops.clear()
                gc.collect()

        status = in_fork(child)
        if status != 0:
            raise AssertionError(f"a fork ended with {status}")

    def _interrupt(self) -> None:
        """Have Ctrl-C come while loops begin, and batches are taken."""
        try:
            self._storm.arm(self._rng.expovariate(500) + 1e-5)
            while True:
                self._take(most=1)
                if not self._loops:
                    self._begin()
        except KeyboardInterrupt:
            self._storm.calm()
        self._loops = [each for each in self._loops if each.take(0)]  # a loop that it came into is over

    def _close_all(self) -> None:
        """Close the buffer under its loops, which tell so."""
        self._world.close()
        for loop in self._loops:
            if loop.take(10) and not loop.has_reader:
                raise AssertionError("a loop went on over a buffer that was closed")
            loop.close()
        self._loops.clear()

    def _reopen(self) -> None:
        world = self._world
        self._close_all()
        world.buffer = db.ReplayBuffer(
            world.path, frame_stack=world.kind.stack, autoreset="next_step", seed=world.seed, threads=2, flush_every=0.02
        )


def _resident() -> int:
    """Return the bytes of memory that this process has, without what is mapped of files."""
    gc.collect()
    fields = Path("/proc/self/statm").read_text().split()
    return (int(fields[1]) - int(fields[2])) * os.sysconf("SC_PAGE_SIZE")


def _threads_left() -> str:
    """Return which threads of ours are left, when they had some time to end."""
    until = time.monotonic() + 20
    while True:
        names = [thread.name for thread in threading.enumerate() if thread.name.startswith("diskbuffer")]
        if not names or time.monotonic() > until:
            return f"threads are left: {names}" if names else ""
        gc.collect()
        time.sleep(0.01)


def run(name: str, seed: int, acts: int) -> tuple[str, dict[str, int]]:
    """Run a case with a kind of observation; return what was wrong, or nothing, and what was done."""
    with tempfile.TemporaryDirectory() as room:
        case = Case(Kind(name), Path(room) / "store", seed)
        try:
            wrong = case.run(acts)
        except Exception:  # noqa: BLE001  every one is counted
            wrong = traceback.format_exc(limit=-8)
        report = db.check(Path(room) / "store", progress=False)
    return wrong or ("" if report.ok else f"the store is damaged: {report.problems[:2]}"), case.counts


def main(scale: float = 1.0, *, seed: int = 0) -> Row:
    """Run cases of all kinds, by turns, for five minutes, times `scale`."""
    names, numbers = itertools.cycle(KINDS), itertools.count(seed * 10_000)
    runs: Iterator[tuple[object, ...]] = ((n, number, ROUND) for n, number in zip(names, numbers, strict=False))
    title = "cases of loops over loaders that are left, forked and interrupted"
    return seeded(title, "soak.loops", runs, timeout=300, seconds=300 * scale)
