"""Writing, beside Stable-Baselines3's buffer, and what a million real steps take.

    python -m bench.writing --json FILE

SB3's buffer is written to where it was written before, so that it does not pay for fresh memory; so are we, where segments
are evicted. Blocks of 512 calls are timed, compression, files and eviction included.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import diskbuffer as db
from bench.frames import COLUMNS, Frames, frames, million
from bench.measure import Report, arguments, in_turn, ratio

BLOCK = 512  # long enough that what is packed beside a block falls into it, not into the next competitor's
HOT = (
    2048  # frames, 14 MB, that are added over and over, by us and as SB3's stacks: an environment leaves its frames in the cache
)
MANY = 16


def sb3_block(pixels: Frames) -> Callable[[Any], None]:
    """Return what adds a block of stacked observations to SB3's buffer, which is full."""
    import gymnasium as gym
    from stable_baselines3.common.buffers import ReplayBuffer

    space = gym.spaces.Box(0, 255, (4, 84, 84), np.uint8)
    buffer = ReplayBuffer(4 * BLOCK, space, gym.spaces.Discrete(6), device="cpu")
    action, reward, done = np.zeros((1, 1), np.int64), np.zeros(1, np.float32), np.zeros(1, np.bool_)
    infos: list[dict[str, Any]] = [{}]
    stacks = [np.ascontiguousarray(pixels[None, k : k + 4]) for k in range(BLOCK + 1)]

    def block(_: Any) -> None:
        for k in range(BLOCK):
            buffer.add(stacks[k], stacks[k + 1], action, reward, done, infos)

    for _ in range(5):
        block(None)
    return block


