"""A learner beside `loader`: what a step takes, against what the cores allow, and beside the loaders of others.

    python -m bench.loader [--only atari ready] --json FILE

A learner of pure Python holds the interpreter's lock all the time, one of small operations of PyTorch takes it again and again:
only a loader that hardly needs the lock hides its work from them. All take turns in one process, with the interpreter's switch
interval as it is. On two cores nothing is faster than ``max(work, (work + CPU of a batch) / 2)``, of which the figures are
multiples: `work` is a step without batches, and the CPU that of `sample` in line. Nothing else may run beside this.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

import diskbuffer as db
from bench.frames import KINDS
from bench.measure import Part, Report, parser, ratio, run
from bench.peers.ours import filled
from bench.transitions import Array, Transitions

BATCH, SEQUENCES, LENGTH = 256, 64, 64
CORES = 2
TARGET = 1.1  # of what the cores allow
READY, READY_OTHERS = 60.0, 110.0  # microseconds of `next` for a batch that is done: of Uniform and one store, and of others
EACH = 40  # steps of a loop
PREFETCH = 3
MANY = 64  # batches ahead, half of which are taken one after the other
PRIORITIZED = db.Prioritized(seed=0)  # its priorities have one sampler
OPERATIONS = 100  # of PyTorch, in a step that is made of them
VECTOR = torch.full((64, 64), 0.01)
Loop = Callable[[], Iterator[Any]]


class Setting(NamedTuple):
    """Batches to be loaded: how they are made ahead, one at once, and what a learner does before each."""

    loop: Loop
    sample: Callable[[], Any]
    before: Callable[[], Any] = lambda: None


def python(seconds: float) -> Callable[[], object]:
    """Return work in pure Python, of about so many seconds."""

    def work(n: int) -> int:
        return sum(k * k % 7 for k in range(n))

    taken = []
    for _ in range(9):
        begin = time.perf_counter()
        work(20_000)
        taken.append(time.perf_counter() - begin)
    return partial(work, int(20_000 * seconds / min(taken)))


def operations() -> torch.Tensor:
    """Do many small operations of PyTorch."""
    value = VECTOR
    for _ in range(OPERATIONS):
        value = torch.tanh(value @ VECTOR)
    return value


LEARNERS: dict[str, Callable[[], Callable[[], object]]] = {
    "1 ms of Python": lambda: python(1e-3),
    "3 ms of Python": lambda: python(3e-3),
    "10 ms of Python": lambda: python(10e-3),
    f"{OPERATIONS} operations of PyTorch": lambda: operations,
}


def a_step(batches: Iterator[Any] | None, work: Callable[[], object], before: Callable[[], Any], steps: int) -> float:
    """Return the seconds of a step, of so many in a loop."""
    begin = time.perf_counter()
    for _ in range(steps):
        before()
        if batches is not None:
            next(batches)
        work()
    return (time.perf_counter() - begin) / steps


def cpu_of(sample: Callable[[], Any], calls: int) -> float:
    """Return the seconds of CPU, of all threads, that a batch takes in line."""
    begin = time.process_time()
    for _ in range(calls):
        sample()
    return (time.process_time() - begin) / calls


def beside_learners(report: Report, what: str, setting: Setting, others: dict[str, Loop] | None = None) -> None:
    """Time steps of all learners, with batches and without, by turns."""
    rounds, each = (2, 10) if report.quick else (9, EACH)
    for learner, made in LEARNERS.items():
        work = made()
        steps: dict[str, list[float]] = {who: [] for who in ("ours", *(others or {}))}
        allowed: list[float] = []
        for _ in range(rounds):
            for who, loop in {"ours": setting.loop, **(others or {})}.items():
                batches = loop()
                a_step(batches, work, setting.before, each // 4)
                steps[who].append(a_step(batches, work, setting.before, each))
                getattr(batches, "close", lambda: None)()
                del batches
            alone = a_step(None, work, setting.before, each)
            allowed.append(max(alone, (alone + cpu_of(setting.sample, each // 2)) / CORES))
        report.times(f"{what}, {learner}: what the cores allow", allowed)
        for who, seconds in steps.items():
            report.times(f"{what}, {learner}: {who}", seconds)
        report.row(f"{what}, {learner}: a step, of what the cores allow", ratio(steps["ours"], allowed), "x", at_most=TARGET)
        for who in others or {}:
            value = ratio(steps[who], steps["ours"])
            report.row(f"{what}, {learner}: times as fast as {who}", value, "x", at_least=1.0)


def of(
    buffer: db.ReplayBuffer, size: int, sampler: Callable[[int], db.Sampler | None] = lambda seed: None, prefetch: int = PREFETCH
) -> Setting:
    """Return batches of a buffer."""
    in_line = sampler(1)
    return Setting(lambda: iter(buffer.loader(size, sampler(0), prefetch=prefetch)), lambda: buffer.sample(size, in_line))


class Mapped(torch.utils.data.Dataset[Any]):
    """Stacks out of a memory map of frames, for PyTorch's `DataLoader`, a batch at a time."""

    def __init__(self, path: Path, stack: int) -> None:
        self._path, self._stack = path, stack
        self._frames: Array | None = None

    def __getitems__(self, steps: list[int]) -> Any:
        """Return a batch."""
        if self._frames is None:
            self._frames = np.load(self._path, mmap_mode="r")
        window = np.asarray(steps)[:, None] + np.arange(1 - self._stack, 2)
        return torch.from_numpy(self._frames[window])


