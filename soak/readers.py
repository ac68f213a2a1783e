"""Readers in other processes beside a writer that evicts all the time: no torn row, no wrong row, no error.

Processes have the store open with ``mode="r"``, refresh, sample, read the oldest and the newest steps, sequences, whole
passes and episodes, and open it anew now and then; two threads sample in the writer's own process, one of them from a loader that
stays. Every row of every batch is compared with what its number says that it holds. The writer adds, extends, seals, writes
columns, and keeps some hundred steps.
"""

from __future__ import annotations

import collections
import itertools
import multiprocessing
import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

import diskbuffer as db
from soak.table import SHOWN, Row
from soak.workers import scratch
from tests.support.experience import Experience, Feeder, steps_of
from tests.support.writers import WRITTEN, written

READERS, THREADS = 4, 2
ENVS, CAPACITY, SEGMENT_ROWS = 2, 600, 16


class Counts:
    """What one reader has read, and what was wrong with it."""

    def __init__(self) -> None:
        self.batches, self.rows, self.wrong, self.errors = 0, 0, 0, 0
        self.evicted = 0  # calls that named steps which the writer had evicted by then, and that said so
        self.notes: list[str] = []
        self.of: collections.Counter[str] = collections.Counter()

    def take(self, what: str, rows: int, wrong: int) -> None:
        """Count a batch."""
        self.batches += 1
        self.of[what] += 1
        self.rows += rows
        self.wrong += wrong
        if wrong and len(self.notes) < SHOWN:
            self.notes.append(f"{what}: {wrong} wrong rows of {rows}")

    def take_error(self, what: str) -> None:
        """Count the exception that is being handled."""
        self.errors += 1
        if len(self.notes) < SHOWN:
            self.notes.append(f"{what}: {traceback.format_exc(limit=-4)}")


