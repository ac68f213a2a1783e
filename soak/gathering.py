"""Many actors and a learner: actors are killed and come back at random, and the learner draws from all of them meanwhile.

    python -m soak.gathering --minutes 10 --seed 0 [--count 8] [--directory DIR]

`count` processes write a store each under one directory, and share a capacity. One after the other gets SIGKILL at a random
instant, and comes back at once, or a while later. A learner refreshes, samples steps and sequences, and takes whole passes. Every
row of every batch is compared with what its name says that it holds; every step that an actor had acknowledged must be seen, if
it was not evicted; and no call of the learner may take long.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import diskbuffer as db
from diskbuffer.gathering.description import STREAMS, read_description
from diskbuffer.index.fields import HEAD
from diskbuffer.store.system.files import Files
from soak.table import Row
from soak.workers import scratch_directory
from tests.support.experience import Array, Experience, Feeder

MODULE = "soak.gathering"
ACTORS, CAPACITY, SEGMENT_ROWS = 8, 4000, 64
LONGEST = 1.0  # seconds that a call of the learner may take
SEEN_AFTER = 10.0  # seconds in which what a kill left must be seen, though somebody recovers it
NOTES = 12
_HERE = Path(__file__).resolve().parent.parent


class Shifted(Experience):
    """Experience of one actor, whose first stream is another one among all."""

    def __init__(self, n_envs: int, shift: int) -> None:
        super().__init__(n_envs)
        self._shift = shift

    def rows(self, stream: int) -> int:
        """Return how many rows an episode has."""
        return super().rows(stream + self._shift)

    def frames(self, stream: int, positions: Array) -> Array:
        """Return its frames."""
        return super().frames(stream + self._shift, positions)

    def actions(self, stream: int, positions: Array) -> Array:
        """Return its actions."""
        return super().actions(stream + self._shift, positions)

    def rewards(self, stream: int, positions: Array) -> Array:
        """Return its rewards."""
        return super().rewards(stream + self._shift, positions)


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
            root, CAPACITY, columns=columns, n_envs=envs, segment_rows=SEGMENT_ROWS, autoreset="disabled", writer=name, threads=1
        ) as buffer:
            entry = read_description(Files(root)).find(name)
            assert entry is not None
            feeder = Feeder(Shifted(envs, entry.first_stream), buffer)
            until = time.monotonic() + rng.uniform(0.5, 20)
            while time.monotonic() < until:
                if rng.random() < 0.6:
                    feeder.add(int(rng.integers(1, 30)))
                else:
                    feeder.extend(int(rng.integers(envs)), int(rng.integers(1, 100)))
                acknowledged[:] = feeder.heads
                time.sleep(rng.uniform(0, 0.02))


def nurse(root: Path) -> None:
    """Fork an actor for every line of standard input, and say which process it is: all is compiled by then."""
    with db.ReplayBuffer(root.parent / "warm", columns=Experience().columns) as buffer:
        Feeder(Experience(), buffer).add(50)
        Feeder(Experience(), buffer).extend(0, 50)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    print("ready", flush=True)
    for line in sys.stdin:
        number, seed = map(int, line.split())
        child = os.fork()
        if child == 0:
            try:
                act(root, number, seed)
            except BaseException as error:  # noqa: BLE001  it is told, and the campaign counts it
                print(f"actor {number}: {error!r}", file=sys.stderr, flush=True)
                (root.parent / f"error-{number}-{os.getpid()}").write_text(repr(error))
            finally:
                os._exit(1)
        print(child, flush=True)


class Actors:
    """The actors' processes."""

    def __init__(self, root: Path, count: int, rng: np.random.Generator) -> None:
        self._rng, self._count = rng, count
        self.acknowledged = [np.memmap(root.parent / f"actor-{n}", np.int64, "w+", shape=(envs_of(n),)) for n in range(count)]
        for heads in self.acknowledged:
            heads[:] = -1
        paths = os.pathsep.join([str(_HERE), *filter(None, [os.environ.get("PYTHONPATH")])])
        self._nurse = subprocess.Popen(
            [sys.executable, "-m", MODULE, "--nurse", str(root)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": paths},
        )
        assert self._line() == "ready"
        self._pids: dict[int, int] = {}
        self._due = dict.fromkeys(range(count), 0.0)  # when those that are not there come
        self.kills = 0

    def _line(self) -> str:
        assert self._nurse.stdout is not None
        return self._nurse.stdout.readline().strip()

    def go_on(self) -> None:
        """Kill one now and then, and have those come back whose time it is."""
        for number in [number for number, due in self._due.items() if due <= time.monotonic()]:
            del self._due[number]
            assert self._nurse.stdin is not None
            self._nurse.stdin.write(f"{number} {self._rng.integers(2**31)}\n")
            self._nurse.stdin.flush()
            self._pids[number] = int(self._line())
        if self._pids and self._rng.random() < 0.02:
            self.kill(int(self._rng.choice(list(self._pids))))

    def kill(self, number: int) -> None:
        """Kill one, which comes back at once, or a while later."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pids.pop(number), signal.SIGKILL)
            self.kills += 1
        self._due[number] = time.monotonic() + (0 if self._rng.random() < 0.4 else float(self._rng.uniform(0, 8)))

    def end(self) -> None:
        """Kill all."""
        for number in list(self._pids):
            self.kill(number)
        assert self._nurse.stdin is not None
        assert self._nurse.stdout is not None
        self._nurse.stdin.close()
        self._nurse.wait(30)
        self._nurse.stdout.close()


class Learner:
    """Reads what the actors write, compares it, and times its calls."""

    def __init__(self, root: Path, seed: int) -> None:
        self._root, self._rng, self._world = root, np.random.default_rng(seed), Experience()
        self.buffer = db.ReplayBuffer(root, mode="r", seed=seed, threads=1)
        self._slices = db.Slices(7, seed=seed)
        self._missing: dict[tuple[int, int], float] = {}
        self.batches = self.rows = self.wrong = self.lost = self.most = 0
        self.longest, self.notes = 0.0, list[str]()

    def look(self, acknowledged: Sequence[Array]) -> None:
        """Refresh; every step that was acknowledged before must be there."""
        before = [heads.copy() for heads in acknowledged]
        self._timed("refresh", self.buffer.refresh)
        self.most = max(self.most, len(self.buffer))
        for number, stream, head in self.unseen(before):
            begun = self._missing.setdefault((number, stream), time.monotonic())
            if time.monotonic() - begun > SEEN_AFTER:
                self.lost += 1
                self.notes.append(f"actor {number}: row {head} of stream {stream} is not seen")
                del self._missing[number, stream]

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
        """Make one call that is drawn, and compare what it returns."""
        if not len(self.buffer):
            return
        what = self._rng.random()
        try:
            if what < 0.7:
                self._take(self._timed("sample", lambda: self.buffer.sample(64)))
            elif what < 0.97:
                batch = self._timed("sequences", lambda: self.buffer.sample(8, self._slices))
                n, length = batch["reward"].shape
                self._take({key: value.flatten(0, 1) for key, value in batch.items() if value.shape[:2] == (n, length)})
            else:
                steps = [self._take(batch) for batch in self.buffer.batches(256, threads=1)]
                if len(np.unique(np.concatenate(steps))) < sum(map(len, steps)):
                    raise AssertionError("a pass gave a step twice")
        except db.errors.EmptyBufferError:  # no episode has seven steps yet
            return
        except Exception as error:  # noqa: BLE001  every exception is counted
            self.wrong += 1
            self.notes.append(repr(error))

    def _timed(self, what: str, call: Any) -> Any:
        begun = time.monotonic()
        found = call()
        took = time.monotonic() - begun
        if took > self.longest:
            self.longest = took
            if took > LONGEST:
                self.notes.append(f"{what} took {took:.2f} s")
        return found

    def _take(self, batch: dict[str, Any]) -> Array:
        steps: Array = batch["steps"].numpy()
        self.batches, self.rows = self.batches + 1, self.rows + len(steps)
        bad = np.zeros(len(steps), np.bool_)
        for stream in np.unique(steps % STREAMS).tolist():
            mine = steps % STREAMS == stream
            at, world = steps[mine] // STREAMS, self._world
            for name, expected in (
                ("obs", world.frames(stream, at)),
                ("next_obs", world.frames(stream, at + 1)),
                ("action", world.actions(stream, at)),
                ("reward", world.rewards(stream, at)),
                ("terminated", world.ends(stream, at)[0]),
            ):
                differ = batch[name].numpy()[mine] != expected
                bad[mine] |= differ.reshape(len(at), -1).any(axis=1)
        self.wrong += int(bad.sum())
        return steps


def main(scale: float = 1.0, *, seed: int = 0, minutes: float = 10.0, count: int = ACTORS, directory: str | None = None) -> Row:
    """Have actors killed, and a learner beside them, for ten minutes, times `scale`."""
    rng = np.random.default_rng(seed)
    with scratch_directory(directory) as name:
        root = Path(name) / "all"
        with db.ReplayBuffer(
            root, CAPACITY, columns=Experience().columns, segment_rows=SEGMENT_ROWS, autoreset="disabled", writer="actor-0"
        ):
            pass
        actors = Actors(root, count, rng)
        try:
            learner, until, due = Learner(root, seed), time.monotonic() + minutes * 60 * scale, 0.0
            while time.monotonic() < until:
                actors.go_on()
                if time.monotonic() > due:
                    learner.look(actors.acknowledged)
                    due = time.monotonic() + 0.1
                learner.read()
        finally:
            actors.end()
        learner.buffer.refresh()
        lost = learner.lost + len(learner.unseen(actors.acknowledged))
        errors = [file.read_text() for file in sorted(root.parent.glob("error-*"))]
        added = sum(int(heads.sum()) + len(heads) for heads in actors.acknowledged)
        learner.buffer.close()
    notes = [
        f"{actors.kills} kills, {added:,} rows acknowledged, {learner.rows:,} read, {learner.wrong} wrong, {lost} lost; "
        f"{learner.most:,} steps at most of a capacity of {CAPACITY:,}; longest wait {learner.longest:.2f} s",
        *[f"seed {seed}: {note}" for note in [*learner.notes, *errors][:NOTES]],
    ]
    broken = learner.wrong + lost + len(errors) + (learner.longest > LONGEST)
    return Row("actors killed beside a learner: batches", learner.batches, broken, notes)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=ACTORS, help="actors")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--directory", help="where the stores are; in memory, if there is such a place")
    parser.add_argument("--nurse", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.nurse:
        nurse(given.nurse)
    else:
        print(main(seed=given.seed, minutes=given.minutes, count=given.count, directory=given.directory))
