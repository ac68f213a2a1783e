"""Threads that read a buffer, each in its way, beside one that changes it.

Python switches from thread to thread a thousand times as often as it does by default. Every value of a row follows from the row's
number, so that a batch tells by itself whether all of it is of the same rows; and a step's name stands for one number, whoever
reads it. `soak.schedules` varies where threads wait, by seeds that can be had again; this one, anything, and nothing can.
"""

from __future__ import annotations

import itertools
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import diskbuffer as db
from diskbuffer.errors import ClosedError, EmptyBufferError, InputError
from diskbuffer.samplers.draws import NSteps
from diskbuffer.schema.nested import flatten
from soak import adapter_threads
from soak.adapter_threads import AdapterWorld, observations
from soak.table import Row, seeded

Array = npt.NDArray[Any]
ENVS = 2
MOST = 10**6  # numbers of rows are below it
NAMES = ("flat", "packed", "stacks", *adapter_threads.KINDS)
ROUND = 5.0  # seconds until a buffer is closed, and the next is made
GONE = (EmptyBufferError, InputError)  # what was asked for, by then


class Kind:
    """How a row's observation follows from its number: flat, or in chunks, or as stacks of frames."""

    def __init__(self, name: str) -> None:
        self.name, self.stack = name, 3 if name == "stacks" else 1
        self.column = db.Column((4,), "float64") if name == "flat" else db.Column((40, 40), "uint8")

    def obs(self, numbers: Array) -> Array:
        """Return the observations of rows, by their numbers."""
        if self.name == "flat":
            return observations(numbers)
        digits = numbers[..., None] // 200 ** np.arange(4) % 200
        return np.tile(digits, 400).reshape(*numbers.shape, 40, 40).astype(np.uint8)

    def check(self, batch: dict[str, Any], named: dict[int, int]) -> int:
        """Compare all that a batch has with the numbers in its actions; return how many rows there are."""
        found = {path: value.numpy() for path, value in flatten(batch).items() if hasattr(value, "numpy")}
        steps, number = found["steps"].reshape(-1), found["action"].reshape(-1)
        if len(steps) == 0:
            return 0
        kept = steps >= 0
        wanted = {"obs": self.obs(number), "next_obs": self.obs(number + 1), "reward": (number % 1000).astype(np.float32)}
        for path, values in wanted.items():
            given = found[path][..., -1, :, :] if self.stack > 1 and path != "reward" else found[path]
            other = (given.reshape(values.shape) != values).reshape(len(values), -1).any(axis=1) & kept
            if other.any():
                shown = given.reshape(len(values), -1)[other][:3, :4]
                raise AssertionError(f"{path} of {number[other][:3].tolist()}: {shown.tolist()}")
        for path, sign in (("up", 1), ("down", -1)):
            if path in found:
                value = found[path].reshape(-1)[kept] * sign
                if not ((value == 0) | ((value > 0) & ((value - number[kept]) % MOST == 0))).all():
                    raise AssertionError(f"{path} of {number[:3].tolist()}: {found[path].reshape(-1)[:3].tolist()}")
        for step, of in zip(steps[kept].tolist(), number[kept].tolist(), strict=True):
            if named.setdefault(step, of) != of:
                raise AssertionError(f"step {step} was number {named[step]}, and is {of}")
        return int(kept.sum())


