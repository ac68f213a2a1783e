"""Readers in other processes beside a writer that evicts all the time: no torn row, no wrong row, no error.

Processes have the store open with ``mode="r"``, refresh, sample, read the oldest and the newest steps, sequences, whole
passes and episodes, and open it anew now and then; two threads sample in the writer's own process, one of them from a loader that
stays. Every row of every batch is compared with what its number says that it holds. The writer adds, extends, seals, writes
columns, and keeps some hundred steps.
"""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import threading
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

import diskbuffer as db
from soak.table import SHOWN, Row
from soak.workers import scratch
from tests.support.experience import Experience, Feeder
from tests.support.writers import WRITTEN, written

READERS, ENVS, CAPACITY, SEGMENT_ROWS = 4, 2, 600, 16


class Counts:
    """What was read, by how, and what was wrong with it."""

    def __init__(self) -> None:
        self.of, self.notes = Counter[str](), list[str]()

    @contextlib.contextmanager
    def errors_in(self, what: str) -> Iterator[None]:
        """Count an exception, whatever it is."""
        try:
            yield
        except Exception:  # noqa: BLE001  every exception is counted
            self.note("errors", f"{what}: {traceback.format_exc(limit=-4)}")

    def note(self, kind: str, what: str, times: int = 1) -> None:
        """Count what should not be."""
        self.of[kind] += times
        self.notes = [*self.notes, what][:SHOWN]


