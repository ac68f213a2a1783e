"""`sample(n)` at every size, on every kind of observation, beside Stable-Baselines3, TorchRL and numpy, all in RAM.

    python -m bench.sizes [--only ale] --json FILE

Everything is warm; everybody draws steps of their own, uniformly, and delivers all columns as torch tensors. numpy gathers single
frames, and is told what to gather. Kinds: Atari frames in stacks of 4, CarRacing in stacks of 3, vectors of 4 and of 376 floats,
and noise, 96x96x3. `add` is one step of one environment.
"""

from __future__ import annotations

import argparse
import functools
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

import diskbuffer as db
from bench.frames import CACHE, frames
from bench.measure import Report, in_turn, ratio

SIZES = (1, 8, 32, 64, 128, 256, 1024)
EACH = 16  # calls of one competitor before it is the next one's turn


@dataclass(frozen=True)
class Kind:
    """What observations are: single frames, and how many of them are stacked."""

    make: Callable[[int, np.random.Generator], npt.NDArray[Any]]
    steps: int
    stack: int
    targets: dict[int, float]  # how many times as fast as Stable-Baselines3, or the faster of it and TorchRL where that is here
    gather: dict[int, float]  # at most so many times numpy's time
    torchrl: bool = False


def racing(n: int, rng: np.random.Generator) -> npt.NDArray[np.uint8]:
    """Return frames of CarRacing, driven at random; made once, kept in bench/.cache."""
    import gymnasium

    path = CACHE / f"racing-{n}.npy"
    if not path.exists():
        CACHE.mkdir(exist_ok=True)
        env = gymnasium.make("CarRacing-v3")
        env.action_space.seed(0)
        found, over = [env.reset(seed=0)[0]], False
        while len(found) < n:
            action = rng.uniform([-0.6, 0.2, 0.0], [0.6, 0.8, 0.1]).astype(np.float32)
            for _ in range(4):
                obs, _, terminated, truncated, _ = env.step(action)
                over |= terminated or truncated
                found.append(obs)
            if over:
                obs, over = env.reset()[0], False
                found.append(obs)
        np.save(path, np.stack(found[:n]))
    return np.asarray(np.load(path))


def _vectors(size: int) -> Callable[[int, np.random.Generator], npt.NDArray[Any]]:
    return lambda n, rng: rng.normal(size=(n, size)).astype(np.float32)


KINDS = {
    "ale": Kind(
        lambda n, _: frames(n),
        12_000,
        4,
        {1: 1, 8: 1, 32: 1.5, 64: 2, 128: 2, 256: 2.5, 1024: 2.5},
        {256: 1.2},
    ),
    "racing": Kind(racing, 4_000, 3, {256: 2}, {256: 2}),
    "vectors of 4": Kind(_vectors(4), 100_000, 1, {256: 1}, {}, torchrl=True),
    "vectors of 376": Kind(_vectors(376), 100_000, 1, {256: 1}, {}, torchrl=True),
    "noise": Kind(lambda n, rng: rng.integers(0, 256, (n, 96, 96, 3)).astype(np.uint8), 4_000, 1, {}, {}),
}


def sb3_buffer(pixels: npt.NDArray[Any], stack: int) -> Any:
    """Fill Stable-Baselines3's buffer with stacks of the same frames."""
    from gymnasium import spaces
    from stable_baselines3.common.buffers import ReplayBuffer

    n, shape = len(pixels) - stack, pixels.shape[1:] if stack == 1 else (stack, *pixels.shape[1:])
    low, high = (0, 255) if pixels.dtype == np.uint8 else (-np.inf, np.inf)
    space = spaces.Box(low, high, shape, pixels.dtype.type)
    buffer = ReplayBuffer(n, space, spaces.Discrete(6), device="cpu")
    if stack == 1:
        buffer.observations[:, 0], buffer.next_observations[:, 0] = pixels[:-1], pixels[1:]
    for k in range(stack if stack > 1 else 0):
        buffer.observations[:, 0, k], buffer.next_observations[:, 0, k] = pixels[k : k + n], pixels[k + 1 : k + 1 + n]
    buffer.full = True
    return buffer


def torchrl_buffer(pixels: npt.NDArray[Any]) -> Any:
    """Fill TorchRL's buffer with the same transitions."""
    from tensordict import TensorDict
    from torchrl.data import LazyTensorStorage, ReplayBuffer

    n = len(pixels) - 1
    flags = torch.zeros(n, dtype=torch.bool)
    after = {"obs": torch.from_numpy(pixels[1:].copy()), "reward": torch.zeros(n), "terminated": flags, "truncated": flags}
    steps = {"obs": torch.from_numpy(pixels[:-1]), "action": torch.zeros(n, dtype=torch.int64), "next": TensorDict(after, [n])}
    buffer = ReplayBuffer(storage=LazyTensorStorage(n), batch_size=256)
    buffer.extend(TensorDict(steps, [n]))
    return buffer


