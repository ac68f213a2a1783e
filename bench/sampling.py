"""Sampling, beside Stable-Baselines3, numpy and zarr-python, on the same indices in one run.

    python -m bench.sampling --json FILE

Everything is warm: the store is in the page cache, the others are in RAM. All columns are delivered as torch tensors.
The draw is counted for us alone; the others are handed our indices.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import diskbuffer as db
from bench.frames import COLUMNS, Frames, frames
from bench.measure import Report, arguments, in_turn, ratio

STACK = 4
EACH = 32  # calls of one competitor before it is the next one's turn; a second core can take some to wake


class Columns:
    """The columns beside the frames, the same for all."""

    def __init__(self, n: int, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.action = rng.integers(0, 6, n)
        self.reward = rng.normal(size=n).astype(np.float32)
        self.terminated = np.zeros(n, np.bool_)
        self.truncated = np.zeros(n, np.bool_)

    def gather(self, index: Any) -> list[torch.Tensor]:
        """Take the same rows of each."""
        return [torch.from_numpy(c[index]) for c in (self.action, self.reward, self.terminated, self.truncated)]


def sb3_buffer(pixels: Frames, columns: Columns) -> Any:
    """Fill Stable-Baselines3's buffer with stacks of the same frames."""
    import gymnasium as gym
    from stable_baselines3.common.buffers import ReplayBuffer

    n = len(pixels) - STACK
    space = gym.spaces.Box(0, 255, (STACK, 84, 84), np.uint8)
    buffer = ReplayBuffer(n, space, gym.spaces.Discrete(6), device="cpu")
    for k in range(STACK):  # place i holds the stack that ends with frame i + STACK - 1
        buffer.observations[:, 0, k] = pixels[k : k + n]
        buffer.next_observations[:, 0, k] = pixels[k + 1 : k + 1 + n]
    steps = slice(STACK - 1, STACK - 1 + n)
    buffer.actions[:, 0, 0], buffer.rewards[:, 0] = columns.action[steps], columns.reward[steps]
    buffer.full = True
    return buffer