def our_block(buffer: db.ReplayBuffer, pixels: Frames, n_envs: int) -> Callable[[Any], None]:
    """Return what adds a block of steps of `n_envs` environments; where their frames begin again, an episode is cut off."""
    length = HOT // n_envs
    each = pixels[: len(pixels) // n_envs * n_envs].reshape(n_envs, -1, 84, 84)[:, :length]
    steps = np.ascontiguousarray(each.swapaxes(0, 1))
    if n_envs == 1:
        steps = steps[:, 0]
    action: Any = np.zeros(n_envs, np.int64) if n_envs > 1 else 0
    reward: Any = np.zeros(n_envs, np.float32) if n_envs > 1 else 0.0
    flag: Any = np.zeros(n_envs, np.bool_) if n_envs > 1 else False
    at = 0

    def block(_: Any) -> None:
        nonlocal at
        for _ in range(BLOCK):
            if at + 1 >= length:
                at = 0
            buffer.add(steps[at], action, reward, steps[at + 1], flag, flag)
            at += 1

    return block


def adding(report: Report, directory: Path, pixels: Frames, rounds: int) -> None:
    """``add`` of one environment and of sixteen, and SB3's, in turn."""
    one = db.ReplayBuffer(directory / "one", 1_000_000, columns=COLUMNS, frame_stack=4)
    many = db.ReplayBuffer(directory / "many", 1_000_000, columns=COLUMNS, frame_stack=4, n_envs=MANY)
    blocks = {"SB3": sb3_block(pixels), "one": our_block(one, pixels, 1), "many": our_block(many, pixels, MANY)}
    for _ in range(3):
        for block in blocks.values():
            block(None)
    times = in_turn(rounds, blocks, lambda: None)
    each = {"SB3": BLOCK, "one": BLOCK, "many": BLOCK * MANY}
    steps = {name: [t / each[name] for t in seconds] for name, seconds in times.items()}
    report.times("add, one environment: diskbuffer", steps["one"], 1e6, "us/step")
    report.times("add, one environment: SB3, stacked observations, steady state", steps["SB3"], 1e6, "us/step")
    report.times(f"add, {MANY} environments: diskbuffer", steps["many"], 1e6, "us/step")
    value = ratio(steps["SB3"], steps["one"])
    report.row("add, one environment: times as fast as SB3", value, "x", at_least=1)
    value = ratio(steps["one"], steps["many"])
    report.row(f"add, {MANY} environments: steps a second against one", value, "x", at_least=3)
    one.close()
    many.close()


def extending(report: Report, directory: Path, pixels: Frames) -> None:
    """``extend`` with a trajectory."""
    with db.ReplayBuffer(directory / "bulk", columns=COLUMNS) as buffer:
        n = len(pixels) - 1
        given: dict[str, Any] = {"obs": pixels, "action": np.zeros(n, np.int64), "reward": np.zeros(n, np.float32)}
        times = in_turn(3, {"extend": lambda _: buffer.extend(**given)}, lambda: None)
        report.times("extend, a trajectory", [t / n for t in times["extend"]], 1e6, "us/step")


MEMORY = """
import torch, numpy as np, sys, diskbuffer as db
def anonymous():
    return sum(int(l.split()[1]) for l in open("/proc/self/status") if l.startswith("RssAnon")) / 1024
torch.zeros(1000, 1000).sum(); np.random.default_rng(0)
before = anonymous()
buffer = db.ReplayBuffer(sys.argv[1])
frame = np.zeros((buffer.n_envs, 84, 84), np.uint8)
flag, action = np.zeros(buffer.n_envs, bool), np.zeros(buffer.n_envs, int)
for k in range(2000):
    batch = buffer.sample(256)
    buffer.add(frame, action, np.zeros(buffer.n_envs), frame, flag, flag)
del batch
print(anonymous() - before)
"""

OPENING = """
import sys, time, torch, diskbuffer as db
db.ReplayBuffer(sys.argv[1]).close()
seconds = []
for _ in range(9):
    begin = time.perf_counter()
    buffer = db.ReplayBuffer(sys.argv[1])
    seconds.append(time.perf_counter() - begin)
    buffer.close()
print(sorted(seconds)[4])
"""

IMPORT = """
import time, torch
begin = time.perf_counter(); import diskbuffer; print(time.perf_counter() - begin)
"""


def in_a_process(code: str, *args: str) -> float:
    """Run Python code that prints a number."""
    ran = subprocess.run([sys.executable, "-c", code, *args], capture_output=True, text=True, check=True)
    return float(ran.stdout)


def a_million(report: Report, directory: Path, steps: int) -> None:
    """Disk, memory and opening of a store of a million real steps."""
    source = million(steps)
    store = directory / "million"
    shutil.copytree(source, store)
    with db.ReplayBuffer(source, mode="r") as buffer:
        stats = buffer.stats()
    print(f"  {stats['steps']:,} steps in {stats['episodes']:,} episodes, uncompressed {stats['raw_bytes'] / 1e9:.2f} GB")
    value = stats["disk_bytes"] / 1e9
    report.row(f"{steps:,} real steps: on disk", value, "GB", at_most=0.6)
    value = float(np.median([in_a_process(MEMORY, str(store)) for _ in range(3)]))
    report.row(f"{steps:,} real steps: anonymous RAM, sampling and adding", value, "MB", at_most=150)
    value = float(np.median([in_a_process(OPENING, str(store)) for _ in range(3)]))
    report.row(f"{steps:,} real steps: opening, process warm", value, "s", at_most=0.1)


def main() -> None:
    """Run everything."""
    args = arguments(__doc__.splitlines()[0])
    report = Report("writing", args.seed, quick=args.quick)
    pixels = frames(12_000 if args.quick else 96_000)
    directory = Path(tempfile.mkdtemp(prefix="diskbuffer-bench-"))
    try:
        adding(report, directory, pixels, 20 if args.quick else 150)
        extending(report, directory, pixels)
        a_million(report, directory, 50_000 if args.quick else 1_000_000)
    finally:
        shutil.rmtree(directory)
    value = float(np.median([in_a_process(IMPORT) for _ in range(5)]))
    report.row("import diskbuffer, beyond import torch", value, "s", at_most=0.4)
    report.write(args.json)


if __name__ == "__main__":
    main()