class World:
    """A buffer, and what threads do with it."""

    READERS = 4

    def __init__(self, kind: Kind, path: Path, seed: int) -> None:
        self.kind, self.name, self.path, self.seed = kind, kind.name, path, seed
        self.buffer = db.ReplayBuffer(
            path,
            512,
            columns={"obs": kind.column, "action": db.Column((), "int64")},
            n_envs=ENVS,
            autoreset="next_step",
            frame_stack=kind.stack,
            segment_rows=32,
            seed=seed,
            threads=2,
            flush_every=0.02,
        )
        self.named: dict[int, int] = {}  # steps' names, and their numbers
        self.numbers, self.generation = [env * MOST // ENVS for env in range(ENVS)], 0  # of the next rows
        self.done = Counter[str]()

    # Changing it

    def begin(self, rng: random.Random) -> None:
        """Have something in it."""
        self._extend(rng)

    def change(self, rng: random.Random) -> None:
        """Do something at random."""
        often = (self._extend, self._extend, self._add, self._write, self._remove, self._tag)
        act = rng.choice((self._clear, self._resize, self._flush, self._cut_off, self._map) if rng.random() < 0.1 else often)
        act(rng)
        self.done[act.__name__[1:]] += 1

    def _extend(self, rng: random.Random) -> None:
        env, n = rng.randrange(ENVS), rng.choice([7, 64, 300])
        steps = np.arange(self.numbers[env], self.numbers[env] + n)
        obs, following = self.kind.obs(steps), self.kind.obs(steps + 1)
        self.buffer.extend(obs=obs, next_obs=following, action=steps, reward=steps % 1000, env=env)
        self.numbers[env] += n + 1 if rng.random() < 0.5 else n  # the next episode's first, or the next step

    def _add(self, rng: random.Random) -> None:
        for _ in range(20):
            now = np.array(self.numbers)
            ends = np.array([rng.random() < 0.1 for _ in range(ENVS)])
            self.buffer.add(self.kind.obs(now), now, now % 1000, self.kind.obs(now + 1), ends, [False] * ENVS)
            self.numbers = [n + 1 + end for n, end in zip(self.numbers, ends.tolist(), strict=True)]

    def _write(self, _: random.Random) -> None:
        self.generation += 1
        steps = self.buffer.steps()
        number = self.buffer.at(steps, columns=["action"])["action"].numpy()
        for path, sign in (("up", 1), ("down", -1)):
            self.buffer.columns.write(path, steps, sign * (self.generation * MOST + number))

    def _remove(self, rng: random.Random) -> None:
        self.buffer.columns.remove(rng.choice(["up", "down"]))

    def _tag(self, rng: random.Random) -> None:
        self.buffer.episodes.of(self.buffer.steps()[:50]).set_tag(rng.choice(["good", "bad"]))

    def _clear(self, _: random.Random) -> None:
        self.buffer.clear()

    def _resize(self, rng: random.Random) -> None:
        self.buffer.resize(rng.choice([200, 512, 900]))

    def _flush(self, _: random.Random) -> None:
        self.buffer.flush()

    def _cut_off(self, _: random.Random) -> None:
        self.buffer.cut_off()

    def _map(self, _: random.Random) -> None:
        self.generation += 1
        self.buffer.columns.map(lambda batch: batch["action"] + self.generation * MOST, 64, "up", progress=False)

    # Reading it

    def readers(self) -> list[Callable[[], Iterator[int]]]:
        """Return generators that read something at each turn, and say how many rows were compared."""
        sampler = db.Uniform
        flat = [sampler(), sampler(newest=4), sampler(max_age=100), sampler(replace=False), sampler(n_step=3), db.Prioritized()]
        return [
            *(lambda sampler=sampler: self._samples(self.buffer, sampler) for sampler in [None, *flat, db.Slices(4)]),
            self._named_steps,
            self._recent,
            self._whole_episodes,
            self._loaded,
            self._another,
        ]

    def _samples(self, buffer: db.ReplayBuffer, sampler: Any) -> Iterator[int]:
        rng = random.Random(self.seed)
        while True:
            batch = buffer.sample(rng.choice([8, 64, 200]), sampler)
            is_n_step = sampler is not None and isinstance(sampler.form, NSteps)  # whose next_obs are of later steps
            rows = len(batch["steps"]) if is_n_step else self.kind.check(batch, self.named)
            if isinstance(sampler, db.Prioritized):
                sampler.update(batch["steps"], batch["reward"].abs() % 5 + 0.1)
            yield rows

    def _named_steps(self) -> Iterator[int]:
        rng = np.random.default_rng(self.seed)
        while True:
            steps = rng.permutation(self.buffer.steps())[:100]
            batch = self.buffer.at(steps)
            if batch["steps"].tolist() != steps.tolist():
                raise AssertionError("at: other steps than were asked for")
            yield self.kind.check(batch, self.named)

    def _recent(self) -> Iterator[int]:
        rng = np.random.default_rng(self.seed)
        while True:
            yield self.kind.check(
                self.buffer.at(self.buffer.steps(rng.integers(0, 40, 120), rng.integers(0, ENVS, 120))), self.named
            )

    def _whole_episodes(self) -> Iterator[int]:
        while True:
            number = self.buffer.episode(-1)["action"].numpy()
            if (np.diff(number) <= 0).any():
                raise AssertionError(f"an episode: {number[:5].tolist()}")
            yield len(number)

    def _loaded(self) -> Iterator[int]:
        """Take some batches from loaders that are left, closed, or dropped with batches under way."""
        rng = random.Random(self.seed)
        while True:
            sampler = rng.choice([None, db.Uniform(newest=4), db.Slices(4)])
            how: dict[str, Any] = {"prefetch": rng.randrange(6), "threads": rng.randint(1, 2)}
            if rng.random() < 0.3:
                how |= {"transform": lambda batch: batch, "transform_threads": rng.randrange(3)}
            batches: Any = iter(self.buffer.loader(32, sampler, **how))
            for batch in itertools.islice(batches, rng.randint(1, 20)):
                yield self.kind.check(batch, self.named)
            if rng.random() < 0.5:
                batches.close()

    def _another(self) -> Iterator[int]:
        with db.ReplayBuffer(self.path, mode="r", seed=self.seed, frame_stack=self.kind.stack) as buffer:
            reader = self._samples(buffer, db.Uniform())
            while True:
                buffer.refresh()
                yield next(reader)

    def close(self) -> None:
        """Close the buffer."""
        self.buffer.close()


class Threads:
    """Threads that read in a world and change it, and what they found."""

    def __init__(self, world: World | AdapterWorld, rng: random.Random) -> None:
        self._world, self.wrong, self.over = world, list[str](), threading.Event()
        makers = world.readers()
        world.begin(rng)
        self._all = [self._thread(self._reading(makers[n]), f"reader {n}") for n in rng.sample(range(len(makers)), world.READERS)]
        self._all.append(self._thread(lambda: world.change(rng), "changes"))

    def _thread(self, turn: Callable[[], None], name: str) -> threading.Thread:
        return threading.Thread(target=self._run, args=(turn, name), name=name)

    def _run(self, turn: Callable[[], None], name: str) -> None:
        """Take turns until it is over."""
        while not self.over.is_set():
            try:
                turn()
            except ClosedError:
                return
            except GONE:
                self._world.done["refused"] += 1
                time.sleep(0.001)
            except Exception as error:  # noqa: BLE001
                self.wrong.append(f"{self._world.name}, {name}: {type(error).__name__}: {error}"[:400])
                self.over.set()

    def _reading(self, make: Callable[[], Iterator[int]]) -> Callable[[], None]:
        """Return what reads once; after an error it begins anew."""
        reading = make()

        def turn() -> None:
            nonlocal reading
            try:
                self._world.done["rows"] += next(reading)
            except BaseException:
                reading = make()
                raise

        return turn

    def run(self, seconds: float) -> None:
        """Have all of them run for so long; at the end, close the buffer under them."""
        with switching(1e-6):
            for thread in self._all:
                thread.start()
            self.over.wait(seconds)
            self._world.close()
            self.over.set()
            for thread in self._all:
                thread.join()
        self._world.close()  # adapters' buffers open again where one is added to


@contextmanager
def switching(interval: float) -> Iterator[None]:
    """Have Python switch threads so often."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(interval)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def run(name: str, seed: int, seconds: float) -> tuple[str, dict[str, int]]:
    """Run a round with a kind of observation, or a library's buffer; return what was wrong, or nothing, and what was done."""
    with tempfile.TemporaryDirectory() as room:
        path = Path(room) / "store"
        world = AdapterWorld(name, path, seed) if name in adapter_threads.KINDS else World(Kind(name), path, seed)
        threads = Threads(world, random.Random(seed))
        threads.run(seconds)
        report = db.check(path, progress=False)
    damaged = [] if report.ok else [f"{name}: the store is damaged: {report.problems[:2]}"]
    return "; ".join(threads.wrong + damaged), dict(world.done)


def main(scale: float = 1.0, *, seed: int = 0) -> Row:
    """Run rounds of all kinds, by turns, for ten minutes, times `scale`."""
    names, numbers = itertools.cycle(NAMES), itertools.count(seed * 10_000)
    runs = ((name, number, min(ROUND, 600 * scale)) for name, number in zip(names, numbers, strict=False))
    title = "rounds of threads that read beside one that changes the buffer"
    return seeded(title, "soak.threads", runs, timeout=300, seconds=600 * scale)
