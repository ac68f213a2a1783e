"""Writing, beside Stable-Baselines3's buffer; and what a million real steps take of the disk, of memory and of time.

    python -m bench.writing [--only vectors] --json FILE

SB3's buffer is written to where it was written before, so that it does not pay for fresh memory; so are we, where segments
are evicted. Blocks of calls are timed, compression, files and eviction included.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import diskbuffer as db
from bench.frames import COLUMNS, Frames, fill, frames, million
from bench.measure import Part, Report, anonymous, in_turn, parser, ratio, run
from bench.worker import Worker, alone, in_turns, started

BLOCK = 512  # long enough that what is packed beside a block falls into it, not into the next competitor's
HOT = 2048  # frames, 14 MB, that are added over and over: an environment leaves its frames in the cache
MANY = 16
ENVIRONMENTS, STEPS = (1, 4, 16, 64), 4_096  # steps of all of them together, in a turn


def sb3_buffer(capacity: int, shape: tuple[int, ...], dtype: Any, n_envs: int = 1) -> Callable[..., None]:
    """Return what adds an observation, and the next one, of each environment to a buffer of Stable-Baselines3's."""
    from gymnasium import spaces
    from stable_baselines3.common.buffers import ReplayBuffer

    buffer: Any = ReplayBuffer(capacity, spaces.Box(0, 255, shape, dtype), spaces.Discrete(6), device="cpu", n_envs=n_envs)
    rest: tuple[Any, ...] = (np.zeros(n_envs, np.int64), np.zeros(n_envs, np.float32), np.zeros(n_envs, np.bool_))
    infos: list[dict[str, Any]] = [{} for _ in range(n_envs)]
    return lambda obs, next_obs: buffer.add(obs, next_obs, *rest, infos)


def our_block(buffer: db.ReplayBuffer, pixels: Frames, n_envs: int) -> Callable[[Any], None]:
    """Return what adds a block of steps of `n_envs` environments; where their frames begin again, an episode is cut off."""
    length, at = HOT // n_envs, 0
    steps = np.ascontiguousarray(pixels[:HOT].reshape(n_envs, length, 84, 84).swapaxes(0, 1))
    action, reward, flag = np.zeros(n_envs, np.int64), np.zeros(n_envs, np.float32), np.zeros(n_envs, np.bool_)
    given: tuple[Any, ...] = (action, reward, flag) if n_envs > 1 else (0, 0.0, False)
    steps = steps if n_envs > 1 else steps[:, 0]

    def block(_: Any) -> None:
        nonlocal at
        for _ in range(BLOCK):
            if at + 1 >= length:
                at = 0
            buffer.add(steps[at], given[0], given[1], steps[at + 1], given[2], given[2])
            at += 1

    return block


def pixels(report: Report, directory: Path) -> None:
    """``add`` of frames of one environment and of sixteen, and SB3's of stacks, in turn; and ``extend``."""
    made, add = frames(12_000 if report.quick else 96_000), sb3_buffer(4 * BLOCK, (4, 84, 84), np.uint8)
    stacks = [np.ascontiguousarray(made[None, k : k + 4]) for k in range(BLOCK + 1)]

    def theirs(_: Any) -> None:
        for k in range(BLOCK):
            add(stacks[k], stacks[k + 1])

    options: dict[str, Any] = {"columns": COLUMNS, "frame_stack": 4}
    with (
        db.ReplayBuffer(directory / "one", 1_000_000, **options) as one,
        db.ReplayBuffer(directory / "many", 1_000_000, **options, n_envs=MANY) as many,
    ):
        blocks = {"SB3": theirs, "one": our_block(one, made, 1), "many": our_block(many, made, MANY)}
        in_turn(5, blocks, lambda: None)
        times = in_turn(20 if report.quick else 150, blocks, lambda: None)
    steps = {name: [t / (BLOCK * MANY if name == "many" else BLOCK) for t in seconds] for name, seconds in times.items()}
    for name, seconds in steps.items():
        report.times(f"add of a frame: {name}", seconds, 1e6, "us/step")
    report.row("add, one environment: times as fast as SB3", ratio(steps["SB3"], steps["one"]), "x", at_least=1)
    report.row(f"add, {MANY} environments: steps a second against one", ratio(steps["one"], steps["many"]), "x", at_least=3)
    with db.ReplayBuffer(directory / "bulk", columns=COLUMNS) as buffer:
        n = len(made) - 1
        whole: dict[str, Any] = {"obs": made, "action": np.zeros(n, np.int64), "reward": np.zeros(n, np.float32)}
        taken = in_turn(3, {"extend": lambda _: buffer.extend(**whole)}, lambda: None)
        report.times("extend, a trajectory", [t / n for t in taken["extend"]], 1e6, "us/step")


class Vectors:
    """Adds steps of vectors of 4 floats, of several environments at once."""

    def __init__(self, of: str, number: int, directory: Path) -> None:
        obs = np.random.default_rng(0).normal(size=(number, 4)).astype(np.float32)
        action, reward, done = np.zeros(number, np.int64), np.zeros(number, np.float32), np.zeros(number, np.bool_)
        self._steps = STEPS // number
        if of == "SB3":
            theirs = sb3_buffer(100_000, (4,), np.float32, number)
            self._add: Callable[[], object] = lambda: theirs(obs, obs)
            return
        columns = {"obs": db.Column((4,), "float32"), "action": db.Column((), "int64")}
        buffer = db.ReplayBuffer(directory / f"store-{number}", 100_000, columns=columns, n_envs=number)
        given: tuple[Any, ...] = (obs, action, reward, obs, done, done)
        given = tuple(each[0] for each in given) if number == 1 else given
        self._add = lambda: buffer.add(*given)

    def add(self) -> None:
        """Add `STEPS` steps."""
        for _ in range(self._steps):
            self._add()


