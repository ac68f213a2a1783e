"""Replay buffers that Stable-Baselines3 has saved: pickles."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from diskbuffer.errors import SourceError
from diskbuffer.formats.continuity import runs
from diskbuffer.formats.rows import Joined, RowRange, Shaped, column_of
from diskbuffer.plugin import Contents, EpisodeData, Format, Rows, escape_key, require


class SB3Source:
    """Read what `save_replay_buffer` wrote: a ReplayBuffer, a DictReplayBuffer, or what inherits from them, HER's among them.

    All of it is in memory meanwhile, for that is how a pickle is read. Episodes begin with the oldest step of the ring.

    With ``optimize_memory_usage`` there are no final observations, for the next episode overwrote them; nor is there the oldest
    observation of a full ring, so its step is left out.

    Parameters
    ----------
    path : pathlib.Path
        The file.
    """

    def __init__(self, path: Path) -> None:
        require("stable_baselines3", "stable-baselines3", "sb3", "reading its replay buffers")
        self._path, self._buffer = path, _loaded(path)
        buffer = self._buffer
        self._compact = bool(buffer.optimize_memory_usage)
        self._dict = isinstance(buffer.observations, dict)
        space = buffer.observation_space
        self._obs: dict[str, tuple[npt.NDArray[Any], npt.NDArray[Any] | None, tuple[int, ...]]] = {}
        for key in buffer.observations if self._dict else [None]:
            now = buffer.observations if key is None else buffer.observations[key]
            following = None if self._compact else buffer.next_observations if key is None else buffer.next_observations[key]
            shape = _shape(space if key is None else space.spaces[key], now)
            self._obs["obs" if key is None else f"obs/{escape_key(str(key))}"] = (now, following, shape)
        size, n_envs = buffer.rewards.shape
        for array in [
            buffer.actions,
            buffer.dones,
            buffer.timeouts,
            *(one for now, then, _ in self._obs.values() for one in (now, then)),
        ]:
            if array is not None and array.shape[:2] != (size, n_envs):
                raise SourceError(f"{path}: its arrays should be of {size} steps of {n_envs} environments, found {array.shape}")
        if not 0 <= buffer.pos <= size:
            raise SourceError(f"{path}: its position should be below {size}, and is {buffer.pos}")
        oldest = buffer.pos % size if buffer.full else 0
        self._order = [(oldest, size), (0, oldest)] if buffer.full else [(0, buffer.pos)]
        if self._compact and buffer.full:
            self._order = [(oldest + 1, size), (0, oldest)]
        steps = sum(last - first for first, last in self._order)
        if not steps:
            raise SourceError(f"{path} has no steps")
        self._steps, self._n_envs = steps, n_envs
        columns = {name: column_of(rows, path, name) for name, rows in self._columns(0).items()}
        self.contents = Contents(columns, steps=steps * n_envs, n_envs=n_envs, final=not self._compact)
        self.losses: Mapping[str, str] = {}
        if any(info for row in getattr(buffer, "infos", ()) for info in row):
            self.losses = {"infos": "infos, which HER keeps with copy_info_dict"}

    def _columns(self, env: int) -> dict[str, Rows]:
        buffer = self._buffer
        obs = {name: Shaped(self._ring(now, env), shape) for name, (now, _, shape) in self._obs.items()}
        action = Shaped(self._ring(buffer.actions, env), _shape(buffer.action_space, buffer.actions))
        return {**obs, "action": action, "reward": self._ring(buffer.rewards, env)}

    def _ring(self, array: npt.NDArray[Any], env: int) -> Rows:
        return Joined([RowRange(array[:, env], first, last) for first, last in self._order])

    def episodes(self) -> Iterator[EpisodeData]:
        """Yield the episodes, environment by environment."""
        for env in range(self._n_envs):
            columns = self._columns(env)
            done = np.asarray(self._ring(self._buffer.dones, env)[: self._steps]) != 0
            timeout = np.asarray(self._ring(self._buffer.timeouts, env)[: self._steps]) != 0
            following = {
                name: self._following(then, shape, env) for name, (_, then, shape) in self._obs.items() if then is not None
            }
            for begin, end in runs(done, [(columns[name], rows) for name, rows in following.items()]):
                values: dict[str, Rows] = {name: RowRange(rows, begin, end) for name, rows in columns.items()}
                for name in self._obs:
                    last = self._last(name, following, env, end)
                    values[name] = values[name] if last is None else Joined([values[name], last])
                for flag, which in (("terminated", done & ~timeout), ("truncated", done & timeout)):
                    values[flag] = which[begin:end]
                yield EpisodeData(values, end - begin, stream=env)

    def _following(self, array: npt.NDArray[Any], shape: tuple[int, ...], env: int) -> Rows:
        return Shaped(self._ring(array, env), shape)

    def _last(self, name: str, following: Mapping[str, Rows], env: int, end: int) -> Rows | None:
        """Return the observation that an episode's last step led to; None where it is not known."""
        if not self._compact:
            return RowRange(following[name], end - 1, end)
        if end < self._steps:
            return None
        now, _, shape = self._obs[name]
        at = self._buffer.pos % len(now)  # where the newest step wrote it
        return Shaped(now[at : at + 1, env], shape)

    def close(self) -> None:
        """Release the buffer."""
        self._buffer = None


def _loaded(path: Path) -> Any:
    try:
        with path.open("rb") as file:
            buffer = pickle.load(file)
    except FileNotFoundError:
        raise SourceError(f"there is no file {path}") from None
    except Exception as error:
        raise SourceError(f"{path} cannot be read as a pickle of Stable-Baselines3: {type(error).__name__}: {error}") from error
    from stable_baselines3.common.buffers import ReplayBuffer

    if not isinstance(buffer, ReplayBuffer):
        raise SourceError(f"{path} has a {type(buffer).__name__}, and should have a ReplayBuffer of Stable-Baselines3")
    if not hasattr(buffer, "timeouts"):  # before version 1.3
        buffer.timeouts = np.zeros_like(buffer.dones)
    missing = [name for name in ("observations", "actions", "rewards", "dones", "pos", "full") if not hasattr(buffer, name)]
    if missing:
        raise SourceError(f"{path}: its {type(buffer).__name__} has no {', '.join(missing)}")
    return buffer


def _shape(space: Any, array: npt.NDArray[Any]) -> tuple[int, ...]:
    """Return the shape that values have in their space; in a buffer, actions are vectors, and so are numbers."""
    shape = tuple(space.shape)
    return shape if np.prod(shape) == np.prod(array.shape[2:]) else tuple(array.shape[2:])


SB3 = Format("sb3", "replay buffers that Stable-Baselines3 saved, .pkl", SB3Source, pickles=True)
