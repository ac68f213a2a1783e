"""What Tianshou's buffers do with memory, done with a store."""

from __future__ import annotations

import copy
import inspect
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
from tianshou.data import Batch, ReplayBuffer

from diskbuffer.adapters.on_disk import on_disk
from diskbuffer.adapters.tianshou.columns import EXTRA, FLAGS, NEEDED
from diskbuffer.adapters.tianshou.stored import Stored
from diskbuffer.errors import InputError
from diskbuffer.plugin import integer, integer_or_none

Array = npt.NDArray[Any]
Int64 = npt.NDArray[np.int64]
_AT_ONCE = 65_536  # steps


class InMemory:
    """Rewards and flags, which Tianshou's compiled code looks at, where its buffers have everything: in `_meta`."""

    def __getitem__(self, key: object) -> Any:
        if isinstance(key, str) and key in self.__dict__:
            return self.__dict__[key]
        raise KeyError(on_disk(type(self), key))

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(on_disk(type(self), name))

    def __setattr__(self, name: str, value: Any) -> None:
        """Replace values for a while, as algorithms of several agents do with rewards."""
        if name not in ("rew", "done", *FLAGS):
            raise InputError(f"{name!r} is on disk, and not changed; write under another key, with set_array_at_key")
        super().__setattr__(name, value)


