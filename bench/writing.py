"""Writing, beside Stable-Baselines3's buffer; and what a million real steps take of the disk, of memory and of time.

    python -m bench.writing [--only vectors] --json FILE

SB3's buffer is written to where it was written before, so that it does not pay for fresh memory; so are we, where segments
are evicted. Each buffer is in a process of its own. Blocks of calls are timed, compression, files and eviction included.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

import diskbuffer as db
from bench.frames import COLUMNS, fill, frames, million
from bench.measure import Part, Report, anonymous, parser, ratio, run
from bench.worker import Worker, alone, in_turns, started

BLOCK = 4096  # steps of all environments together, in a turn: what is packed beside them falls into it
HOT = 2048  # frames, 14 MB, that are added over and over: an environment leaves its frames in the cache
STACK, MANY, ENVIRONMENTS = 4, 16, (1, 4, 16, 64)


class Adding:
    """Adds steps of several environments to our buffer or to SB3's; where observations begin again, an episode is cut off."""

    def __init__(self, of: str, kind: str, n_envs: int, directory: Path) -> None:
        pixels = kind == "frames"
        made: Any = frames(12_000)[:HOT] if pixels else np.random.default_rng(0).normal(size=(HOT, 4)).astype(np.float32)
        if of == "SB3" and pixels:
            made = np.stack([made[k : len(made) - STACK + k] for k in range(STACK)], axis=1)
        length = len(made) // n_envs
        self._obs = np.ascontiguousarray(made[: length * n_envs].reshape(n_envs, length, *made.shape[1:]).swapaxes(0, 1))
        self._at, self._calls = 0, BLOCK // n_envs
        flags, action, reward = np.zeros(n_envs, np.bool_), np.zeros(n_envs, np.int64), np.zeros(n_envs, np.float32)
        if of == "SB3":
            from gymnasium import spaces
            from stable_baselines3.common.buffers import ReplayBuffer

            space, room = spaces.Box(0, 255, made.shape[1:], made.dtype.type), HOT if pixels else 100_000
            theirs = ReplayBuffer(room, space, spaces.Discrete(6), "cpu", n_envs=n_envs)
            infos: list[dict[str, Any]] = [{} for _ in range(n_envs)]
            self._add: Any = lambda obs, next_obs: theirs.add(obs, next_obs, action, reward, flags, infos)
            return
        columns = COLUMNS if pixels else {"obs": db.Column((4,), "float32"), "action": db.Column((), "int64")}
        stack, room = (STACK, 1_000_000) if pixels else (1, 100_000)
        path = directory / f"{kind}-{n_envs}"
        buffer = db.ReplayBuffer(path, room, columns=columns, frame_stack=stack, n_envs=n_envs, autoreset="next_step")
        if n_envs > 1:
            self._add = lambda obs, next_obs: buffer.add(obs, action, reward, next_obs, flags, flags)
        else:
            self._add = lambda obs, next_obs: buffer.add(obs[0], 0, 0.0, next_obs[0], False, False)

    def add(self) -> None:
        """Add `BLOCK` steps."""
        for _ in range(self._calls):
            if self._at + 1 >= len(self._obs):
                self._at = 0
            self._add(self._obs[self._at], self._obs[self._at + 1])
            self._at += 1


def in_blocks(report: Report, what: str, workers: dict[str, Worker], rounds: int) -> dict[str, list[float]]:
    """Time blocks of steps in turn; return the seconds of a step."""
    with started(workers):
        times = in_turns(workers, "add", rounds=5 if report.quick else rounds, calls=4, seconds=0.2)
    steps = {name: [seconds / BLOCK for seconds in taken] for name, taken in times.items()}
    for name, taken in steps.items():
        report.times(f"{what}: {name}", taken, 1e6, "us/step")
    return steps


def pixels(report: Report, directory: Path) -> None:
    """``add`` of frames of one environment and of sixteen, and SB3's of stacks."""
    of = {"SB3": ("SB3", 1), "one": ("ours", 1), "many": ("ours", MANY)}
    workers = {name: Worker(Adding, who, "frames", n_envs, directory) for name, (who, n_envs) in of.items()}
    steps = in_blocks(report, "add of a frame", workers, 40)
    report.row("add, one environment: times as fast as SB3", ratio(steps["SB3"], steps["one"]), "x", at_least=1)
    report.row(f"add, {MANY} environments: steps a second against one", ratio(steps["one"], steps["many"]), "x", at_least=3)


def vectors(report: Report, directory: Path) -> None:
    """``add`` of vectors of more and more environments, beside SB3's."""
    for number in ENVIRONMENTS:
        what = f"add of 4 floats, {number} environment{'s' if number > 1 else ''}"
        workers = {of: Worker(Adding, of, "vectors", number, directory) for of in ("ours", "SB3")}
        steps = in_blocks(report, what, workers, 15)
        value = ratio(steps["SB3"], steps["ours"])
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
        report.row(f"{n:,} real steps: on disk", buffer.stats()["disk_bytes"] / 1e9, "GB", at_most=0.6)
    memory, opening = (float(np.median([alone(of, store) for _ in range(3)])) for of in (memory_of, opening_of))
    report.row(f"{n:,} real steps: anonymous RAM, sampling and adding", memory, "MB", at_most=150)
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
        fill(buffer, frames(50_000), n)
    memory, n, seconds = alone(mapped, directory / "store")
    report.row(f"map over {n:,} steps: memory", memory, "MB", at_most=200)
    report.row(f"returns and advantages of {n:,} steps", n / seconds / 1e6, "M/s")


PARTS: dict[str, Part] = {part.__name__: part for part in (pixels, vectors, steps, passes)}

if __name__ == "__main__":
    run("writing", PARTS, parser(__doc__))