def transitions(report: Report, buffer: db.ReplayBuffer, pixels: Frames, columns: Columns, rounds: int) -> None:
    """``sample(256)``, a stack of 4, obs and next_obs."""
    sb3 = sb3_buffer(pixels, columns)
    n, window = len(pixels), np.arange(1 - STACK, 2)

    def ours(drawn: dict[str, Any]) -> Any:
        batch = buffer.sample(256)
        drawn["steps"] = batch["steps"].numpy()
        return batch

    def gather(drawn: dict[str, Any]) -> Any:
        return torch.from_numpy(pixels[drawn["steps"][:, None] + window]), columns.gather(drawn["steps"])

    def stable_baselines3(drawn: dict[str, Any]) -> Any:
        return sb3._get_samples(np.clip(drawn["steps"] - STACK + 1, 0, n - STACK - 1))

    def zarr_python(drawn: dict[str, Any]) -> Any:
        rows = rows_of(buffer, (drawn["steps"][:, None] + window).ravel())
        return torch.from_numpy(obs.oindex[rows])  # type: ignore[union-attr]

    obs = buffer.zarr["obs"]
    agree(ours, gather, stable_baselines3)
    given: Callable[[], dict[str, Any]] = dict
    times = in_turn(rounds, {"ours": ours, "numpy": gather, "SB3": stable_baselines3}, given, EACH)
    slow = in_turn(max(3, rounds // 10), {"ours": ours, "zarr": zarr_python}, given)
    report.times("sample(256), stack 4: diskbuffer, on disk", times["ours"])
    report.times("the same: numpy gather of single frames, in RAM", times["numpy"])
    report.times("the same: Stable-Baselines3 ReplayBuffer, in RAM", times["SB3"])
    report.times("the same store: zarr-python oindex, obs alone", slow["zarr"])
    value = ratio(times["SB3"], times["ours"], EACH)
    report.row("sample(256): times as fast as SB3, in RAM", value, "x", "at least 2", value >= 2)
    value = ratio(times["ours"], times["numpy"], EACH)
    report.row("sample(256): time against numpy's gather from RAM", value, "x", "at most 1.5", value <= 1.5)
    value = float(np.median(slow["zarr"]) / np.median(times["ours"]))
    report.row("sample(256): times as fast as zarr-python's oindex", value, "x", "at least 400", value >= 400)


def agree(ours: Callable[..., Any], gather: Callable[..., Any], stable_baselines3: Callable[..., Any]) -> None:
    """Make sure that all return the same, but for stacks that reach before the first frame; and warm them up."""
    for _ in range(20):
        drawn: dict[str, Any] = {}
        batch, (frames_, _), other = ours(drawn), gather(drawn), stable_baselines3(drawn)
        whole = drawn["steps"] >= STACK - 1
        assert (batch["obs"][whole] == frames_[whole, :STACK]).all(), "the competitors disagree"
        assert (batch["next_obs"][whole] == frames_[whole, 1:]).all(), "the competitors disagree"
        assert (batch["obs"][whole] == other.observations[whole]).all(), "the competitors disagree"


def rows_of(buffer: db.ReplayBuffer, positions: Any) -> Any:
    """Translate positions of stream 0 to rows of the Zarr arrays, as the segment table tells them."""
    group = buffer.zarr
    length, first = (np.asarray(group[f"_segments/{name}"][:]) for name in ("length", "first_row"))  # type: ignore[index]
    used = np.flatnonzero(length > 0)
    slots = used[np.argsort(first[used])]
    size = int(length.max())
    return slots[(np.maximum(positions, 0) - first[slots[0]]) // size] * size + np.maximum(positions, 0) % size


def sequences(report: Report, path: Path, pixels: Frames, columns: Columns, rounds: int, rng: np.random.Generator) -> None:
    """64 sequences of 65 frames: 64 steps, and the observation after the last."""
    buffer = db.ReplayBuffer(path, frame_stack=1, mode="r")
    window = np.arange(65)

    def ours(starts: Any) -> Any:
        return buffer.at(starts, length=64)

    def gather(starts: Any) -> Any:
        return torch.from_numpy(pixels[starts[:, None] + window]), columns.gather(starts[:, None] + window[:-1])

    def given() -> Any:
        return rng.integers(0, len(pixels) - 66, 64)

    for _ in range(20):
        ours(given())
    times = in_turn(rounds, {"ours": ours, "numpy": gather}, given, EACH)
    report.times("64 sequences of 65 frames: diskbuffer, on disk", times["ours"])
    report.times("the same: numpy gather, in RAM", times["numpy"])
    value = ratio(times["ours"], times["numpy"], EACH)
    report.row("64 sequences of 65 frames: time against numpy's gather", value, "x", "at most 0.8", value <= 0.8)
    buffer.close()


def beside_a_learner(report: Report, buffer: db.ReplayBuffer, rounds: int) -> None:
    """Work in pure Python, 10 ms a batch, with and without a loader that provides the batches meanwhile."""

    def work(n: int) -> int:
        total = 0
        for k in range(n):
            total += k * k % 7
        return total

    begin = time.perf_counter()
    work(200_000)
    n = int(200_000 * 0.01 / (time.perf_counter() - begin))
    loader = buffer.loader(256)
    batches = iter(loader)
    for _ in range(10):
        next(batches)
    alone: list[float] = []
    beside: list[float] = []
    for turn in range(rounds):
        if turn % 20 == 0 and turn % 40 == 0:
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
    report.row("a pure-Python loop is slowed by a running loader by", value, "%", "at most 10", value <= 10)


def main() -> None:
    """Run everything."""
    args = arguments(__doc__.splitlines()[0])
    report, rng = Report("sampling", args.seed), np.random.default_rng(args.seed)
    n, rounds = (12_000, 10) if args.quick else (96_000, 30)
    pixels = frames(n)
    columns = Columns(n, args.seed)
    directory = Path(tempfile.mkdtemp(prefix="diskbuffer-bench-"))
    try:
        with db.ReplayBuffer(
            directory / "store", capacity=1_000_000, columns=COLUMNS, frame_stack=STACK, seed=args.seed
        ) as buffer:
            buffer.extend(obs=pixels, action=columns.action[:-1], reward=columns.reward[:-1])
            buffer.seal()
        with db.ReplayBuffer(directory / "store", seed=args.seed) as buffer:
            transitions(report, buffer, pixels, columns, rounds)
            beside_a_learner(report, buffer, 25 * rounds)
        sequences(report, directory / "store", pixels, columns, rounds, rng)
    finally:
        shutil.rmtree(directory)
    report.write(args.json)


if __name__ == "__main__":
    main()
