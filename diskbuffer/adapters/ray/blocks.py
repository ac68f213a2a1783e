"""Steps that `add` was given one by one, until there are enough of them to be sent together."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from diskbuffer.errors import InputError

Ready = tuple[int, int, dict[str, Any], Any]  # the environment, how many steps, their values, and which begin episodes


class Blocks:
    """Collect the steps of each environment.

    Parameters
    ----------
    envs : int
    size : int
        Of a block.
    """

    def __init__(self, envs: int, size: int) -> None:
        self._envs, self._size = envs, size
        self._held: list[list[tuple[dict[str, Any], Any]]] = [[] for _ in range(envs)]

    @property
    def held(self) -> int:
        """How many steps are held."""
        return sum(map(len, self._held))

    def add(self, values: dict[str, Any], new_episode: Any) -> Iterator[Ready]:
        """Take a step of each environment; yield the blocks that are complete."""
        episode_starts = np.broadcast_to(np.asarray(new_episode, object), self._envs) if self._envs > 1 else [new_episode]
        for env in range(self._envs):
            self._held[env].append((_copied(values, env if self._envs > 1 else None), episode_starts[env]))
            if len(self._held[env]) >= self._size:
                yield from self.take(env)

    def take(self, env: int) -> Iterator[Ready]:
        """Yield what is held of an environment: within a block the caller either said where episodes begin, or did not."""
        held, self._held[env] = self._held[env], []
        first = 0
        for n in range(1, len(held) + 1):
            if n == len(held) or (held[n][1] is None) != (held[first][1] is None):
                part = held[first:n]
                episode_starts = None if part[0][1] is None else np.array([bool(new) for _, new in part])
                yield env, len(part), _stacked([values for values, _ in part]), episode_starts
                first = n


def count_steps(values: dict[str, Any]) -> int:
    """Return how many steps arrays are of; an InputError where that is not to be told."""
    name = next((name for name in ("action", "reward") if name in values), None)
    if name is None:
        raise InputError("extend needs the actions and rewards of the steps")
    column = values[name]
    while isinstance(column, dict):
        column = next(iter(column.values()))
    return len(column)


def _copied(value: Any, env: int | None) -> Any:
    if isinstance(value, dict):
        return {name: _copied(part, env) for name, part in value.items()}
    return np.array(value) if env is None else np.array(value[env])


def _stacked(steps: list[Any]) -> Any:
    if isinstance(steps[0], dict):
        return {name: _stacked([step[name] for step in steps]) for name in steps[0]}
    return np.stack(steps)