def sizes(report: Report, name: str, directory: Path, seed: int, rounds: int) -> None:
    """Sample one kind of observation, at every size."""
    kind, rng = KINDS[name], np.random.default_rng(seed)
    pixels = kind.make(kind.steps, rng)
    columns = {"obs": db.Column(pixels.shape[1:], pixels.dtype.name), "action": db.Column((), "int64")}
    n = len(pixels) - 1
    with db.ReplayBuffer(directory / "store", n, columns=columns, frame_stack=kind.stack, seed=seed) as buffer:
        buffer.extend(obs=pixels, action=np.zeros(n, np.int64), reward=np.zeros(n))
        buffer.seal()
        sb3, window = sb3_buffer(pixels, kind.stack), np.arange(kind.stack + 1)
        beside = [np.zeros(n, dtype) for dtype in (np.int64, np.float32, np.bool_, np.bool_)]

        def gather(size: int) -> Any:
            drawn = rng.integers(0, n - kind.stack, size)
            return torch.from_numpy(pixels[drawn[:, None] + window]), [torch.from_numpy(each[drawn]) for each in beside]

        competitors: dict[str, Callable[[int], Any]] = {"diskbuffer": buffer.sample, "SB3": sb3.sample, "numpy": gather}
        if kind.torchrl:
            competitors["TorchRL"] = torchrl_buffer(pixels).sample
        for size in SIZES:
            in_turn(3, competitors, functools.partial(int, size), EACH)
            times = in_turn(rounds if size < 1024 else max(3, rounds // 3), competitors, functools.partial(int, size), EACH)
            for who, taken in times.items():
                report.times(f"{name}, sample({size}): {who}", taken, 1e6, "us")
            rivals = [times[who] for who in ("SB3", "TorchRL") if who in times]
            value = min(ratio(taken, times["diskbuffer"], EACH) for taken in rivals)
            least = kind.targets.get(size)
            goal = "none" if least is None else f"at least {least}"
            report.row(f"{name}, sample({size}): times as fast as in RAM", value, "x", goal, least is None or value >= least)
            value, most = ratio(times["diskbuffer"], times["numpy"], EACH), kind.gather.get(size)
            goal = "none" if most is None else f"at most {most}"
            report.row(f"{name}, sample({size}): time against numpy's gather", value, "x", goal, most is None or value <= most)


def adding(report: Report, directory: Path, rounds: int) -> None:
    """Add steps of 4 floats, of one environment."""
    from gymnasium import spaces
    from stable_baselines3.common.buffers import ReplayBuffer

    obs, n = np.zeros(4, np.float32), 100_000
    sb3 = ReplayBuffer(n, spaces.Box(-1, 1, (4,), np.float32), spaces.Discrete(2), device="cpu")
    one, action, reward, done = obs[None], np.zeros((1, 1), np.int64), np.zeros(1), np.zeros(1, np.bool_)
    columns = {"obs": db.Column((4,), "float32"), "action": db.Column((), "int64")}
    with db.ReplayBuffer(directory / "adding", n, columns=columns) as buffer:
        competitors: dict[str, Callable[[Any], Any]] = {
            "diskbuffer": lambda _: buffer.add(obs, 0, 0.0, obs, False, False),
            "SB3": lambda _: sb3.add(one, one, action, reward, done, [{}]),
        }
        times = in_turn(rounds, competitors, lambda: None, 100)
    for who, taken in times.items():
        report.times(f"add, 4 floats: {who}", taken, 1e6, "us")
    value = ratio(times["SB3"], times["diskbuffer"], 100)
    report.row("add, 4 floats: times as fast as SB3", value, "x", "at least 1", value >= 1)


def main() -> None:
    """Run everything, or some kinds."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="a third of the rounds")
    parser.add_argument("--only", nargs="+", choices=[*KINDS, "add"], default=[*KINDS, "add"])
    args = parser.parse_args()
    report, rounds = Report("sizes", args.seed), 7 if args.quick else 21
    for name in args.only:
        directory = Path(tempfile.mkdtemp(prefix="diskbuffer-bench-"))
        try:
            if name == "add":
                adding(report, directory, rounds)
            else:
                sizes(report, name, directory, args.seed, rounds)
        finally:
            shutil.rmtree(directory)
    report.write(args.json)


if __name__ == "__main__":
    main()
