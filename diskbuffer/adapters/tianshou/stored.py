"""The store behind a buffer of Tianshou's: which step is at which place of its rings, and reading them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from tianshou.data import Batch

from diskbuffer import ReplayBuffer
from diskbuffer.adapters.place_column import OURS, SLOT, pack, told_by
from diskbuffer.adapters.tianshou.columns import (
    FLAGS,
    MINE,
    TOP,
    columns_of,
    flatten,
    given,
    key_of,
    nested,
    put_together,
    written_as,
)
from diskbuffer.errors import InputError, SchemaError
from diskbuffer.plugin import KEPT, SharedStore, is_observation, put, unescape_key, value_at

Array = npt.NDArray[Any]
Int64 = npt.NDArray[np.int64]
_AT_ONCE = 4096  # steps
_NEEDED = {*TOP, *FLAGS, "obs_next"}  # keys of a step that `add_plainly` takes
_PLAIN = {*_NEEDED, *MINE, "done"}


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
        self.has_next = True
        self._empty: list[str] = []  # keys that were given, and have no columns
        self._wanted_of: tuple[str, ...] = ()  # columns of which `_wanted` are those that `rows_without` reads
        self._is_plain = False  # the last step, so that `add_plainly` may do
        self._wanted, self._known = tuple[str, ...](), set[str]()
        self._read = tuple[tuple[str, str, tuple[str, ...]], ...]()  # with what came after
        self.open_to_read()

    def accept(self, opened: ReplayBuffer) -> None:
        """Find out where each ring is; a SchemaError where it is another buffer's."""
        self._is_plain = False
        ours = SLOT in opened.columns and opened.columns["reward"].np_dtype == np.float64  # and not TorchRL's
        if not ours or opened.capacity != self.size * self.n_envs:
            raise SchemaError(
                f"{self.path} keeps {opened.capacity} steps in the columns {list(opened.columns)}, and a buffer of "
                f"{self.size * self.n_envs} steps is asked for; give another path, or what it was made with"
            )
        there = np.minimum(opened.counts()[0], self.size)
        envs = np.flatnonzero(there)
        newest = told_by(opened, opened.steps(np.zeros_like(envs), envs))
        self.has_next = not newest.extra.any()
        self.accepted += 1
        self.filled[:], self.next[:] = there, 0
        self.next[envs] = (newest.places + 1) % self.size

    def open_to_write(self, **how: Any) -> ReplayBuffer:
        """Open it for writing, as a store of this size."""
        return super().open_to_write(capacity=self.size * self.n_envs, capacity_each=True, **how)

    # Writing

    def add(self, batch: Mapping[str, Any], envs: Int64) -> None:
        """Add one step, (n, ...), to each of some rings, of a store that is open for writing."""
        found = flatten(batch)
        self._empty = [key for key in MINE if key in batch]
        self._complete(found)
        opened = self.opened
        derived = opened.columns.derived
        rows = given(found, {path: column for path, column in opened.columns.items() if path not in derived})
        rows |= {flag: np.asarray(batch[flag]).astype(bool).reshape(len(envs)) for flag in FLAGS}
        new_episode = None if self.has_next else True  # nobody knows what came after a step, so each is an episode of its own
        rows[SLOT] = pack(self.next[envs], int(not self.has_next))
        if len(envs) == self.n_envs and (envs == np.arange(self.n_envs)).all():
            opened.add(**_arguments(rows), new_episode=new_episode)
        else:
            for n, env in enumerate(envs.tolist()):
                step = _arguments({path: values[n : n + 1] for path, values in rows.items()})
                opened.extend(**step, env=env, new_episode=new_episode)
        self._move_on(envs)
        recorded = {path: column for path, column in opened.columns.items() if path not in (*derived, *OURS)}
        is_plain = self.has_next and recorded.keys() == set(TOP.values()) and not recorded["reward"].shape
        self._is_plain = is_plain

    def _move_on(self, envs: Any) -> None:
        self.next[envs] = (self.next[envs] + 1) % self.size
        self.filled[envs] = np.minimum(self.filled[envs] + 1, self.size)

    def add_plainly(self, batch: Mapping[str, Any]) -> bool:
        """Add a step of every ring, without an axis where there is one ring; return whether that could be done.

        That is where keys are those of the step before, the columns those of one observation and one action, and nothing but
        rewards is to be converted.
        """
        if not self._is_plain or not self._writes:
            return False
        if not (_NEEDED <= batch.keys() <= _PLAIN) or [key for key in MINE if key in batch] != self._empty:
            return False
        for key in self._empty:
            if batch[key].__class__ is not Batch or batch[key].__dict__:
                return False
        rew, terminated, truncated = batch["rew"], batch["terminated"], batch["truncated"]
        axes = () if self.n_envs == 1 else (self.n_envs,)
        if not (_is(rew, axes, "fiu") and _is(terminated, axes, "b") and _is(truncated, axes, "b")):
            return False
        rew = rew.astype(np.float64)
        assert self._buffer is not None
        slots = {SLOT: pack(self.next)}
        try:
            self._buffer.add(batch["obs"], batch["act"], rew, batch["obs_next"], terminated, truncated, **slots)
        except InputError:  # which `add` tells of in Tianshou's terms, where it cannot do it either
            return False
        self._move_on(slice(None))
        return True

    def _complete(self, found: dict[str, Array]) -> None:
        """Put something after each step where nobody told what came; `has_next` tells that it means nothing."""
        self.has_next = any(path.split("/")[0] == "next_obs" for path in found)
        if not self.has_next:
            found |= {"next_" + path: values for path, values in found.items() if path.split("/")[0] == "obs"}

    def begin(self, batch: Mapping[str, Any]) -> None:
        """Open it for writing; make it for such steps, where there is none."""
        if self.open_to_read() is not None:
            self.open_to_write()
            return
        found = flatten(batch)
        self._complete(found)
        self.open_to_write(columns=columns_of(found))

    def reset(self) -> None:
        """Drop every step, for good; see `ReplayBuffer.clear`."""
        if self.open_to_read() is not None:
            self.open_to_write().clear()
        self.next[:], self.filled[:] = 0, 0

    def write(self, key: str, places: Int64, values: Array) -> None:
        """Write a key that was not recorded, of steps at places."""
        if key in (*TOP, *FLAGS, *MINE, "done", "obs_next") or (key in self.keys() and key not in self._later()):
            raise InputError(f"{key!r} was recorded with the steps, and is not changed; write under another key")
        there, opened = self.is_there(places), self.open_to_write()
        for first in range(0, len(places), _AT_ONCE):
            some = slice(first, first + _AT_ONCE)
            steps = self.steps(places[some][there[some]])
            opened.columns.write(written_as(key), steps, np.ascontiguousarray(values[some][there[some]]))

    # Reading

    def _later(self) -> list[str]:
        """Return the keys that were written later."""
        opened = self.open_to_read()
        if opened is None:
            return []
        derived = opened.columns.derived
        return [key_of(path) for path in opened.columns if path in derived]

    def keys(self) -> list[str]:
        """Return the keys that steps have, flags apart."""
        opened = self.open_to_read()
        if opened is None:
            return []
        found = dict.fromkeys(key_of(path) for path in opened.columns if path not in OURS)
        return [*found, *(key for key in self._empty if key not in found), *(["obs_next"] if self.has_next else [])]

    def _ages(self, places: Int64) -> tuple[Int64, Int64]:
        """Return how many steps of its environment came after each, and the environment."""
        envs = places // self.size
        return (self.next[envs] - 1 - places % self.size) % self.size, envs

    def ever(self) -> Int64:
        """Return how many steps each ring has ever had."""
        opened = self.open_to_read()
        return np.zeros(self.n_envs, np.int64) if opened is None else opened.counts()[1].copy()

    def is_there(self, places: Int64) -> npt.NDArray[np.bool_]:
        """Tell which places are filled."""
        return np.asarray(places % self.size < self.filled[places // self.size])

    def are_there(self, places: Int64) -> bool:
        """Tell whether all places are filled."""
        if self.n_envs == 1:
            return not len(places) or bool(places.max() < self.filled[0])
        return bool(self.is_there(places).all())

    def steps(self, places: Int64) -> Int64:
        """Return the names of steps at places."""
        opened = self.opened
        return np.asarray(opened.steps(*self._ages(places)))

    def read(self, key: str, places: Array) -> Any:
        """Return a key of steps at places, of any shape; zeros where there is none yet."""
        flat = np.asarray(places).ravel()
        opened = self.open_to_read()
        top = {"obs_next": "obs"}.get(key, key)
        paths = [path for path in ([] if opened is None else opened.columns) if path in FLAGS or path not in OURS]
        paths = [path for path in paths if key_of(path) == top]
        found: dict[tuple[str, ...], Any] = {}
        for path in paths:
            values = self._column(path, "next_" + path if key == "obs_next" else path, flat)
            found[nested(path)] = values.reshape((*np.shape(places), *values.shape[1:]))
        return put_together(found)

    def _column(self, path: str, name: str, places: Int64) -> Array:
        opened = self.opened
        column, there = opened.columns[path], np.flatnonzero(self.is_there(places))
        values = np.zeros((len(places), *column.shape), column.np_dtype)
        for first in range(0, len(there), _AT_ONCE):
            some = there[first : first + _AT_ONCE]
            ages, envs = self._ages(places[some])
            got: Any = opened.at(ages=ages, envs=envs, columns=[path], numpy=True)
            got = value_at(got, name)
            values[some] = got[:, -1] if path.split("/")[0] == "obs" and self.stack_num > 1 else got
        return values

    def numbers(self, places: Int64) -> dict[str, Array]:
        """Return rewards and flags of steps at places, (n,), all of which are filled, by key."""
        paths = ("reward", *FLAGS)
        ages, envs = self._ages(places)
        batch = self.opened.at(ages=ages, envs=envs, columns=paths, numpy=True)
        return {key_of(path): batch[path] for path in paths}

    def rows_without(self, places: Int64, known: Mapping[str, Any]) -> dict[str, Any]:
        """Return the keys of steps at places, (n,), all of which are filled and observations single frames, but for `known`."""
        opened = self.opened
        if opened.frame_stack > 1:
            return self.rows(places, of_next=True)
        delivered = tuple(opened.columns)
        if self._wanted_of != delivered or self._known != known.keys():
            self._wanted_of, self._known = delivered, set(known)
            left_out = (*OURS, *KEPT, *(column for key, column in TOP.items() if key in known))
            self._wanted = tuple(path for path in delivered if path not in left_out)
            read = (*self._wanted, *(f"next_{path}" for path in self._wanted if is_observation(path)))
            self._read = tuple(map(_place_of, read))
        if self.n_envs == 1:
            ages, envs = (int(self.next[0]) - 1 - places) % self.size, np.zeros(len(places), np.int64)
        else:
            ages, envs = self._ages(places)
        batch = opened.at(ages=ages, envs=envs, columns=self._wanted, numpy=True)
        keys: dict[str, Any] = {}
        dicts: dict[str, dict[tuple[str, ...], Any]] = {}
        for name, key, where in self._read:
            if where:
                dicts.setdefault(key, {})[where] = value_at(batch, name)
            else:
                keys[key] = batch[name]
        for key, values in dicts.items():
            keys[key] = put_together(values)
        return keys

    def rows(self, places: Int64, *, of_next: bool) -> dict[str, Any]:
        """Return all keys of steps at places, (n,), all of which are filled; observations in stacks.

        `of_next` tells that the stack of what came after a step is that of the next step; if not, it is made of what came after
        each of the steps before, as Tianshou has it.
        """
        opened = self.opened
        ages, envs = self._ages(places)
        batch = opened.at(ages=ages, envs=envs, numpy=True)
        paths = [path for path in opened.columns if path not in (*OURS, *KEPT)]
        paths += ["next_" + path for path in paths if is_observation(path)]
        flat = {path: value_at(batch, path) for path in paths}
        if self.stack_num > 1:
            elapsed, left = opened.episodes.elapsed(batch["steps"]), self.filled[envs] - 1 - ages
            for path, values in flat.items():
                top = path.split("/")[0]
                if top == "obs" or (top == "next_obs" and of_next):  # which begin with their episode anyway
                    since = np.where(left < elapsed, left, self.stack_num) + (top == "next_obs")
                    flat[path] = _begun(values, since)
                elif top == "next_obs":
                    flat[path] = _begun(values, np.minimum(elapsed, left))
        keys: dict[str, dict[tuple[str, ...], Any]] = {}
        for path, values in flat.items():
            is_next = path.split("/")[0] == "next_obs"
            keys.setdefault("obs_next" if is_next else key_of(path), {})[nested(path)] = values
        return {key: put_together(values) for key, values in keys.items()}


def _is(values: Any, shape: tuple[int, ...], kinds: str) -> bool:
    """Tell whether values are an array of a shape, and of a dtype of some kinds."""
    return values.__class__ is np.ndarray and values.shape == shape and values.dtype.kind in kinds


def _begun(stacks: Array, since: Int64) -> Array:
    """Fill stacks, (n, stack, ...), up with their oldest frame that is `since` steps old at most."""
    size = stacks.shape[1]
    short = np.flatnonzero(since < size - 1)
    if not len(short):
        return stacks
    found = stacks.copy()
    for n in short.tolist():
        first = size - 1 - int(since[n])
        found[n, :first] = found[n, first]
    return found


def _place_of(path: str) -> tuple[str, str, tuple[str, ...]]:
    """Return where an array is in a batch, of which key it is, and where below that.

    By its column's path, ``next_`` before that of what came after. An array that is in no dict is found by its own key.
    """
    where = nested(path)
    key = {"obs": "obs", "next_obs": "obs_next"}.get(path.split("/")[0]) or key_of(path)
    return path if where else unescape_key(path), key, where


def _arguments(rows: Mapping[str, Array]) -> dict[str, Any]:
    """Return columns as arguments of `add` and `extend`: those of an observation in dicts."""
    found: dict[str, Any] = {}
    for path, values in rows.items():
        if path.split("/")[0] in ("obs", "next_obs", "action", "reward"):
            put(found, path, values)
        else:
            found[path] = values
    return found
