"""The store behind a buffer of Tianshou's: which step is at which place of its rings, and reading them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from diskbuffer import ReplayBuffer
from diskbuffer.adapters.place_column import SLOT, pack, placements_of
from diskbuffer.adapters.tianshou.columns import EXTRA, FLAGS, arguments, columns_of, moved, to_read, written_as
from diskbuffer.errors import SchemaError
from diskbuffer.plugin import SharedStore, one_of

Array = npt.NDArray[Any]
Int64 = npt.NDArray[np.int64]


class Stored(SharedStore):
    """Rings of steps, one for each environment.

    Parameters
    ----------
    path : path-like
    size : int
        Places of each ring.
    n_envs : int
    stack_num : int
        Frames in an observation.
    **options
        Of `ReplayBuffer`.

    Attributes
    ----------
    next, filled : (n_envs,) int64
        Where each ring goes on, and how many of its places are filled.
    accepted : int
        How often these were loaded, rather than counted on.
    """

    def __init__(self, path: str | os.PathLike[str], size: int, n_envs: int, stack_num: int, **options: Any) -> None:
        super().__init__(path, autoreset="disabled", frame_stack=stack_num, padding="first", n_envs=n_envs, **options)
        self.size, self.n_envs, self.stack_num = size, n_envs, stack_num
        self.next, self.filled = np.zeros((2, n_envs), np.int64)
        self.accepted = 0
        self.open_to_read()

    def accept(self, opened: ReplayBuffer) -> None:
        """Find out where each ring is; a SchemaError where it is another buffer's."""
        ours = SLOT in opened.columns and opened.columns["reward"].np_dtype == np.float64  # and not TorchRL's
        if not ours or opened.capacity != self.size * self.n_envs:
            raise SchemaError(
                f"the store at {self.path} is another than was asked for: it has a capacity of {opened.capacity} steps and the "
                f"columns {', '.join(opened.columns)}, and {self.size * self.n_envs} steps were asked for. Give another path, or "
                "what it was made with"
            )
        self._extra = {path: column for path, column in opened.columns.items() if path.split("/")[0] in EXTRA}
        counts = np.minimum(opened.counts()[0], self.size)
        envs = np.flatnonzero(counts)
        self.accepted += 1
        self.filled[:], self.next[:] = counts, 0
        self.next[envs] = (placements_of(opened, opened.steps(np.zeros_like(envs), envs)).places + 1) % self.size

    def open_to_write(self, **how: Any) -> ReplayBuffer:
        """Open it for writing, as a store of this size."""
        return super().open_to_write(capacity=self.size * self.n_envs, capacity_each=True, **how)

    def begin(self, step: Mapping[str, Any], axes: int) -> None:
        """Open it for writing; make it for such steps, where there is none."""
        self.open_to_write(**({} if self.open_to_read() is not None else {"columns": columns_of(step, axes)}))

    def add(self, step: Mapping[str, Any], envs: Int64 | None) -> None:
        """Add a step of every ring, without an axis where there is one ring, or (n, ...) of some; it is open for writing."""
        opened = self.opened
        if envs is None or (len(envs) == self.n_envs and (envs == np.arange(self.n_envs)).all()):
            shape = () if envs is None and self.n_envs == 1 else (self.n_envs,)
            opened.add(**arguments(step, self._extra, shape), **{SLOT: pack(self.next)})
            self._move_on(range(self.n_envs))
            return
        steps = arguments(step, self._extra, (len(envs),))
        for n, env in enumerate(envs.tolist()):
            opened.extend(**one_of(steps, slice(n, n + 1)), **{SLOT: pack(self.next[[env]])}, env=env)
            self._move_on([env])

    def _move_on(self, envs: Iterable[int]) -> None:
        for env in envs:  # in numbers: of a few rings, arrays take some times as long
            self.next[env] = (self.next.item(env) + 1) % self.size
            self.filled[env] = min(self.filled.item(env) + 1, self.size)

    def reset(self) -> None:
        """Drop every step, for good; see `ReplayBuffer.clear`."""
        if self.open_to_read() is not None:
            self.open_to_write().clear()
        self.next[:], self.filled[:] = 0, 0

    def write(self, key: str, places: Int64, values: Array) -> None:
        """Write a key that was not recorded, of those steps at places that are there."""
        opened, present = self.open_to_write(), self.is_there(places)
        steps = opened.steps(*self._ages(places[present]))
        opened.columns.write(written_as(key), steps, np.ascontiguousarray(values[present]))

    def is_there(self, places: Int64) -> npt.NDArray[np.bool_]:
        """Return which places are filled."""
        return np.asarray(places % self.size < self.filled[places // self.size])

    def _ages(self, places: Int64) -> tuple[Int64, Int64]:
        """Return how many steps of its environment came after each, and the environment."""
        if self.n_envs == 1:
            return (self.next[0] - 1 - places) % self.size, np.zeros(len(places), np.int64)
        envs = places // self.size
        return (self.next[envs] - 1 - places % self.size) % self.size, envs

    def numbers(self, places: Int64) -> dict[str, Array]:
        """Return rewards and flags of steps at places, (n,), all of which are filled, by key."""
        ages, envs = self._ages(places)
        batch = self.opened.at(ages=ages, envs=envs, columns=("reward", *FLAGS), numpy=True)
        return {"rew": batch["reward"]} | {flag: batch[flag] for flag in FLAGS}

    def read(self, places: Int64, keys: tuple[str, ...] = ()) -> dict[str, Any]:
        """Return some keys of steps at places, (n,), or all but rewards and flags; observations in stacks."""
        opened = self.open_to_read()
        if opened is None or not self._are_there(places):
            raise IndexError(f"{self.path} has no steps at some of these places: {int(self.filled.sum())} steps were added")
        columns, moves = to_read(tuple(opened.columns), keys)
        ages, envs = self._ages(places)
        return moved(opened.at(ages=ages, envs=envs, columns=columns, numpy=True), moves)

    def _are_there(self, places: Int64) -> bool:
        if self.n_envs == 1:
            return not len(places) or bool(places.max() < self.filled[0])
        return bool(self.is_there(places).all())