def torchrl(transitions: Transitions, directory: Path) -> Loop:
    """Return TorchRL's loop over a memory map."""
    from torchrl.data import LazyMemmapStorage, ReplayBuffer

    from bench.peers.peer import PART
    from bench.peers.torchrl import steps_of

    n = transitions.n - transitions.first
    storage = LazyMemmapStorage(n, scratch_dir=str(directory / "memmap"))
    filling = ReplayBuffer(storage=storage, batch_size=PART)
    for part in transitions.parts(PART):
        filling.extend(steps_of(part))

    def loop() -> Iterator[Any]:
        buffer = ReplayBuffer(storage=storage, batch_size=BATCH, prefetch=PREFETCH)
        try:
            while True:
                yield buffer.sample()
        finally:
            buffer.shutdown()

    return loop


def data_loader(transitions: Transitions, path: Path) -> Loop:
    """Return PyTorch's loop, with two workers."""
    sampler = torch.utils.data.RandomSampler(range(transitions.first, transitions.n - 1), replacement=True, num_samples=10**9)
    data = Mapped(path, transitions.stack)
    how: dict[str, Any] = {"num_workers": CORES, "prefetch_factor": 2, "multiprocessing_context": "fork"}
    how["collate_fn"] = lambda batch: batch
    return lambda: iter(torch.utils.data.DataLoader(data, BATCH, sampler=sampler, **how))


def atari(report: Report, directory: Path) -> None:
    """Load 256 Atari stacks, beside the others' loaders."""
    kind = KINDS["ale"]
    transitions = kind.transitions(directory, report.seed, 2_000 if report.quick else 12_000)
    with filled(transitions, directory, report.seed) as buffer:
        theirs = {
            "TorchRL's prefetch=3": torchrl(transitions, directory),
            "a DataLoader with 2 workers": data_loader(transitions, directory / "frames.npy"),
        }
        beside_learners(report, f"{BATCH} Atari stacks", of(buffer, BATCH), theirs)


def one_store(name: str, kind: str, size: int, sampler: Callable[[int], db.Sampler | None]) -> Part:
    """Return a part: batches of a sampler, of one store."""

    def measure(report: Report, directory: Path) -> None:
        transitions = KINDS[kind].transitions(directory, report.seed, 2_000 if report.quick else 12_000)
        with filled(transitions, directory, report.seed) as buffer:
            beside_learners(report, name, of(buffer, size, sampler))

    return measure


