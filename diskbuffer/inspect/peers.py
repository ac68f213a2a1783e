"""What the replay buffers of other libraries would take for the same steps, from the shapes as those libraries allocate them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from diskbuffer import Column
from diskbuffer.plugin import is_observation

_FLOAT32, _FLOAT64 = 4, 8
_FLAGS = 3  # done, terminated, truncated: one byte each


@dataclass(frozen=True)
class Peer:
    """A buffer of another library, and the bytes of RAM and of disk that it takes once it is full."""

    name: str
    ram: int
    disk: int


def peers_of(columns: Mapping[str, Column], capacity: int, n_envs: int, frame_stack: int) -> list[Peer]:
    """Return what buffers of Stable-Baselines3, TorchRL and Tianshou would take for `capacity` steps.

    Parameters
    ----------
    columns : mapping of str to Column
        As a store has them: ``obs`` are single frames. What is neither observation, action nor reward is not counted: the
        libraries have no place for it.
    capacity, n_envs : int
    frame_stack : int
        Frames in an observation.
    """
    frame = sum(column.row_bytes for path, column in columns.items() if is_observation(path))
    obs = frame * frame_stack
    actions = [column for path, column in columns.items() if path.split("/")[0] == "action"]
    action = sum(column.row_bytes for column in actions)
    of_sb3 = max(capacity // n_envs, 1) * n_envs
    sb3_step = sum(_sb3_action(column) for column in actions) + 3 * _FLOAT32  # reward, done, timeout
    found = [Peer("Stable-Baselines3", of_sb3 * (2 * obs + sb3_step), 0)]
    if all(path == "obs" for path in columns if is_observation(path)):  # its DictReplayBuffer has no such option
        found.append(Peer("Stable-Baselines3, optimize_memory_usage", of_sb3 * (obs + sb3_step), 0))
    torchrl = capacity * (2 * obs + action + _FLOAT32 + 2 * _FLAGS)  # the flags are there twice: of obs, and of next obs
    tianshou = action + _FLOAT64 + _FLAGS
    found += [
        Peer("TorchRL, LazyTensorStorage", torchrl, 0),
        Peer("TorchRL, LazyMemmapStorage", 0, torchrl),
        Peer("Tianshou", capacity * (2 * obs + tianshou), 0),
    ]
    if frame_stack > 1:
        found.append(Peer("Tianshou, stack_num, ignore_obs_next", capacity * (frame + tianshou), 0))
    return found


def _sb3_action(column: Column) -> int:
    """Return the bytes of an action in Stable-Baselines3's arrays, which hold float64 as float32."""
    size = _FLOAT32 if column.np_dtype == np.float64 else column.np_dtype.itemsize
    return math.prod(column.shape) * size
