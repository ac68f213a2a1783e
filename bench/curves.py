"""What a batch costs as the store, the sequences, the frames, or the threads and environments get more.

    python -m bench.curves [--only lengths] --json FILE

Everything is warm, in processes of their own. All but the environments are of Atari frames; a batch is 256 steps, in stacks
of 4. A learner's loop of pure Python beside a running loader is measured here, too.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import diskbuffer as db
from bench.frames import frames
from bench.measure import ONLY, Report, parser, ratio
from bench.peers import PEERS
from bench.peers.peer import BATCHES
from bench.transitions import Transitions
from bench.worker import Worker, in_turns

OURS, LEAST, RIVAL = "diskbuffer", "numpy", "SB3"
STACK, BATCH, SEQUENCES = 4, 256, 64
SMALL = 12_000  # steps
STORED = (3_000, 12_000, 48_000, 200_000)
MOST_IN_RAM = 48_000  # steps that Stable-Baselines3's buffer gets: they are 2.7 GB there
LENGTHS = (1, 4, 16, 64, 128, 256)
FRAME_SIZES = (42, 84, 128, 168, 256)
THREADS = (1, 2, 4, 8)
ENVIRONMENTS = (1, 4, 16, 64)
STEPS = 4_096  # of all environments together, in a turn


@contextmanager
def peers(names: tuple[str, ...], transitions: Transitions, directory: Path, seed: int) -> Iterator[dict[str, Worker]]:
    """Start peers, have each show that its batches are right and choose its threads, and end them."""
    workers: dict[str, Worker] = {}
    try:
        for name in names:
            own = Path(tempfile.mkdtemp(dir=directory))
            workers[name] = Worker(PEERS[name], transitions, own, seed)
        for name, worker in workers.items():
            wrong = worker.ask("check", BATCH)
            if wrong:
                raise RuntimeError(f"{name} returned another batch than was stored: {wrong}")
            worker.ask("tune", BATCH)
        yield workers
    finally:
        for worker in workers.values():
            worker.close()


def stored(report: Report, directory: Path, seed: int, rounds: int) -> None:
    """Sample from more and more steps."""
    for steps in STORED[: 2 if report.quick else None]:
        transitions = Transitions.save(frames(steps + 1), directory / f"{steps}.npy", STACK)
        names = (OURS, LEAST, RIVAL) if steps <= MOST_IN_RAM else (OURS, LEAST)
        with peers(names, transitions, directory, seed) as workers:
            times = in_turns(workers, "sample", BATCH, rounds=rounds)
        for name, taken in times.items():
            report.point("sample(256) as more is stored", "steps stored", steps, name, taken)
        transitions.path.unlink()


def lengths(report: Report, directory: Path, seed: int, rounds: int) -> None:
    """Sample 64 sequences, longer and longer, and the frame after each."""
    transitions = Transitions.save(frames(SMALL + 1), directory / "frames.npy")
    with peers((OURS, LEAST), transitions, directory, seed) as workers:
        for length in LENGTHS:
            times = in_turns(workers, "slices", SEQUENCES, length, rounds=rounds)
            for name, taken in times.items():
                report.point("64 sequences", "steps of a sequence", length, name, taken)
            what, value = f"{SEQUENCES} sequences of {length + 1} frames", ratio(times[OURS], times[LEAST])
            report.row(f"{what}: time against numpy's gather from RAM", value, "x", at_most=0.7 if length == 64 else None)


def frame_sizes(report: Report, directory: Path, seed: int, rounds: int) -> None:
    """Sample larger and larger frames."""
    import cv2

    steps = 1_000 if report.quick else 3_000
    pixels = frames(SMALL + 1)[: steps + 1]
    for size in FRAME_SIZES:
        resized = np.stack([cv2.resize(frame, (size, size), interpolation=cv2.INTER_AREA) for frame in pixels])
        transitions = Transitions.save(resized.astype(np.uint8), directory / f"{size}.npy", STACK)
        with peers((OURS, LEAST, RIVAL), transitions, directory, seed) as workers:
            times = in_turns(workers, "sample", BATCH, rounds=rounds)
        for name, taken in times.items():
            report.point("sample(256) of larger frames", "pixels of a side", size, name, taken)


def threads(report: Report, directory: Path, seed: int, rounds: int) -> None:
    """Have more and more threads sample from one buffer; what counts is how many batches they get together."""
    transitions = Transitions.save(frames(SMALL + 1), directory / "frames.npy", STACK)
    with peers((OURS, LEAST, RIVAL), transitions, directory, seed) as workers:
        for number in THREADS:
            times = in_turns(workers, "at_once", BATCH, number, rounds=rounds, calls=4, seconds=0.2)
            for name, taken in times.items():
                each = [seconds / (BATCHES * number) for seconds in taken]
                report.point("sample(256) by several threads at once", "threads", number, name, each, 1e6, "us a batch")


class Environments:
    """Adds steps of vectors of 4 floats, of several environments at once."""

    def __init__(self, of: str, number: int, directory: Path) -> None:
        rng = np.random.default_rng(0)
        obs = rng.normal(size=(number, 4)).astype(np.float32)
        action, reward, done = np.zeros(number, np.int64), np.zeros(number, np.float32), np.zeros(number, np.bool_)
        self._steps = STEPS // number
        if of == OURS:
            columns = {"obs": db.Column((4,), "float32"), "action": db.Column((), "int64")}
            buffer = db.ReplayBuffer(directory / "store", 100_000, columns=columns, n_envs=number)
            given = (obs, action, reward, obs, done, done)
            if number == 1:
                given = (obs[0], action[0], reward[0], obs[0], done[0], done[0])
            self._add: Callable[[], Any] = lambda: buffer.add(*given)
            return
        from gymnasium import spaces
        from stable_baselines3.common.buffers import ReplayBuffer

        theirs = ReplayBuffer(100_000, spaces.Box(-9, 9, (4,), np.float32), spaces.Discrete(2), device="cpu", n_envs=number)
        infos: list[dict[str, Any]] = [{} for _ in range(number)]
        self._add = lambda: theirs.add(obs, obs, action, reward, done, infos)

    def add(self) -> None:
        """Add `STEPS` steps."""
        for _ in range(self._steps):
            self._add()


def environments(report: Report, directory: Path, seed: int, rounds: int) -> None:
    """Add steps of more and more environments."""
    for number in ENVIRONMENTS:
        workers = {of: Worker(Environments, of, number, Path(tempfile.mkdtemp(dir=directory))) for of in (OURS, RIVAL)}
        try:
            times = in_turns(workers, "add", rounds=rounds, calls=4, seconds=0.2)
        finally:
            for worker in workers.values():
                worker.close()
        for name, taken in times.items():
            each = [seconds / STEPS for seconds in taken]
            report.point("add, vectors of 4 floats", "environments", number, name, each, 1e6, "us a step")
        at_least = 1 if number == 1 else None
        what = f"add of 4 floats, {number} environment{'s' if number > 1 else ''}"
        report.row(f"{what}: times as fast as SB3", ratio(times[RIVAL], times[OURS]), "x", at_least=at_least)


def learner(report: Report, directory: Path, seed: int, rounds: int) -> None:
    """Work in pure Python, 10 ms a batch, with and without a loader that provides the batches meanwhile."""

    def work(n: int) -> int:
        total = 0
        for k in range(n):
            total += k * k % 7
        return total

    begin = time.perf_counter()
    work(200_000)
    n = int(200_000 * 0.01 / (time.perf_counter() - begin))
    pixels = frames(SMALL + 1)
    columns = {"obs": db.Column((84, 84), "uint8"), "action": db.Column((), "int64")}
    alone: list[float] = []
    beside: list[float] = []
    with db.ReplayBuffer(directory / "learner", columns=columns, frame_stack=STACK, seed=seed) as buffer:
        buffer.extend(obs=pixels, action=np.zeros(SMALL, np.int64), reward=np.zeros(SMALL))
        buffer.flush(recompress=True)
        batches = iter(buffer.loader(BATCH))
        for _ in range(10):
            next(batches)
        for turn in range(40 * rounds):
            if turn % 40 == 0:
                time.sleep(0.05)  # the ring is full and the loader idle
            loaded = turn // 20 % 2 == 1
            if loaded:
                next(batches)
            begin = time.perf_counter()
            work(n)
            (beside if loaded else alone).append(time.perf_counter() - begin)
        batches.close()  # type: ignore[attr-defined]
    report.times("10 ms of pure Python, alone", alone)
    report.times("10 ms of pure Python, a loader filling a batch meanwhile", beside)
    value = 100 * (float(np.median(beside)) / float(np.median(alone)) - 1)
    report.row("a pure-Python loop is slowed by a running loader by", value, "%", at_most=10)


PARTS = {part.__name__: part for part in (stored, lengths, frame_sizes, threads, environments, learner)}


def main() -> None:
    """Run all curves, or some."""
    options = parser((__doc__ or "").splitlines()[0])
    options.add_argument("--only", nargs="+", choices=list(PARTS), default=list(PARTS), metavar="PART", help=ONLY)
    args = options.parse_args()
    report, rounds = Report("curves", args.seed, quick=args.quick), 5 if args.quick else 15
    for name in args.only:
        directory = Path(tempfile.mkdtemp(prefix="diskbuffer-bench-"))
        try:
            PARTS[name](report, directory, args.seed, rounds)
        finally:
            shutil.rmtree(directory)
        report.write(args.json, keep=len(args.only) < len(PARTS))


if __name__ == "__main__":
    main()