def vectors(report: Report, directory: Path) -> None:
    """``add`` of vectors of more and more environments, beside SB3's."""
    for number in ENVIRONMENTS:
        with started({of: Worker(Vectors, of, number, directory) for of in ("ours", "SB3")}) as workers:
            times = in_turns(workers, "add", rounds=5 if report.quick else 15, calls=4, seconds=0.2)
        what = f"add of 4 floats, {number} environment{'s' if number > 1 else ''}"
        for name, taken in times.items():
            report.times(f"{what}: {name}", [seconds / STEPS for seconds in taken], 1e6, "us/step")
        value = ratio(times["SB3"], times["ours"])
        report.row(f"{what}: times as fast as SB3", value, "x", at_least=1 if number == 1 else None)


def memory_of(store: Path) -> float:
    """Return by how many MB a process grows that samples and adds."""
    import torch

    torch.zeros(1000, 1000).sum()
    np.random.default_rng(0)
    before, buffer = anonymous(), db.ReplayBuffer(store)
    n = buffer.n_envs
    frame, flag, action = np.zeros((n, 84, 84), np.uint8), np.zeros(n, np.bool_), np.zeros(n, np.int64)
    for _ in range(2000):
        batch = buffer.sample(256)
        buffer.add(frame, action, np.zeros(n), frame, flag, flag)
    del batch
    return (anonymous() - before) / 1e6


def opening_of(store: Path) -> float:
    """Return the seconds that opening takes where everything is warm."""
    seconds = []
    for _ in range(10):
        begin = time.perf_counter()
        buffer = db.ReplayBuffer(store)
        seconds.append(time.perf_counter() - begin)
        buffer.close()
    return float(np.median(seconds[1:]))


def importing() -> float:
    """Return the seconds that our import takes after torch's."""
    code = "import time, torch; begin = time.perf_counter(); import diskbuffer; print(time.perf_counter() - begin)"
    return float(subprocess.check_output([sys.executable, "-c", code], text=True))


def steps(report: Report, directory: Path) -> None:
    """Disk, memory and opening of a store of a million real steps."""
    n = 50_000 if report.quick else 1_000_000
    source = million(n)
    shutil.copytree(source, store := directory / "million")
    with db.ReplayBuffer(source, mode="r") as buffer:
        disk = buffer.stats()["disk_bytes"] / 1e9
    report.row(f"{n:,} real steps: on disk", disk, "GB", at_most=0.6)
    memory = float(np.median([alone(memory_of, store) for _ in range(3)]))
    report.row(f"{n:,} real steps: anonymous RAM, sampling and adding", memory, "MB", at_most=150)
    opening = float(np.median([alone(opening_of, store) for _ in range(3)]))
    report.row(f"{n:,} real steps: opening, process warm", opening, "s", at_most=0.1)
    report.row("import diskbuffer, beyond import torch", float(np.median([importing() for _ in range(5)])), "s", at_most=0.4)


def mapped(store: Path) -> tuple[float, int, float]:
    """Map a small network over stacks; return by how many MB the process grows, the steps, and the seconds of advantages."""
    import torch

    torch.manual_seed(0)
    layers = (torch.nn.Conv2d(4, 4, 8, 8), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(400, 2))
    network, found, done = torch.nn.Sequential(*layers), list[int](), threading.Event()

    def values(batch: Any) -> Any:
        with torch.no_grad():
            both = network(batch["obs"].float().div_(255))
        return both[:, 0], both[:, 1]

    def watch() -> None:
        while not done.wait(0.01):
            found.append(anonymous())

    values({"obs": torch.zeros(512, 4, 84, 84)})
    before, watching = anonymous(), threading.Thread(target=watch)
    watching.start()
    with db.ReplayBuffer(store, frame_stack=4) as buffer:
        n = buffer.columns.map(values, 256, ("value", "next_value"), progress=False)
        begin = time.perf_counter()
        assert buffer.columns.returns_and_advantages() == n
        seconds = time.perf_counter() - begin
    done.set()
    watching.join()
    return (max(found) - before) / 1e6, n, seconds


def passes(report: Report, directory: Path) -> None:
    """Map a network over a million real frames, its values written back; then compute returns and advantages."""
    n = 50_000 if report.quick else 1_000_000
    with db.ReplayBuffer(directory / "store", columns=COLUMNS) as buffer:
        fill(buffer, frames(min(n, 50_000)), n)
    memory, n, seconds = alone(mapped, directory / "store")
    report.row(f"map over {n:,} steps: memory", memory, "MB", at_most=200)
    report.row(f"returns and advantages of {n:,} steps", n / seconds / 1e6, "M/s")


PARTS: dict[str, Part] = {part.__name__: part for part in (pixels, vectors, steps, passes)}

if __name__ == "__main__":
    run("writing", PARTS, parser(__doc__))
