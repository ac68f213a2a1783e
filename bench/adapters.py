"""Our buffers for Stable-Baselines3, TorchRL and Tianshou beside their own, in one run: `sample`, `model.learn`, and memory.

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

STACK, EACH, EPISODE = 4, 32, 500

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
    for size, target in ((256, 1.5), (32, None)):
        named = "Stable-Baselines3", "ReplayBuffer", "DiskReplayBuffer"
        compare(report, *named, theirs.sample, ours.sample, rounds, target, size)
    ours.close()


def sampling_torchrl(report: Report, directory: Path, steps: int, rounds: int) -> None:
    """Compare `sample`, of TorchRL from memory-mapped files and of ours: stacks of four frames, and those after them."""
    import torch
    from tensordict import TensorDict
    from torchrl.data import LazyMemmapStorage, TensorDictReplayBuffer

    from diskbuffer.adapters.torchrl import DiskStorage

    pixels, storage = frames(steps + 1), DiskStorage(steps, directory / "torchrl", frame_stack=STACK)
    ours = TensorDictReplayBuffer(storage=storage, batch_size=256)
    theirs = TensorDictReplayBuffer(storage=LazyMemmapStorage(steps, scratch_dir=str(directory / "memmap")), batch_size=256)
    for first in range(0, steps - EPISODE + 1, EPISODE):
        stacks = torch.from_numpy(stacks_of(pixels[first : first + EPISODE + 1]))
        done, flag = torch.zeros(EPISODE, 1, dtype=torch.bool), torch.zeros(EPISODE, 1, dtype=torch.bool)
        done[-1] = True
        following = {"pixels": stacks[1:], "reward": torch.ones(EPISODE, 1), "done": done, "terminated": done.clone()}
        now = {
            "pixels": stacks[:-1],
            "action": torch.arange(EPISODE) % 6,
            "done": flag,
            "terminated": flag.clone(),
        }
        for buffer in (ours, theirs):
            buffer.extend(TensorDict(now | {"next": following}, [EPISODE]))
    storage.stored.opened.seal()
    compare(report, "TorchRL", "LazyMemmapStorage", "DiskStorage", theirs.sample, ours.sample, rounds, 2)
    storage.close()


def sampling_tianshou(report: Report, directory: Path, steps: int, rounds: int) -> None:
    """Compare `sample`, of Tianshou from RAM and of ours: single frames that are stacked when they are drawn."""
    from tianshou.data import Batch, ReplayBuffer

    from diskbuffer.adapters.tianshou import DiskReplayBuffer

    pixels = frames(steps + 1)
    ours = DiskReplayBuffer(steps, path=directory / "tianshou", stack_num=STACK, ignore_obs_next=True)
    theirs = ReplayBuffer(steps, stack_num=STACK, ignore_obs_next=True)
    for t in range(steps):
        last = t % EPISODE == EPISODE - 1
        step = Batch(obs=pixels[t], act=t % 6, rew=1.0, terminated=last, truncated=False, obs_next=pixels[t + 1], info={})
        for buffer in (ours, theirs):
            buffer.add(step)
    assert ours.stored.buffer is not None
    ours.stored.buffer.seal()
    compare(report, "Tianshou", "ReplayBuffer", "DiskReplayBuffer", theirs.sample, ours.sample, rounds, 2)
    ours.close()


def stacks_of(pixels: Frames) -> Frames:
    """Return the stack at each frame of an episode, (n, 4, 84, 84)."""
    padded = np.concatenate([np.repeat(pixels[:1], STACK - 1, axis=0), pixels])
    return np.stack([padded[n : n + len(pixels)] for n in range(STACK)], axis=1)


def compare(
    report: Report, library: str, its: str, name: str, theirs: Any, ours: Any, rounds: int, target: float | None, size: int = 256
) -> None:
    """Time batches of both in turn."""
    found = in_turn(rounds, {"ours": ours, "theirs": theirs}, lambda: size, EACH)
    report.times(f"{library}: sample({size}), {name}", found["ours"])
    report.times(f"{library}: sample({size}), {its}", found["theirs"])
    faster = ratio(found["theirs"], found["ours"], EACH)
    wanted = f"at least {target}" if target else "none"
    report.row(f"{library}: sample({size}), times as fast as {its}", faster, "x", wanted, target is None or faster >= target)


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
        for part in (sampling, sampling_torchrl, sampling_tianshou):
            part(report, directory, 5_000 if quick else 30_000, 3 if quick else 15)
        learning(report, directory, 200 if quick else 1_000, 3 if quick else 7)
        memory(report, directory, 20_000 if quick else 1_000_000)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    report.write(options.json)


if __name__ == "__main__":
    main()