def two_stores(directory: Path, transitions: Transitions, seed: int) -> db.ReplayBuffer:
    """Return a reader of two writers' stores, of half of the steps each."""
    half, frames = transitions.n // 2, transitions.frames
    columns = {"obs": db.Column(frames.shape[1:], frames.dtype.name), "action": db.Column((), "int64")}
    for n in range(2):
        with db.ReplayBuffer(directory / "two", half, columns=columns, frame_stack=transitions.stack, writer=str(n)) as buffer:
            part = slice(n * half, n * half + half)
            buffer.extend(
                obs=frames[n * half : n * half + half + 1], action=transitions.action[part], reward=transitions.reward[part]
            )
            buffer.flush(recompress=True)
    return db.ReplayBuffer(directory / "two", mode="r", seed=seed)


def two_writers(report: Report, directory: Path) -> None:
    """Load 256 Atari stacks of two writers' stores."""
    transitions = KINDS["ale"].transitions(directory, report.seed, 2_000 if report.quick else 12_000)
    with two_stores(directory, transitions, report.seed) as buffer:
        beside_learners(report, f"{BATCH} Atari stacks of two writers", of(buffer, BATCH))


def ring(report: Report, directory: Path) -> None:
    """Load 256 Atari stacks of a ring at its capacity, to which each step adds one."""
    transitions = KINDS["ale"].transitions(directory, report.seed, 2_000 if report.quick else 12_000)
    with filled(transitions, directory, report.seed) as buffer:
        frames, at = transitions.frames, 0

        def add() -> None:
            nonlocal at
            at = (at + 1) % (len(frames) - transitions.stack - 1)
            buffer.add(frames[at], 0, 0.0, frames[at + 1], False, False)

        for _ in range(buffer.stats()["segments"] and 200):
            add()
        beside_learners(report, f"{BATCH} Atari stacks of a ring that evicts", of(buffer, BATCH)._replace(before=add))


def ready(report: Report, directory: Path) -> None:
    """Time `next` for batches that are done: one after the other, and each after a rest in which the caches were others'."""
    transitions = KINDS["ale"].transitions(directory, report.seed, 2_000 if report.quick else 12_000)
    with contextlib.ExitStack() as stack:
        buffer = stack.enter_context(filled(transitions, directory, report.seed))
        both = stack.enter_context(two_stores(directory, transitions, report.seed))
        kinds: dict[str, tuple[db.ReplayBuffer, int, Callable[[int], db.Sampler | None]]] = {
            "Uniform": (buffer, BATCH, lambda seed: None),
            "64 sequences of 65": (buffer, SEQUENCES, partial(db.Slices, LENGTH)),
            "n-step 3": (buffer, BATCH, lambda seed: db.Uniform(seed, n_step=3)),
            "two writers": (both, BATCH, lambda seed: None),
            "Prioritized": (buffer, BATCH, lambda seed: PRIORITIZED),
        }
        rounds = 20 if report.quick else 200
        for what, kind in kinds.items():
            target = READY if what == "Uniform" else READY_OTHERS
            for how, prefetch, seconds in (("one after the other", MANY, 1.0), ("after 20 ms", PREFETCH, 0.02)):
                batches, taken = of(*kind, prefetch).loop(), list[float]()
                next(batches)
                while len(taken) < rounds:
                    time.sleep(seconds)
                    for _ in range(prefetch // 2):
                        begin = time.perf_counter()
                        next(batches)
                        taken.append(time.perf_counter() - begin)
                batches.close()  # type: ignore[attr-defined]
                name = f"next() of a batch that is done, {how}: {what}"
                report.times(name, taken, 1e6, "us")
                report.row(name, float(np.median(taken)) * 1e6, "us", at_most=target)


PARTS: dict[str, Part] = {
    "atari": atari,
    "vectors": one_store(f"{BATCH} vectors of 376", "vectors of 376", BATCH, lambda seed: None),
    "sequences": one_store(f"{SEQUENCES} sequences of {LENGTH + 1}", "ale", SEQUENCES, partial(db.Slices, LENGTH)),
    "n-step": one_store(f"{BATCH} Atari stacks, n-step 3", "ale", BATCH, lambda seed: db.Uniform(seed, n_step=3)),
    "writers": two_writers,
    "ring": ring,
    "ready": ready,
}

if __name__ == "__main__":
    torch.set_num_threads(1)
    run("loader", PARTS, parser(__doc__))
