"""Many actors and a learner: actors are killed and come back at random, and the learner draws from all of them meanwhile.

Eight processes write a store each under one directory, each with a capacity of its own. One after the other gets SIGKILL at a
random instant, and comes back at once, or a while later. A learner refreshes, samples steps and sequences, and takes whole
passes. Every row of every batch is compared with what its name says that it holds; every step that an actor had acknowledged
must be seen in the end, if it was not evicted. How long calls took, and how long what was acknowledged was not seen, is told.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np

import diskbuffer as db
from diskbuffer.index.fields import HEAD
from diskbuffer.store.system.files import Files
from diskbuffer.writers.description import STREAMS, read_description
from soak.crew import Crew, errors_beside
from soak.readers import Counts, Reading
from soak.table import SHOWN, Row
from soak.workers import Job, scratch
from tests.support.experience import Array, Experience, Feeder

ACTORS, CAPACITY, SEGMENT_ROWS = 8, 500, 64


def envs_of(number: int) -> int:
    """Return how many environments an actor has."""
    return 1 + number % 2


def act(root: Path, number: int, seed: int) -> None:
    """Be an actor, until somebody kills it."""
    rng, envs, name = np.random.default_rng(seed), envs_of(number), f"actor-{number}"
    acknowledged = np.memmap(root.parent / name, np.int64, "r+", shape=(envs,))
    columns = Experience().columns
    while True:
        with db.ReplayBuffer(
            root,
            CAPACITY,
            columns=columns,
            n_envs=envs,
            segment_rows=SEGMENT_ROWS,
            autoreset="disabled",
            writer=name,
            threads=1,
            flush_every=0.1,
        ) as buffer:
            entry = read_description(Files(root)).find(name)
            assert entry is not None
            feeder = Feeder(Experience(envs, first=entry.first_stream), buffer)
            until = time.monotonic() + rng.uniform(0.5, 20)
            while time.monotonic() < until:
                if rng.random() < 0.6:
                    feeder.add(int(rng.integers(1, 30)))
                else:
                    feeder.extend(int(rng.integers(envs)), int(rng.integers(1, 100)))
                acknowledged[:] = feeder.heads
                time.sleep(rng.uniform(0, 0.02))


def be(job: Job) -> None:
    """Be an actor."""
    act(Path(job["root"]), job["number"], job["seed"])


class Learner(Reading):
    """Reads what the actors write, compares it, and times its calls."""

    CALLS: ClassVar[dict[str, float]] = {"sample": 0.7, "sequences": 0.27, "a_pass": 0.03}

    def __init__(self, root: Path, seed: int) -> None:
        super().__init__(Experience(STREAMS), db.ReplayBuffer(root, mode="r", seed=seed, threads=1), seed, Counts())
        self._root, self.most = root, 0
        self._missing: dict[tuple[int, int], float] = {}
        self.longest, self.latest = 0.0, 0.0

    def follow(self, acknowledged: Sequence[Array]) -> None:
        """Refresh; note how long steps that were acknowledged before are not seen, as where a kill left something to recover."""
        before = [heads.copy() for heads in acknowledged]
        self._timed(self.buffer.refresh)
        self.most = max(self.most, len(self.buffer))
        for number, stream, _ in self.unseen(before):
            since = self._missing.setdefault((number, stream), time.monotonic())
            self.latest = max(self.latest, time.monotonic() - since)

    def unseen(self, acknowledged: Sequence[Array]) -> list[tuple[int, int, int]]:
        """Return which rows are not there, and forget about those that are."""
        description, heads, found = read_description(Files(self._root)), self.buffer._reader.index.table[:, HEAD], []
        for number, known in enumerate(acknowledged):
            entry = description.find(f"actor-{number}")
            for stream, head in enumerate(known.tolist() if entry is not None else []):
                if entry is not None and heads[entry.first_stream + stream] < head:
                    found.append((number, stream, head))
                else:
                    self._missing.pop((number, stream), None)
        return found

    def read(self) -> None:
        """Make one call that is drawn, where there is something."""
        if len(self.buffer):
            super().read()

    def sample(self) -> None:
        """Draw single steps."""
        self._timed(lambda: self._take("sample", self.buffer.sample(64)))

    def sequences(self) -> None:
        """Draw sequences, once an episode is as long."""
        with contextlib.suppress(db.errors.EmptyBufferError):
            self._timed(super().sequences)

    def _timed(self, call: Callable[[], object]) -> None:
        begun = time.monotonic()
        try:
            call()
        except db.errors.EvictedError:  # what it knows of was evicted before it was read: it is to refresh, and draw again
            self.counts.of["calls that were too slow"] += 1
        self.longest = max(self.longest, time.monotonic() - begun)


def main(scale: float = 1.0, *, seed: int = 0) -> Row:
    """Have actors killed, and a learner beside them, for ten minutes, times `scale`."""
    rng, columns = np.random.default_rng(seed), Experience().columns
    with scratch() as name:
        root = name / "all"
        db.ReplayBuffer(
            root, CAPACITY, columns=columns, segment_rows=SEGMENT_ROWS, autoreset="disabled", writer="actor-0"
        ).close()
        acknowledged = [np.memmap(root.parent / f"actor-{n}", np.int64, "w+", shape=(envs_of(n),)) for n in range(ACTORS)]
        for heads in acknowledged:
            heads[:] = -1
        actors = Crew("soak.multi_writer", [{"root": str(root), "number": n} for n in range(ACTORS)], rng, 8.0)
        try:
            learner, until, due = Learner(root, seed), math.inf, 0.0
            while time.monotonic() < until:
                if until == math.inf and len(learner.buffer):  # before that nobody is killed: they might never come so far
                    until = time.monotonic() + 600 * scale
                elif until == math.inf and errors_beside(root):
                    break
                actors.go_on(0.02 if until < math.inf else 0.0)
                if time.monotonic() > due:
                    learner.follow(acknowledged)
                    due = time.monotonic() + 0.1
                learner.read()
        finally:
            actors.end()
        learner.buffer.refresh()
        lost = [f"actor {n}: row {head} of stream {stream} is lost" for n, stream, head in learner.unseen(acknowledged)]
        errors = errors_beside(root)
        added = sum(int(heads.sum()) + len(heads) for heads in acknowledged)
        learner.buffer.close()
    of = learner.counts.of
    wrong = of["wrong rows"] + of["errors"]
    notes = [
        f"{actors.kills} kills, {added:,} rows acknowledged, {of['rows']:,} read, {wrong} wrong, {len(lost)} lost; "
        f"{of['calls that were too slow']} calls too slow for what was evicted; "
        f"{learner.most:,} steps at most, with a capacity of {CAPACITY:,} each; longest wait {learner.longest:.2f} s, and "
        f"{learner.latest:.1f} s until what was acknowledged was seen",
        *[*learner.counts.notes, *lost, *errors][:SHOWN],
    ]
    broken = wrong + len(lost) + len(errors)
    return Row("actors killed beside a learner: batches", of["batches"], broken, notes)