def _check(cls: type, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raise an InputError where arguments are not Tianshou's, which ignores those that it does not know, or a size is below 1."""
    takes: dict[str, None] = {}
    for base in reversed(cls.__mro__):
        if base.__module__.startswith("tianshou.") and "__init__" in vars(base):
            own = inspect.signature(base.__init__)  # type: ignore[misc]
            named = [name for name, one in own.parameters.items() if one.kind is one.POSITIONAL_OR_KEYWORD]
            takes |= dict.fromkeys(named[1:])
    if strange := kwargs.keys() - takes.keys():
        ours = "path, threads, segment_rows, codec, metadata"
        raise InputError(f"{cls.__name__} takes no {min(strange)}=; it takes {ours}, {', '.join(takes)}")
    for name, value in own.bind_partial(None, *args, **kwargs).arguments.items():
        if name in ("size", "total_size", "buffer_num"):
            integer(name, value)


class StoreBacked:
    """What Tianshou's classes do with memory, done with a store; the drawing is theirs."""

    stored: Stored
    maxsize: int
    stack_num: int
    _indices: Int64
    _save_only_last_obs: bool
    _meta: Any
    last_index: Any
    _ep_return: Any
    _ep_len: Any
    _ep_start_idx: Any

    def __init__(
        self,
        *args: Any,
        path: str | os.PathLike[str] = "",
        threads: int | None = None,
        segment_rows: int | None = None,
        codec: str | Mapping[str, str] | None = None,
        metadata: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        if not path:
            raise InputError(f"{type(self).__name__} needs path=, the directory of its store", option="path")
        _check(type(self), args, kwargs)
        super().__init__(*args, **kwargs)
        n_envs, stack_num = len(self._rings()), integer("stack_num", self.stack_num)
        how = {"threads": threads, "segment_rows": segment_rows, "codec": codec, "metadata": metadata}
        self.stored = Stored(path, self.maxsize // n_envs, n_envs, stack_num, **how)
        self._load()

    def _rings(self) -> list[Any]:
        """Return Tianshou's buffers of single environments, which keep account: this one, where it is no vector buffer."""
        rings: list[Any] = self.__dict__.get("buffers", [self])
        return rings

    def _load(self) -> None:
        """Be where the store is: rewards, flags, and Tianshou's account of every ring."""
        stored = self.stored
        self._accepted, self._meta = stored.accepted, InMemory()
        vars(self._meta).update({name: np.zeros(self.maxsize, np.bool_) for name in (*FLAGS, "done")})
        for first in range(0, self.maxsize, _AT_ONCE) if stored.filled.any() else ():
            places = np.arange(first, min(first + _AT_ONCE, self.maxsize))
            places = places[stored.is_there(places)]
            for key, values in stored.numbers(places).items():
                self._in_memory(key, values)[places] = values
        done = np.logical_or(self._meta.terminated, self._meta.truncated, out=self._meta.done)
        for env, ring in enumerate(self._rings()):
            size, filled, ring._insertion_idx = stored.size, int(stored.filled[env]), int(stored.next[env])
            newest = (ring._insertion_idx - 1) % size if filled else 0
            ring._size, ring.last_index[0] = filled, newest
            if ring is not self:
                ring._meta = InMemory()
                ring._meta.done = done[env * size : (env + 1) * size]
                self._lengths[env], self.last_index[env] = filled, newest + env * size
            order = (newest - np.arange(filled)) % size + env * size
            ended = np.flatnonzero(done[order])
            length = int(ended[0]) if len(ended) else filled  # of the episode that runs
            ring._ep_len, ring._ep_start_idx = length, (ring._insertion_idx - length) % size
            # Added one by one, as Tianshou has it.
            ring._ep_return = np.cumsum(self._meta.rew[order[:length][::-1]], axis=0)[-1] if length else 0.0

    def _in_memory(self, key: str, values: Sequence[Any] | Array) -> Array:
        """Return all values of rewards or a flag; zeros, where there were none before such values of steps, (n, ...)."""
        memory: dict[str, Array] = vars(self._meta)
        if key not in memory:
            memory[key] = np.zeros((self.maxsize, *np.shape(values)[1:]))
        return memory[key]

    def _settle(self) -> None:
        """Be where the store is, if it was opened again: a copy of this buffer may have added to it, or dropped its steps."""
        self.stored.open_to_read()
        if self.stored.accepted != self._accepted:
            self._load()

    # Writing

    def add(self, batch: Any, buffer_ids: Any = None) -> tuple[Array, Array, Array, Array]:
        """Add a step, or one for each environment; when this returns, a kill of the process does not lose it.

        Arguments and results are Tianshou's. Keys that Tianshou does not reserve are left out.
        """
        step = dict(vars(batch))
        if missing := [key for key in NEEDED if key not in step]:
            raise InputError(f"Input batch must have the following keys: {NEEDED}; {missing} are missing")
        alone = buffer_ids is None and "buffers" not in self.__dict__
        envs = None if buffer_ids is None else np.asarray(buffer_ids, np.int64)
        count = 1 if alone else self.stored.n_envs if envs is None else len(envs)
        if not alone and np.shape(step["rew"])[:1] != (count,):
            raise InputError(f"expected a step of each of {count} environments, found rewards of shape {np.shape(step['rew'])}")
        for key in ("obs", "obs_next") if self._save_only_last_obs else ():
            step[key] = step[key][-1] if alone else step[key][:, -1]
        return self._add(step, range(count) if envs is None else envs.tolist(), envs, 0 if alone else 1)

    def _add(self, step: dict[str, Any], rings: Any, envs: Int64 | None, axes: int) -> tuple[Array, Array, Array, Array]:
        """Add a step of some rings, with an axis of them or none, whose observations are what is stored."""
        with self.stored.lock:
            if not self.stored.writes:
                self.stored.begin(step, axes)
                self._settle()
            try:
                self.stored.add(step, envs)
                numbers: list[Any] = [np.asarray(step[key]) for key in ("rew", *FLAGS)]
                return self._note_added(numbers if axes else [[value[()]] for value in numbers], rings)
            except BaseException:  # the disk may be full; a Ctrl-C may come at any instant
                self.stored.reload()
                self._settle()
                raise

    def _note_added(self, numbers: Sequence[Sequence[Any]], envs: Iterable[int]) -> tuple[Array, Array, Array, Array]:
        """Keep account, as Tianshou does, of a step that was added to some rings: rewards and both flags, each of every ring."""
        rings, memory, added = self._rings(), self._meta, []
        rewards = self._in_memory("rew", numbers[0])
        for env, reward, terminated, truncated in zip(envs, *numbers, strict=True):
            ring, first, done = rings[env], env * self.stored.size, terminated | truncated
            place, ep_return, ep_len, start = ring._update_state_pre_add(reward, done)
            place += first
            added.append((place, ep_return, ep_len, start + first))
            if ring is not self:
                self.last_index[env] = place
                self._lengths[env] = ring._size
            rewards[place], memory.done[place] = reward, done
            memory.terminated[place], memory.truncated[place] = terminated, truncated
        places, returns, lengths, starts = map(np.array, zip(*added, strict=True))
        return places, returns, lengths, starts

    def update(self, buffer: Any) -> Array:
        """Add all steps of another buffer, such as one of Tianshou's own; they do not count for the episode that runs."""
        if "buffers" in self.__dict__:
            raise InputError(f"a {type(self).__name__} takes no other buffer over: add its steps, with the environments' numbers")
        stack_num, buffer.stack_num = buffer.stack_num, 1
        kept = copy.copy(self._ep_return), self._ep_len, self._ep_start_idx  # an array is added to in place
        try:
            steps = (dict(vars(buffer[place])) for place in buffer.sample_indices(0).tolist())
            return np.array([self._add(step, [0], None, 0)[0][0] for step in steps], int)
        finally:
            buffer.stack_num = stack_num
            self._ep_return, self._ep_len, self._ep_start_idx = kept

    def set_array_at_key(self, seq: Any, key: str, index: Any = None, default_value: float | None = None) -> None:
        """Write a key of some steps, or of all, such as advantages; it is a column of the store, and zero elsewhere."""
        if key in ReplayBuffer._reserved_keys:
            raise InputError(f"{key!r} was recorded with the steps, and is not changed; write under another key")
        if default_value:
            raise InputError(f"default_value={default_value}: a key that is written later is zero where nothing was written")
        values, places = np.asarray(seq), self._indices[slice(None) if index is None else index]
        if len(values) != len(places):
            raise InputError(f"{key}: {len(values)} values for {len(places)} steps; for some of them give an index")
        with self.stored.lock:
            self.stored.open_to_write()
            self._settle()
            self.stored.write(key, places, values)

    def reset(self, keep_statistics: bool = False) -> None:
        """Drop every step, of the store as well, for good: `stored.buffer` has those of the next rollout only.

        A LockedError where another process writes to the store. Takes some milliseconds.
        """
        with self.stored.lock:
            self._settle()
            self.stored.reset()
            self._accepted = self.stored.accepted  # which may have been opened for writing, and has no steps to load
            super().reset(keep_statistics)  # type: ignore[misc]

    def flush(self) -> None:
        """Sync every step to the disk, against a power loss; a kill of the process loses nothing in any case."""
        self.stored.flush()

    def close(self) -> None:
        """Close the store, and let others write to it."""
        self.stored.close()

    # Reading

    def __getitem__(self, index: Any) -> Any:
        """Return steps as a Batch."""
        with self.stored.lock:  # or another thread could add between what is in memory and what is read
            self._settle()
            return self._at(index)

    def _at(self, index: Any, keys: tuple[str, ...] = ()) -> Any:
        places = np.asarray(self._indices[self._without_slices(index)])
        flat = places.ravel()
        arrays = self.stored.read(flat, keys)
        if self.stack_num != self.stored.stack_num:
            arrays |= {key: self._newest(arrays[key], self.stack_num) for key in ("obs", "obs_next") if key in arrays}
        arrays |= {key: values.take(flat, axis=0) for key, values in vars(self._meta).items() if not keys or key in keys}
        arrays |= {key: Batch() for key in EXTRA if key not in arrays and not keys}
        batch = Batch()
        batch.__dict__.update(arrays)  # all are what Tianshou would make of them
        if places.ndim == 1:
            return batch
        return batch.apply_values_transform(lambda values: values.reshape((*places.shape, *values.shape[1:]))[()])

    def _without_slices(self, index: Any) -> Any:
        """Return the places of a slice, as Tianshou has them: all of them, oldest first, or of those that are filled."""
        if not isinstance(index, slice):
            return index
        return self.sample_indices(0) if index == slice(None) else self._indices[: len(self)][index]

    def _newest(self, obs: Any, count: int) -> Any:
        """Return the newest frames of observations in stacks; without an axis of frames where that is one."""
        if count > self.stored.stack_num:
            raise InputError(
                f"stack_num={count}: the buffer was made with stack_num={self.stored.stack_num}, and has no longer stacks"
            )
        if self.stored.stack_num == 1:
            return obs
        if isinstance(obs, Batch):
            return obs.apply_values_transform(lambda values: self._newest(values, count))
        return obs[:, -1] if count == 1 else obs[:, -count:]

    def get(self, index: Any, key: str, default_value: Any = None, stack_num: int | None = None) -> Any:
        """Return a key of steps; of observations the newest `stack_num` frames, all that they have where it is None."""
        stack_num = integer_or_none("stack_num", stack_num) or self.stack_num
        with self.stored.lock:
            self._settle()
            batch = self._at(index, (key,))
        if key not in vars(batch):
            if default_value is None:
                raise KeyError(on_disk(type(self), key))
            return default_value
        return self._newest(batch[key], stack_num) if key in ("obs", "obs_next") else batch[key]

    def sample(self, batch_size: int | None) -> tuple[Any, Array]:
        """Draw steps, as Tianshou does; all of them (0) are read into memory."""
        batch_size = integer_or_none("batch_size", batch_size, 0)
        with self.stored.lock:
            self._settle()
            drawn: tuple[Any, Array] = super().sample(batch_size)  # type: ignore[misc]
            return drawn

    def __getattr__(self, name: str) -> Any:
        """Return rewards or flags; other attributes that Tianshou's buffers have are on disk."""
        memory = self.__dict__.get("_meta")
        if memory is not None and name in vars(memory):
            return vars(memory)[name]
        raise AttributeError(on_disk(type(self), name))

    def __setattr__(self, key: str, value: Any) -> None:
        """Write keys that an algorithm adds by giving the buffer another `_meta`, as CQL does."""
        if key != "_meta" or isinstance(value, InMemory) or "stored" not in self.__dict__:
            super().__setattr__(key, value)
            return
        for name in vars(value).keys() - vars(self._meta).keys():
            self.set_array_at_key(value[name], name)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.stored.path)!r}, {len(self)} steps)"

    # Saving

    def __getstate__(self) -> dict[str, Any]:
        """Return what a pickle has: the store's path, and not its steps."""
        return self.__dict__ | {"_meta": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Open the store again, as it is now."""
        super().__setstate__(state)  # type: ignore[misc]
        self._load()

    def save_hdf5(self, *_: Any, **__: Any) -> NoReturn:
        """Refuse it."""
        raise InputError(f"{self.stored.path} has every step, and needs no saving; `diskbuffer export` writes other formats")

    @classmethod
    def load_hdf5(cls, *_: Any, **__: Any) -> NoReturn:
        """Refuse it."""
        raise InputError(
            f"a {cls.__name__} is opened by its path; steps of Tianshou's own buffers are added with `update`, others with `add`"
        )

    from_data = load_hdf5

    def set_batch(self, *_: Any) -> NoReturn:
        """Refuse it."""
        raise InputError("a buffer on disk holds what is added to it, of which nothing is changed or taken out")

    dropnull = set_batch
