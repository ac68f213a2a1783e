"""Our buffers for Stable-Baselines3 beside its own, in one run: `sample`, `model.learn`, and memory.

    python -m bench.adapters --json FILE

Real frames in stacks of four; everything is warm. The learners take turns, in processes of their own, as do the two that add a
million steps, whose memory is compared: what a process with the library's smallest buffer takes is subtracted.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from bench.frames import Frames, frames
from bench.measure import Report, arguments, in_turn, ratio
from bench.verification import take_turns

STACK, EACH = 4, 32

LEARNING = """
import sys, time
import ale_py, gymnasium
gymnasium.register_envs(ale_py)
from stable_baselines3 import DQN
from stable_baselines3.common.env_util import make_atari_env
from stable_baselines3.common.vec_env import VecFrameStack
from diskbuffer.adapters.sb3 import DiskReplayBuffer
of, path, steps = sys.argv[1], sys.argv[2], int(sys.argv[3])
env = VecFrameStack(make_atari_env("PongNoFrameskip-v4", n_envs=4, seed=0), 4)
ours = {"replay_buffer_class": DiskReplayBuffer, "replay_buffer_kwargs": {"path": path}} if of == "ours" else {}
model = DQN("CnnPolicy", env, buffer_size=20_000, learning_starts=500, train_freq=4, batch_size=32, seed=0, device="cpu", **ours)
model.learn(1_000)
for _ in sys.stdin:
    begin = time.perf_counter()
    model.learn(steps, reset_num_timesteps=False)
    print((time.perf_counter() - begin) / steps, flush=True)
"""

FILLING = """
import os, sys, re
import numpy as np
import psutil
from gymnasium import spaces
from stable_baselines3.common.buffers import ReplayBuffer
from diskbuffer.adapters.sb3 import DiskReplayBuffer
of, path, steps, pixels = sys.argv[1], sys.argv[2], int(sys.argv[3]), np.load(sys.argv[4], mmap_mode="r")
space, actions = spaces.Box(0, 255, (4, 84, 84), np.uint8), spaces.Discrete(6)
if of == "ours":
    buffer = DiskReplayBuffer(steps, space, actions, "cpu", path=path)
else:
    buffer = ReplayBuffer(64, space, actions, "cpu")
stack = np.zeros((1, 4, 84, 84), np.uint8)
stack[0, -1] = pixels[0]
action, reward, done = np.zeros(1, np.int64), np.zeros(1, np.float32), np.zeros(1, bool)
for t in range(steps if of == "ours" else 1_000):
    following = np.concatenate([stack[:, 1:], np.asarray(pixels[(t + 1) % len(pixels)])[None, None]], axis=1)
    done[0] = t % 500 == 499
    buffer.add(stack, following, action, reward, done, [{}])
    stack = following
    if done[0]:
        stack = np.zeros_like(stack)
        stack[0, -1] = following[0, -1]
for _ in range(200):
    buffer.sample(256)
smaps = open("/proc/self/smaps_rollup").read()
print(int(re.search(r"Anonymous: *([0-9]+)", smaps)[1]) * 1024)
"""


def fill(buffers: list[Any], pixels: Frames) -> None:
    """Add stacks of frames, in episodes of 500 steps."""
    stack = np.zeros((1, STACK, 84, 84), np.uint8)
    stack[0, -1] = pixels[0]
    for t in range(len(pixels) - 1):
        following = np.concatenate([stack[:, 1:], pixels[t + 1][None, None]], axis=1)
        done = np.array([t % 500 == 499])
        for buffer in buffers:
            buffer.add(stack, following, np.array([t % 6]), np.ones(1, np.float32), done, [{}])
        stack = following
        if done[0]:
            stack = np.zeros_like(stack)
            stack[0, -1] = following[0, -1]


def sampling(report: Report, directory: Path, steps: int, rounds: int) -> None:
    """Compare `sample`, of Stable-Baselines3 from RAM and of ours from the disk."""
    from gymnasium import spaces
    from stable_baselines3.common.buffers import ReplayBuffer

    from diskbuffer.adapters.sb3 import DiskReplayBuffer

    space, actions = spaces.Box(0, 255, (STACK, 84, 84), np.uint8), spaces.Discrete(6)
    ours = DiskReplayBuffer(steps, space, actions, "cpu", path=directory / "sampling")
    theirs = ReplayBuffer(steps, space, actions, "cpu")
    fill([ours, theirs], frames(steps + 1))
    assert ours.stored.buffer is not None
    ours.stored.buffer.seal()
    for size in (256, 32):
        found = in_turn(rounds, {"ours": ours.sample, "theirs": theirs.sample}, lambda size=size: size, EACH)  # type: ignore[misc]
        report.times(f"Stable-Baselines3: sample({size}), DiskReplayBuffer", found["ours"])
        report.times(f"Stable-Baselines3: sample({size}), ReplayBuffer", found["theirs"])
        faster = ratio(found["theirs"], found["ours"], EACH)
        target = 1.5 if size == 256 else None
        report.row(
            f"Stable-Baselines3: sample({size}), times as fast as its own, in RAM",
            faster,
            "x",
            f"at least {target}" if target else "none",
            target is None or faster >= target,
        )
    ours.close()


def learning(report: Report, directory: Path, steps: int, rounds: int) -> None:
    """Compare `model.learn`."""
    here = Path(__file__).resolve().parents[1]
    codes = {"ours": here, "theirs": here}
    found = take_turns(LEARNING, codes, rounds, str(directory / "learning"), str(steps), named=True)
    for name, seconds in found.items():
        report.times(f"Stable-Baselines3: DQN.learn, a step, {name}", seconds)
    speed = ratio(found["theirs"], found["ours"])
    report.row("Stable-Baselines3: steps a second of DQN.learn, against its own", speed, "x", "at least 0.95", speed >= 0.95)


def memory(report: Report, directory: Path, steps: int) -> None:
    """Compare memory, with a million steps on disk and next to none in RAM."""
    np.save(directory / "frames.npy", frames(96_000))
    bytes_of = {}
    for of in ("ours", "theirs"):
        command = [sys.executable, "-c", FILLING, of, str(directory / "memory"), str(steps), str(directory / "frames.npy")]
        bytes_of[of] = int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    more = (bytes_of["ours"] - bytes_of["theirs"]) / 1e6
    report.row(f"Stable-Baselines3: memory for {steps:,} stacked steps", more, "MB", "at most 150", more <= 150)


def main() -> None:
    """Run, print, and write."""
    options = arguments(__doc__ or "")
    report, quick = Report("adapters", options.seed), options.quick
    directory = Path(tempfile.mkdtemp())
    try:
        sampling(report, directory, 5_000 if quick else 30_000, 3 if quick else 15)
        learning(report, directory, 200 if quick else 1_000, 3 if quick else 7)
        memory(report, directory, 20_000 if quick else 1_000_000)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    report.write(options.json)


if __name__ == "__main__":
    main()
