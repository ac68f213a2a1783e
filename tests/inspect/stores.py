"""Small stores to look at, and what must be in them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import diskbuffer as db

COLUMNS = {"obs": db.Column((36, 40), "uint8"), "action": db.Column((), "int64")}
EXTRA = {"log_prob": db.Column((), "float32")}


def frames_of(episode: int, length: int) -> npt.NDArray[np.uint8]:
    """Return (length + 1, 36, 40) frames, no two alike: a lit row says how far the episode is, the upper left which it is."""
    frames = np.full((length + 1, 36, 40), 40, np.uint8)
    for n, frame in enumerate(frames):
        frame[4 + n % 32] = 200
        frame[:3, :3] = episode % 256
        frame[0, -1], frame[1, -1] = n % 256, n // 256
    return frames


def add_episode(buffer: db.ReplayBuffer, episode: int, length: int, env: int = 0, *, terminated: bool = True) -> None:
    """Add an episode: rewards are 0, but for the last, which is the episode's number."""
    reward = np.zeros(length, np.float32)
    reward[-1] = episode
    ends = np.zeros(length, np.bool_)
    ends[-1] = True
    buffer.extend(
        obs=frames_of(episode, length),
        action=np.arange(length) % 4,
        reward=reward,
        terminated=ends if terminated else ~ends & ends,
        truncated=ends & (not terminated),
        log_prob=-np.arange(length, dtype=np.float32) / 8,
        env=env,
    )


def make_store(path: Path, lengths: tuple[int, ...] = (30, 45, 20, 60), **options: Any) -> Path:
    """Make a store of episodes of these lengths, every third of which is truncated, with stacks of four frames."""
    options = {"columns": COLUMNS, "extra": EXTRA, "frame_stack": 4, **options}
    with db.ReplayBuffer(path, **options) as buffer:
        for episode, length in enumerate(lengths):
            add_episode(buffer, episode, length, episode % buffer.n_envs, terminated=episode % 3 != 2)
    return path