class Reading:
    """Read a store in every way, by turns, and compare."""

    CALLS: ClassVar[dict[str, float]] = {
        **{"sample": 0.45, "sequences": 0.15, "at": 0.25, "loader": 0.05, "a_pass": 0.05, "look": 0.05}
    }  # how often each is called

    def __init__(self, world: Experience, buffer: db.ReplayBuffer, seed: int, counts: Counts) -> None:
        self._world, self.buffer, self._rng, self.counts = world, buffer, np.random.default_rng(seed), counts
        self._slices, self._epochs = db.Slices(7, seed=seed), db.Uniform(seed, replace=False)

    def read(self) -> None:
        """Make one call that is drawn."""
        name = str(self._rng.choice(list(self.CALLS), p=list(self.CALLS.values())))
        with self.counts.errors_in(name):
            getattr(self, name)()

    def sample(self) -> None:
        """Draw single steps."""
        self._take("sample", self.buffer.sample(64, self._epochs if self._rng.random() < 0.3 else None))

    def sequences(self) -> None:
        """Draw sequences."""
        self._take("sequences", self.buffer.sample(16, self._slices))

    def at(self) -> None:
        """Read steps by name: the oldest, which are just being evicted, the newest, or any."""
        known, streams = self._steps(), self.buffer.n_envs
        known = known[np.argsort(known // streams, kind="stable")]
        part = str(self._rng.choice(["oldest", "newest", "any"]))
        steps = {"oldest": known[:32], "newest": known[-32:], "any": self._rng.permutation(known)[:32]}[part]
        try:
            batch = self.buffer.at(steps)
        except db.InputError:
            there = self._steps()
            gone = np.setdiff1d(steps, there)
            oldest = np.array([there[there % streams == stream].min() for stream in range(streams)])
            if not len(gone) or (gone >= oldest[gone % streams]).any():
                raise
            self.counts.of["calls that named what was evicted by then, and that said so"] += 1
            return
        np.testing.assert_array_equal(batch["steps"].reshape(len(steps), -1)[:, 0].numpy(), steps)
        self._take(f"at, {part}", batch)

    def _steps(self) -> np.ndarray:
        with self.buffer._store.lock:
            return self.buffer.steps()

    def loader(self) -> None:
        """Take some batches from a loader's threads."""
        for batch in itertools.islice(self.buffer.loader(64, threads=1), 5):
            self._take("loader", batch)

    def keep_loading(self, until: float) -> None:
        """Take batches from one loader, whose threads prefetch what may be evicted before its turn."""
        with self.counts.errors_in("the same loader"):
            for batch in self.buffer.loader(64, prefetch=8, threads=2):
                self._take("the same loader", batch)
                if time.monotonic() > until:
                    break

    def a_pass(self) -> None:
        """Read everything once."""
        seen = []
        for batch in self.buffer.batches(128, shuffle=True, threads=1):
            self._take("a pass", batch)
            seen.append(batch["steps"].numpy().copy())
        steps = np.concatenate(seen or [np.empty(0, np.int64)])  # all may be evicted before they are read
        assert len(np.unique(steps)) == len(steps), "a pass gave a step twice"

    def look(self) -> None:
        """List the episodes; and the store's figures."""
        episodes = self.buffer.episodes
        for stream in range(self._world.n_envs):
            mine = episodes[episodes.stream == stream]
            firsts = mine.start[1:] // self.buffer.n_envs  # the oldest may be cut by eviction
            np.testing.assert_array_equal(self._world.starts(stream, firsts), firsts)
            assert (mine.length[1:-1] == self._world.rows(stream) - 1).all()
        self.buffer.stats()

    def _take(self, what: str, batch: dict[str, Any]) -> None:
        if batch["reward"].ndim == 2:  # sequences
            shape = batch["reward"].shape
            batch = {name: value.flatten(0, 1) for name, value in batch.items() if value.shape[:2] == shape}
        wrong = self._world.wrong(batch, self.buffer.frame_stack)
        if WRITTEN in batch:
            found = batch[WRITTEN].numpy()
            wrong += int(((found != 0) & (found != written(WRITTEN, batch["steps"].numpy()))).sum())
        self.counts.of.update({"batches": 1, what: 1, "rows": len(batch["steps"])})
        if wrong:
            self.counts.note("wrong rows", f"{what}: {wrong} wrong rows", wrong)


# Processes


def read(path: Path, seed: int, seconds: float) -> Counts:
    """Be a reader in a process of its own."""
    world, rng, until, counts = Experience(ENVS), np.random.default_rng(seed), time.monotonic() + seconds, Counts()
    while time.monotonic() < until:
        with (
            counts.errors_in("opening or refreshing"),
            db.ReplayBuffer(path, mode="r", frame_stack=1 + 3 * (seed % 2), seed=seed, threads=1) as buffer,
        ):
            reading, opened_until = Reading(world, buffer, seed, counts), min(until, time.monotonic() + rng.uniform(0.5, 5))
            while time.monotonic() < opened_until:
                if rng.random() < 0.6:
                    buffer.refresh()
                reading.read()
    return counts


def write(path: Path, seed: int, seconds: float) -> Counts:
    """Be the writer, with two threads that sample."""
    world, rng, counts = Experience(ENVS), np.random.default_rng(seed), Counts()
    with world.open(path, CAPACITY, segment_rows=SEGMENT_ROWS, threads=1, flush_every=0.05) as buffer:
        feeder = Feeder(world, buffer)
        feeder.add(400)
        path.with_name("ready").touch()
        until, others = time.monotonic() + seconds, [Counts(), Counts()]
        loading, reading = (Reading(world, buffer, seed + n, of) for n, of in enumerate(others, 1))

        def keep_reading() -> None:
            while time.monotonic() < until:
                reading.read()

        threads = [threading.Thread(target=loading.keep_loading, args=(until,)), threading.Thread(target=keep_reading)]
        for thread in threads:
            thread.start()
        while time.monotonic() < until:
            with counts.errors_in("writing"):
                _write_some(buffer, feeder, rng)
                counts.of["writes"] += 1
        for thread in threads:
            thread.join()
        counts.of["steps added"] = buffer.stats()["added"]
        if error := buffer.stats()["seal_error"]:
            counts.note("errors", f"sealing: {error}")
    return together([counts, *others])


def _write_some(buffer: db.ReplayBuffer, feeder: Feeder, rng: np.random.Generator) -> None:
    what = rng.random()
    if what < 0.5:
        feeder.add(int(rng.integers(1, 40)))
    elif what < 0.85:
        feeder.extend(int(rng.integers(ENVS)), int(rng.integers(1, 120)))
    elif what < 0.97:
        steps = rng.permutation(buffer.steps())[:100]
        buffer.columns.write(WRITTEN, steps, written(WRITTEN, steps))
    else:
        buffer.flush(recompress=True)


def together(every: list[Counts]) -> Counts:
    """Add up counts."""
    total = Counts()
    for counts in every:
        total.of.update(counts.of)
        total.notes += counts.notes
    return total


def main(scale: float = 1.0, *, seed: int = 0) -> Row:
    """Read and write for ten minutes, times `scale`."""
    seconds, told = 600 * scale, [Counts()]
    context = multiprocessing.get_context("spawn")
    with scratch() as name, ProcessPoolExecutor(1 + READERS, mp_context=context) as pool:
        path = name / "store"
        processes = [pool.submit(write, path, seed * 100, seconds)]
        while not path.with_name("ready").exists() and not processes[0].done():
            time.sleep(0.01)
        processes += [pool.submit(read, path, seed * 100 + 50 + n, seconds) for n in range(READERS)]
        for process in processes:
            with told[0].errors_in("a process"):  # such as that one died
                told.append(process.result())
    total = together(told)
    of = ", ".join(f"{n:,} {what}" for what, n in total.of.most_common())
    broken = total.of["wrong rows"] + total.of["errors"]
    return Row("readers beside a writer: batches", total.of["batches"], broken, [of, *total.notes[:SHOWN]])
