"""Readers in other processes beside a writer that evicts all the time: no torn row, no wrong row, no error.

    python -m soak.readers --minutes 10 --seed 0 [--count 4] [--directory DIR]

`count` processes have the store open with ``mode="r"``, refresh, sample, read the oldest and the newest steps, sequences, whole
passes and episodes, and open it anew now and then; two threads sample in the writer's own process, one of them from a loader that
stays. Every row of every batch is compared with what its number says that it holds. The writer adds, extends, seals, writes
columns, and keeps some hundred steps.
"""

from __future__ import annotations

import argparse
import collections
import itertools
import json
import os
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import diskbuffer as db
from soak.table import Row
from soak.workers import scratch_directory
from tests.support.experience import Experience, Feeder, steps_of
from tests.support.writers import WRITTEN, written

MODULE = "soak.readers"
READERS, THREADS = 4, 2
ENVS, CAPACITY, SEGMENT_ROWS = 2, 600, 16
NOTES = 12
_HERE = Path(__file__).resolve().parent.parent


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
        if wrong and len(self.notes) < NOTES:
            self.notes.append(f"{what}: {wrong} wrong rows of {rows}")

    def take_error(self, what: str) -> None:
        """Count the exception that is being handled."""
        self.errors += 1
        if len(self.notes) < NOTES:
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


def read(path: Path, seed: int, seconds: float) -> Counts:
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
    return counts


def write(path: Path, seed: int, seconds: float) -> list[Counts]:
    """Be the writer, with two threads that sample."""
    world, rng = Experience(ENVS), np.random.default_rng(seed)
    with world.open(path, CAPACITY, segment_rows=SEGMENT_ROWS, threads=1) as buffer:
        feeder = Feeder(world, buffer)
        feeder.add(400)
        print("ready", flush=True)
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


def _start(role: str, path: Path, seed: int, seconds: float) -> subprocess.Popen[str]:
    paths = os.pathsep.join([str(_HERE), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, "-m", MODULE, "--role", role, str(path), "--seed", str(seed), "--seconds", str(seconds)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": paths})


def main(
    scale: float = 1.0, *, seed: int = 0, minutes: float = 10.0, readers: int = READERS, directory: str | None = None
) -> Row:
    """Read and write for ten minutes, times `scale`."""
    seconds = minutes * 60 * scale
    with scratch_directory(directory) as name:
        path = Path(name) / "store"
        writer = _start("writer", path, seed * 100, seconds)
        assert writer.stdout is not None
        if writer.stdout.readline() != "ready\n":
            raise RuntimeError("the writer has failed; its error is above")
        processes = [writer, *(_start("reader", path, seed * 100 + 50 + n, seconds) for n in range(readers))]
        answers = [process.communicate()[0] for process in processes]
    return _row(seed, [json.loads(answer) if answer else [] for answer in answers], [p.returncode for p in processes])


def _row(seed: int, answers: list[list[dict[str, Any]]], codes: list[int]) -> Row:
    died = [f"seed {seed}: process {n} ended with {code}" for n, code in enumerate(codes) if code]
    told = [counts for answer in answers for counts in answer]
    total = {what: sum(counts[what] for counts in told) for what in ("batches", "rows", "wrong", "errors", "evicted")}
    of: collections.Counter[str] = collections.Counter()
    for counts in told:
        of.update(counts["of"])
    notes = [
        f"{total['rows']:,} rows compared, {total['wrong']:,} wrong; {total['errors']:,} errors; "
        f"{total['evicted']:,} calls told that what they named was evicted by then",
        ", ".join(f"{what} {n:,}" for what, n in of.most_common()),
    ]
    wrong = [f"seed {seed}: {note}" for counts in told for note in counts["notes"]][:NOTES]
    broken = total["wrong"] + total["errors"] + len(died)
    return Row("readers beside a writer: batches", total["batches"], broken, notes + died + wrong)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=READERS, help="readers in processes of their own")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--directory", help="where the store is; in memory, if there is such a place")
    parser.add_argument("--role", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.role:
        role, place = given.role
        done = (write if role == "writer" else read)(Path(place), given.seed, given.seconds)
        print(json.dumps([vars(counts) for counts in (done if isinstance(done, list) else [done])]))
    else:
        print(main(seed=given.seed, minutes=given.minutes, readers=given.count, directory=given.directory))