class Reading:
    """Read a store in every way, by turns, and compare."""

    def __init__(self, world: Experience, buffer: db.ReplayBuffer, seed: int) -> None:
        self._world, self.buffer, self._rng = world, buffer, np.random.default_rng(seed)
        self._slices, self._epochs = db.Slices(7, seed=seed), db.Uniform(seed, replace=False)
        self.counts = Counts()

    def read(self) -> None:
        """Make one call that is drawn."""
        calls: list[Callable[[], None]] = [self.sample, self.sample, self.sequences, self.at, self.loader, self.a_pass, self.look]
        call = calls[self._rng.choice(len(calls), p=[0.25, 0.2, 0.15, 0.25, 0.05, 0.05, 0.05])]
        try:
            call()
        except Exception:  # noqa: BLE001  every exception is counted
            self.counts.take_error(call.__name__)

    def sample(self) -> None:
        """Draw single steps."""
        sampler = self._epochs if self._rng.random() < 0.3 else None
        self._take("sample", self.buffer.sample(64, sampler))

    def sequences(self) -> None:
        """Draw sequences."""
        self._take("sequences", self.buffer.sample(16, self._slices))

    def at(self) -> None:
        """Read steps by name: the oldest, which are just being evicted, the newest, or any."""
        with self.buffer._store.lock:
            known = steps_of(self.buffer)
        streams = self.buffer.n_envs
        known = known[np.argsort(known // streams, kind="stable")]
        part = int(self._rng.integers(3))
        steps = (known[:32], known[-32:], self._rng.permutation(known)[:32])[part]
        try:
            batch = self.buffer.at(steps)
        except db.InputError:
            with self.buffer._store.lock:
                there = steps_of(self.buffer)
            gone = np.setdiff1d(steps, there)
            oldest = [there[there % streams == stream].min() for stream in range(streams)]
            if not len(gone) or any(step >= oldest[step % streams] for step in gone.tolist()):
                raise
            self.counts.evicted += 1
            return
        np.testing.assert_array_equal(batch["steps"].reshape(len(steps), -1)[:, 0].numpy(), steps)
        self._take(("at, oldest", "at, newest", "at, any")[part], batch)

    def loader(self) -> None:
        """Take some batches from a loader's threads."""
        for batch in itertools.islice(self.buffer.loader(64, threads=1), 5):
            self._take("loader", batch)

    def keep_loading(self, until: float) -> None:
        """Take batches from one loader, whose threads prefetch what may be evicted before its turn."""
        try:
            for batch in self.buffer.loader(64, prefetch=8, threads=2):
                self._take("the same loader", batch)
                if time.monotonic() > until:
                    break
        except Exception:  # noqa: BLE001  every exception is counted
            self.counts.take_error("the same loader")

    def a_pass(self) -> None:
        """Read everything once."""
        seen: list[np.ndarray] = []
        for batch in self.buffer.batches(128, shuffle=True, threads=1):
            self._take("a pass", batch)
            seen.append(batch["steps"].numpy().copy())
        steps = np.concatenate(seen)
        assert len(np.unique(steps)) == len(steps), "a pass gave a step twice"

    def look(self) -> None:
        """List the episodes; and the store's figures."""
        episodes = self.buffer.episodes
        starts = episodes.start // self.buffer.n_envs
        for stream in range(self._world.n_envs):
            mine = episodes.stream == stream
            firsts = starts[mine][1:]  # the oldest may be cut by eviction
            np.testing.assert_array_equal(self._world.starts(stream, firsts), firsts)
            assert (episodes.length[mine][1:-1] == self._world.rows(stream) - 1).all()
        self.buffer.stats()

    def _take(self, what: str, batch: dict[str, Any]) -> None:
        flat = dict(batch)
        if batch["reward"].ndim == 2:  # sequences
            n, length = batch["reward"].shape
            flat = {name: value.flatten(0, 1) for name, value in batch.items() if value.shape[:2] == (n, length)}
        wrong = self._world.wrong(flat, self.buffer.frame_stack)
        if WRITTEN in flat:
            found = flat[WRITTEN].numpy()
            wrong += int(((found != 0) & (found != written(WRITTEN, flat["steps"].numpy()))).sum())
        self.counts.take(what, len(flat["steps"]), wrong)


# Processes


def read(path: Path, seed: int, seconds: float) -> list[Counts]:
    """Be a reader in a process of its own."""
    world, rng, until = Experience(ENVS), np.random.default_rng(seed), time.monotonic() + seconds
    counts = Counts()
    while time.monotonic() < until:
        stack = 1 + 3 * (seed % 2)
        try:
            with db.ReplayBuffer(path, mode="r", frame_stack=stack, seed=seed, threads=1) as buffer:
                reading = Reading(world, buffer, seed)
                reading.counts = counts
                opened_until = min(until, time.monotonic() + rng.uniform(0.5, 5))
                while time.monotonic() < opened_until:
                    if rng.random() < 0.6:
                        buffer.refresh()
                    reading.read()
        except Exception:  # noqa: BLE001  every exception is counted
            counts.take_error("opening or refreshing")
    return [counts]


def write(path: Path, seed: int, seconds: float) -> list[Counts]:
    """Be the writer, with two threads that sample."""
    world, rng = Experience(ENVS), np.random.default_rng(seed)
    with world.open(path, CAPACITY, segment_rows=SEGMENT_ROWS, threads=1) as buffer:
        feeder = Feeder(world, buffer)
        feeder.add(400)
        path.with_name("ready").touch()
        until, own = time.monotonic() + seconds, Counts()
        readings = [Reading(world, buffer, seed + 1 + n) for n in range(THREADS)]

        def keep_reading(reading: Reading) -> None:
            while time.monotonic() < until:
                reading.read()

        threads = [threading.Thread(target=keep_reading, args=(reading,)) for reading in readings[1:]]
        threads.append(threading.Thread(target=readings[0].keep_loading, args=(until,)))
        for thread in threads:
            thread.start()
        while time.monotonic() < until:
            try:
                _write_some(buffer, feeder, rng)
                own.of["writes"] += 1
            except Exception:  # noqa: BLE001  every exception is counted
                own.take_error("writing")
        for thread in threads:
            thread.join()
        own.rows = 0
        own.of["steps added"] = buffer.stats()["added"]
        if error := buffer.stats()["seal_error"]:
            own.errors += 1
            own.notes.append(f"sealing: {error}")
    return [own, *(reading.counts for reading in readings)]


def _write_some(buffer: db.ReplayBuffer, feeder: Feeder, rng: np.random.Generator) -> None:
    what = rng.random()
    if what < 0.5:
        feeder.add(int(rng.integers(1, 40)))
    elif what < 0.85:
        feeder.extend(int(rng.integers(ENVS)), int(rng.integers(1, 120)))
    elif what < 0.97:
        steps = rng.permutation(steps_of(buffer))[:100]
        buffer.columns.write(WRITTEN, steps, written(WRITTEN, steps))
    else:
        buffer.flush(recompress=True)


def main(scale: float = 1.0, *, seed: int = 0) -> Row:
    """Read and write for ten minutes, times `scale`."""
    seconds, told, wrong = 600 * scale, list[Counts](), list[str]()
    context = multiprocessing.get_context("spawn")
    with scratch() as name, ProcessPoolExecutor(1 + READERS, mp_context=context) as pool:
        path = name / "store"
        processes: list[Future[list[Counts]]] = [pool.submit(write, path, seed * 100, seconds)]
        while not path.with_name("ready").exists() and not processes[0].done():
            time.sleep(0.01)
        processes += [pool.submit(read, path, seed * 100 + 50 + n, seconds) for n in range(READERS)]
        for process in processes:
            try:
                told += process.result()
            except Exception as error:  # noqa: BLE001  such as that one died
                wrong.append(repr(error))
    died = len(wrong)
    total = {what: sum(getattr(counts, what) for counts in told) for what in ("batches", "rows", "wrong", "errors", "evicted")}
    of = sum((counts.of for counts in told), collections.Counter[str]())
    notes = [
        f"{total['rows']:,} rows compared, {total['wrong']:,} wrong; {total['errors']:,} errors; "
        f"{total['evicted']:,} calls told that what they named was evicted by then",
        ", ".join(f"{what} {n:,}" for what, n in of.most_common()),
    ]
    wrong += [note for counts in told for note in counts.notes]
    return Row(
        "readers beside a writer: batches", total["batches"], total["wrong"] + total["errors"] + died, [*notes, *wrong[:SHOWN]]
    )
