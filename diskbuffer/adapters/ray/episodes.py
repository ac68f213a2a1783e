"""RLlib's episodes on their way into a store: each one that is under way has a stream of its own."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import numpy.typing as npt

from diskbuffer import Column, ReplayBuffer
from diskbuffer.errors import SchemaError
from diskbuffer.plugin import Batch, SharedStore, escape_key


class Recording(SharedStore):
    """Record parts of episodes as they come. The first one tells what the columns are.

    Attributes
    ----------
    spaces : dict
        ``observation_space`` and ``action_space`` of the episodes, once one was added.
    """

    def __init__(self, path: str | os.PathLike[str], capacity: int, streams: int) -> None:
        super().__init__(path, n_envs=streams, autoreset="disabled")
        self._capacity, self._streams = capacity, streams
        self.spaces: dict[str, Any] = {}
        self._under_way: dict[str, int] = {}  # the stream of each episode, the one that was added to longest ago first
        self._begun, self._steps_gone = 0, 0  # episodes there were or began, and steps evicted when the store was opened
        self._evicted = (0, 0)  # episodes and steps since then, when it was asked last
        self.open_to_read()

    def accept(self, opened: ReplayBuffer) -> None:
        """Note what is there; a SchemaError where it is of another size."""
        if opened.capacity != self._capacity:
            raise SchemaError(
                f"{self.path} keeps {opened.capacity} steps, and {self._capacity} are asked for; give "
                f"capacity={opened.capacity}, or another path"
            )
        self._begun, self._steps_gone, self._evicted = len(opened.episodes), _gone(opened), (0, 0)

    def open_to_write(self, **how: Any) -> ReplayBuffer:
        """Open it for writing, as a store of this capacity."""
        return super().open_to_write(capacity=self._capacity, **how)

    def add(self, episode: Any) -> bool:
        """Record an episode, or the next part of one; return whether it is a new one."""
        if not self.spaces or not self.writes:
            self._open(episode)
        is_new, ends = episode.id_ not in self._under_way, (episode.is_terminated, episode.is_truncated)
        if not len(episode):
            return False
        stream = self._stream(episode.id_)
        flags = [np.arange(len(episode)) == (len(episode) - 1 if end else -1) for end in ends]
        self.opened.extend(
            obs=_stacked(episode.get_observations()),
            action=_stacked(episode.get_actions()),
            reward=np.asarray(episode.get_rewards(), np.float32),
            terminated=flags[0],
            truncated=flags[1],
            env=stream,
            new_episode=is_new,
        )
        self._begun += is_new
        if any(ends):
            del self._under_way[episode.id_]
        return is_new

    def _stream(self, episode: str) -> int:
        """Return the stream of an episode; of the one that is silent for longest, where there is none left."""
        stream = self._under_way.pop(episode, None)
        if stream is None:
            free = set(range(self._streams)) - set(self._under_way.values())
            stream = min(free) if free else self._under_way.pop(next(iter(self._under_way)))
        self._under_way[episode] = stream
        return stream

    def _open(self, episode: Any) -> None:
        self.spaces = {"observation_space": episode.observation_space, "action_space": episode.action_space}
        columns: dict[str, Any] = {}
        if None in self.spaces.values():
            obs, action = _stacked(episode.get_observations()), _stacked(episode.get_actions())
            columns = {"columns": {**_columns("obs", obs), **_columns("action", action)}}
        self.open_to_write(**(columns or self.spaces))

    def n_steps(self, steps: npt.NDArray[np.int64], n: int, gamma: float) -> Batch:
        """Return given steps with the discounted sum of `n` rewards, and the observation so much later."""
        return self.opened.at(steps, n_step=n, gamma=gamma)

    def episodes(self) -> int:
        """Return how many episodes there are steps of."""
        return self._begun - self.evicted()[0]

    def added(self) -> int:
        """Return how many steps were ever added."""
        buffer = self.open_to_read()
        return 0 if buffer is None else int(buffer.counts()[1].sum())

    def evicted(self) -> tuple[int, int]:
        """Return how many episodes and steps were evicted since the store was opened."""
        buffer = self.open_to_read()
        steps = 0 if buffer is None else _gone(buffer) - self._steps_gone
        if buffer is not None and steps != self._evicted[1]:  # if not, no episode went either, and counting them takes long
            self._evicted = self._begun - len(buffer.episodes), steps
        return self._evicted


def _gone(buffer: ReplayBuffer) -> int:
    """Return how many steps were evicted."""
    stored, ever = buffer.counts()
    return int((ever - stored).sum())


def step_of(value: Any, n: int) -> Any:
    """Return one of values along the first axis, of each part of a dict."""
    if isinstance(value, dict):
        return {name: step_of(part, n) for name, part in value.items()}
    return value[n]


def _stacked(values: Any) -> Any:
    """Return an array, or a dict of them, of a list of values or of what is one already."""
    if isinstance(values, dict):
        return {name: _stacked(part) for name, part in values.items()}
    if isinstance(values, list | tuple) and values and isinstance(values[0], dict):
        return {name: _stacked([value[name] for value in values]) for name in values[0]}
    return np.asarray(values)


def _columns(path: str, values: Any) -> dict[str, Column]:
    if isinstance(values, dict):
        columns: dict[str, Column] = {}
        for name, part in values.items():
            columns |= _columns(f"{path}/{escape_key(str(name))}", part)
        return columns
    return {path: Column(values.shape[1:], values.dtype.name)}
