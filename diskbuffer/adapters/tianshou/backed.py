"""What Tianshou's buffers do with memory, done with a store."""

from __future__ import annotations

import copy
import os
from collections.abc import Sequence
from typing import Any, NoReturn

import h5py
import numpy as np
import numpy.typing as npt
from tianshou.data import Batch, ReplayBuffer
from tianshou.data.utils.converter import from_hdf5, to_hdf5

from diskbuffer.adapters.tianshou.columns import FLAGS, as_one
from diskbuffer.adapters.tianshou.meta import Meta
from diskbuffer.adapters.tianshou.stored import Stored
from diskbuffer.errors import InputError
from diskbuffer.plugin import integer, integer_or_none

Array = npt.NDArray[Any]
Int64 = npt.NDArray[np.int64]
_AT_ONCE = 65_536  # steps
_SAVED = "diskbuffer"  # in HDF5 files


class StoreBacked:
    """What Tianshou's classes do with memory, done with a store; the drawing is theirs."""

    _has_rings = False  # of single environments, of Tianshou's classes; else it is one
    stored: Stored
    maxsize: int
    stack_num: int
    _save_only_last_obs: bool
    _save_obs_next: bool
    _meta: Any
    last_index: Any
    _ep_return: Any
    _ep_len: Any
    _ep_start_idx: Any

    def __init__(
        self,
        *args: Any,
        path: str | os.PathLike[str],
        threads: int | None = None,
        segment_rows: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self._begin(path, threads, segment_rows)

    def _begin(self, path: str | os.PathLike[str], threads: int | None, segment_rows: int | None) -> None:
        """Open the store, and be where its writer would be."""
        n_envs = getattr(self, "buffer_num", 1)
        stack_num = integer("stack_num", self.stack_num)
        self.stored = Stored(path, self.maxsize // n_envs, n_envs, stack_num, threads=threads, segment_rows=segment_rows)
        self._counted = np.full(n_envs, -1)  # steps ever added to each ring, as of its account
        self._flags: dict[str, Array] = {}  # and rewards: what Tianshou's compiled code looks at
        self._meta = Meta(self._flags, self._keys, self.stored.read, self._write)
        self._share_meta()
        for name in (*FLAGS, "done"):
            self._hold(name, np.zeros(self.maxsize, np.bool_))
        self._load()

    def _keys(self) -> list[str]:
        found = self.stored.keys()
        return found if self._save_obs_next else [key for key in found if key != "obs_next"]

    def _share_meta(self) -> None:
        """Give each ring its part of the keys."""
        for env, ring in enumerate(self._rings()):
            if ring is not self:
                ring._meta = self._meta.part(env * ring.maxsize, (env + 1) * ring.maxsize)

    def _hold(self, name: str, values: Array) -> None:
        """Have a key in memory."""
        self._flags[name] = values
        for ring in self._rings():
            if ring is not self:
                ring._meta.hold(name, values)

    def _rings(self) -> list[Any]:
        """Return Tianshou's buffers of single environments, which keep account."""
        return self.buffers if self._has_rings else [self]  # type: ignore[attr-defined]

    def _load(self) -> None:
        """Be where the store is: flags, rewards, and Tianshou's account of every ring, unless it is of these very steps."""
        stored, size, ever = self.stored, self.stored.size, self.stored.ever()
        self._accepted = stored.accepted
        known, self._counted = self._counted == ever, ever
        for flag in FLAGS:
            self._flags[flag][:] = False
        if stored.filled.any():
            reward = stored.opened.columns["reward"]
            self._hold("rew", np.zeros((self.maxsize, *reward.shape), reward.np_dtype))
            for env, filled in enumerate(stored.filled.tolist()):
                for first in range(env * size, env * size + filled, _AT_ONCE):
                    some = slice(first, min(first + _AT_ONCE, env * size + filled))
                    for key, values in stored.numbers(np.arange(some.start, some.stop)).items():
                        self._flags[key][some] = values
        np.logical_or(self._flags["terminated"], self._flags["truncated"], out=self._flags["done"])
        for env, ring in enumerate(self._rings()):
            ring._insertion_idx, ring._size = int(stored.next[env]), int(stored.filled[env])
            newest = (ring._insertion_idx - 1) % size if ring._size else 0
            ring.last_index[0] = newest
            if ring is not self:
                self.last_index[env] = newest + env * size
                self._lengths[env] = ring._size  # type: ignore[attr-defined]
            if known[env]:  # perhaps of more than is there
                continue
            ring._ep_return, ring._ep_len, ring._ep_start_idx = 0.0, 0, ring._insertion_idx
            if ring._size and not self._flags["done"][env * size + newest]:  # an episode runs
                order = (newest - np.arange(ring._size)) % size
                ended = np.flatnonzero(self._flags["done"][env * size + order])
                length = int(ended[0]) if len(ended) else ring._size
                ring._ep_len, ring._ep_start_idx = length, int(order[length - 1])
                rewards = self._flags["rew"][env * size + order[:length][::-1]]
                ring._ep_return = np.cumsum(rewards, axis=0)[-1]  # added one by one, as Tianshou has it

    def _settle(self) -> None:
        """Be where the store is, if it was opened again, and a copy of this buffer has added to it, or has dropped its steps."""
        stored = self.stored
        stored.open_to_read()
        if stored.accepted != self._accepted:
            if np.array_equal(stored.ever(), self._counted) and stored.filled.sum() == len(self):  # type: ignore[arg-type]
                self._accepted = stored.accepted
            else:
                self._load()

    # Writing

    def _open_to_write(self, batch: Any) -> None:
        """Open the store for writing; others may have written before."""
        if self.stored.writes:
            return
        self.stored.begin(batch)
        self._load()

    def _write(self, key: str, places: Int64, values: Array) -> None:
        if self._keys():
            self._open_to_write({})
        self.stored.write(key, places, values)

    def _added(self, batch: Any, envs: Int64) -> tuple[Array, Array, Array, Array]:
        """Add a step, (n, ...), to each of some environments' rings; then keep account of it as Tianshou does."""
        self._open_to_write(batch)
        try:
            return self._added_and_noted(batch, envs)
        except BaseException:  # the disk may be full; a Ctrl-C may come at any instant
            self.stored.reload()
            self._load()
            raise

    def _added_and_noted(self, batch: Any, envs: Int64) -> tuple[Array, Array, Array, Array]:
        self.stored.add(batch, envs)
        if "rew" not in self._flags:
            self._hold("rew", np.zeros((self.maxsize, *np.shape(batch.rew)[1:])))
        return self._noted(batch, envs.tolist())

    def _added_plainly(self, batch: Any, envs: Any) -> tuple[Array, Array, Array, Array] | None:
        """Add a step of every ring where that takes no conversion, and keep account; None where it takes one."""
        if batch.__class__ is not Batch or self._save_only_last_obs or "rew" not in self._flags:
            return None
        n_envs = self.stored.n_envs
        if n_envs == 1 and self._has_rings:
            return None
        if envs is not None and (n_envs == 1 or len(envs) != n_envs or list(envs) != list(range(n_envs))):
            return None
        given = batch.__dict__
        try:
            if not self.stored.add_plainly(given):
                return None
            rew, terminated, truncated = given["rew"], given["terminated"], given["truncated"]
            step = {"rew": rew, "terminated": terminated, "truncated": truncated, "done": terminated | truncated}
            if n_envs == 1:
                step = {name: (value[()],) for name, value in step.items()}
            return self._noted(step, range(n_envs))
        except BaseException:  # as in `_added`
            self.stored.reload()
            self._load()
            raise

    def _noted(self, batch: Any, envs: Sequence[int]) -> tuple[Array, Array, Array, Array]:
        """Keep account of a step that was added to some rings; `batch` has an item of each key for each of them."""
        told, rewards, done = [], batch["rew"], batch["done"]
        rings, flags = self._rings(), [(values, batch[name]) for name, values in self._flags.items()]
        for n, env in enumerate(envs):
            ring, first = rings[env], env * self.stored.size
            place, ep_return, ep_len, start = ring._update_state_pre_add(rewards[n], done[n])
            told.append((place + first, ep_return, ep_len, start + first))
            if ring is not self:
                self.last_index[env] = place + first
                self._lengths[env] = ring._size  # type: ignore[attr-defined]
            for values, given in flags:
                values[place + first] = given[n]
            self._counted[env] += 1
        places, returns, lengths, starts = (np.array(column) for column in zip(*told, strict=True))
        return places, returns, lengths, starts

    def add(self, batch: Any, buffer_ids: Any = None) -> tuple[Array, Array, Array, Array]:
        """Add a step, or one for each environment; when this returns, a kill of the process does not lose it.

        Arguments and results are Tianshou's.
        """
        with self.stored.lock:
            told = self._added_plainly(batch, buffer_ids)
            return self._added_converted(batch, buffer_ids) if told is None else told

    def _added_converted(self, batch: Any, buffer_ids: Any) -> tuple[Array, Array, Array, Array]:
        """Add a step, or one for each environment, which may have to be converted."""
        alone = not self._has_rings
        given = Batch()
        for key in batch.get_keys():
            if alone or key in ReplayBuffer._reserved_keys:
                given.__dict__[key] = batch[key]
        given.__dict__["done"] = np.logical_or(batch.terminated, batch.truncated)
        missing = ReplayBuffer._required_keys_for_add - set(given.get_keys())
        if missing:
            raise ValueError(f"Input batch must have the following keys: {ReplayBuffer._required_keys_for_add}")
        if alone and buffer_ids is None:
            given = as_one(given)
        elif alone and (len(buffer_ids) != 1 or buffer_ids[0] != 0 or len(given) != 1):
            raise ValueError(f"a buffer of one environment takes one step, of buffer 0; found {buffer_ids=}, {len(given)} steps")
        for key in ("obs", "obs_next"):
            if self._save_only_last_obs and key in given.get_keys():
                given.__dict__[key] = given[key][:, -1]
        return self._added_in_turn(
            given, np.arange(self.stored.n_envs) if buffer_ids is None else np.asarray(buffer_ids, np.int64)
        )

    def _added_in_turn(self, batch: Any, envs: Int64) -> tuple[Array, Array, Array, Array]:
        """Add steps, (n, ...), of environments that may be there more than once."""
        if len(np.shape(batch.rew)) < 1 or len(batch.rew) != len(envs):
            raise InputError(f"expected a step of each of {len(envs)} environments, found rewards of shape {np.shape(batch.rew)}")
        envs = envs % self.stored.n_envs if ((envs >= -self.stored.n_envs) & (envs < self.stored.n_envs)).all() else envs
        if len(envs) == 1 or len(np.unique(envs)) == len(envs):
            return self._added(batch, envs)
        told = [self._added(batch[n : n + 1], envs[n : n + 1]) for n in range(len(envs))]
        places, returns, lengths, starts = (np.concatenate(part) for part in zip(*told, strict=True))
        return places, returns, lengths, starts

    @classmethod
    def from_data(
        cls, obs: Any, act: Any, rew: Any, terminated: Any, truncated: Any, done: Any, obs_next: Any, **options: Any
    ) -> Any:
        """Make a buffer of arrays, or of HDF5 datasets, (n, ...); `options` are those of a new one, such as its path."""
        make: Any = cls
        buffer = make(len(obs), **options)
        arrays = {"obs": obs, "act": act, "rew": rew, "terminated": terminated, "truncated": truncated, "obs_next": obs_next}
        if any(len(array) != len(obs) for array in (*arrays.values(), done)):
            raise ValueError("all arrays must have the same length")
        for n in range(len(obs)):
            buffer.add(Batch({name: array[n] for name, array in arrays.items()}))
        return buffer

    def update(self, buffer: Any) -> Array:
        """Add all steps of another buffer, as Tianshou does: episodes that run are not gone on with."""
        if self._has_rings:
            raise NotImplementedError
        if len(buffer) == 0 or self.maxsize == 0:
            return np.array([], int)
        stack_num, buffer.stack_num = buffer.stack_num, 1
        found = []
        try:
            for place in buffer.sample_indices(0).tolist():
                step = buffer[np.array([place])]
                step.__dict__["done"] = np.logical_or(step.terminated, step.truncated)
                with self.stored.lock:
                    kept = copy.copy(self._ep_return), self._ep_len, self._ep_start_idx  # an array is added to in place
                    found.append(self._added(step, np.zeros(1, np.int64))[0])
                    self._ep_return, self._ep_len, self._ep_start_idx = kept
        finally:
            buffer.stack_num = stack_num
        return np.concatenate(found) if found else np.array([], int)

    def set_array_at_key(self, seq: Array, key: str, index: Any = None, default_value: float | None = None) -> None:
        """Write a key of some steps, or of all, such as advantages; it is a column of the store, and zero elsewhere."""
        self._meta.set_array_at_key(seq, key, index, default_value)

    def reset(self, keep_statistics: bool = False) -> None:
        """Drop every step, of the store as well, for good: `stored.buffer` has those of the next rollout only.

        A LockedError where another process writes to the store. Takes some milliseconds.
        """
        with self.stored.lock:
            self.stored.reset()
            self._counted = self.stored.ever()
            super().reset(keep_statistics)  # type: ignore[misc]

    def flush(self) -> None:
        """Bring every step to the disk, against a power loss; a kill of the process loses nothing in any case."""
        self.stored.flush()

    def close(self) -> None:
        """Close the store, and let others write to it."""
        self.stored.close()

    # Reading

    def get(self, index: Any, key: str, default_value: Any = None, stack_num: int | None = None) -> Any:
        """Return a key of steps, stacked as Tianshou does; a frame is read for each of a stack."""
        if key not in self._meta.get_keys() and default_value is not None:
            return default_value
        with self.stored.lock:
            self._settle()
            return self._stacked(index, key, stack_num)

    def _stacked(self, index: Any, key: str, stack_num: int | None) -> Any:
        values, stack_num = self._meta[key], integer_or_none("stack_num", stack_num) or self.stack_num
        if stack_num == 1:
            return values[index]
        stack, indices = list[Any](), np.asarray(index) if isinstance(index, list) else index
        for _ in range(stack_num):
            stack = [values[indices], *stack]
            indices = self.prev(indices)  # type: ignore[attr-defined]
        if isinstance(stack[0], Batch):
            return Batch.stack(stack, axis=np.ndim(indices)) if stack[0].get_keys() else Batch()
        return np.stack(stack, axis=np.ndim(indices))

    def _without_slices(self, index: Any) -> Any:
        """Return the places of a slice, as Tianshou has them: all of them, oldest first, or of those that are filled."""
        if not isinstance(index, slice):
            return index
        return self.sample_indices(0) if index == slice(None) else self._indices[: len(self)][index]  # type: ignore

    def __getitem__(self, index: Any) -> Any:
        """Return steps as a Batch."""
        with self.stored.lock:  # or another thread could add between what is in memory and what is read
            self._settle()
            return self._at(index)

    def _at(self, index: Any) -> Any:
        index = self._without_slices(index)
        is_list = isinstance(index, np.ndarray) and index.dtype == np.int64 and index.ndim == 1 and len(index)
        is_within = is_list and index.view(np.uint64).max() < self.maxsize  # and none is negative
        places = index if is_within else np.arange(self.maxsize)[index]
        flat = places.ravel()
        plain = self.stack_num == self.stored.stack_num and (self.stored.has_next or self.stack_num == 1)
        if self.stored.open_to_read() is None or not plain or not self.stored.are_there(flat):
            return super().__getitem__(index)  # type: ignore[misc]
        if self.stack_num == 1:
            found = self.stored.rows_without(flat, self._flags)
        else:
            found = self.stored.rows(flat, of_next=not self._save_obs_next)
        if not self.stored.has_next and self._save_obs_next:
            found["obs_next"] = Batch()
        elif not self.stored.has_next:  # it is the next step's, as far as there is one
            found["obs_next"] = self.get(self.next(flat), "obs")  # type: ignore[attr-defined]
        for key in ("info", "policy"):
            found[key] = self.get(flat, key) if self.stack_num > 1 and key in found else found.get(key, Batch())
        found |= {flag: values.take(flat, axis=0) for flag, values in self._flags.items()}
        batch = Batch()
        batch.__dict__.update(found)  # all are what Tianshou would make of them
        return batch if places.ndim == 1 else batch[0] if places.ndim == 0 else _shaped(batch, places.shape)

    def sample(self, batch_size: int | None) -> tuple[Any, Array]:
        """Draw steps, as Tianshou does; all of them (0) are read into memory."""
        batch_size = integer_or_none("batch_size", batch_size, 0)
        with self.stored.lock:
            self._settle()
            drawn: tuple[Any, Array] = super().sample(batch_size)  # type: ignore[misc]
            return drawn

    def __setattr__(self, key: str, value: Any) -> None:
        """Write keys that an algorithm adds by giving the buffer another `_meta`, as CQL does."""
        if key != "_meta" or isinstance(value, Meta) or "stored" not in self.__dict__:
            super().__setattr__(key, value)
            return
        for name in value.get_keys():
            if not name.startswith("_"):  # those are the own ones of what it was made of
                self.set_array_at_key(np.asarray(value[name]), name)

    # Saving

    def save_hdf5(self, path: str, compression: str | None = None) -> None:
        """Write what a pickle has, the store's path and Tianshou's account of it, as HDF5; the steps stay where they are."""
        with h5py.File(path, "w") as file:
            to_hdf5({_SAVED: self}, file, compression)

    @classmethod
    def load_hdf5(cls, path: str, device: str | None = None) -> Any:
        """Open the store whose path is in a file of `save_hdf5`, as it is now."""
        with h5py.File(path) as file:
            found = from_hdf5(file[_SAVED], device) if _SAVED in file else None
        if not isinstance(found, cls):
            raise InputError(
                f"{path}: expected what `{cls.__name__}.save_hdf5` writes, found {type(found).__name__ if found else 'steps'}; "
                "those of Tianshou's own buffers are loaded by these, and added with `update`"
            )
        return found

    # What has no meaning here

    def set_batch(self, batch: Any) -> NoReturn:  # noqa: ARG002
        """Refuse it."""
        raise InputError("a buffer on disk holds what is added to it; its path is what there is to be chosen")

    def dropnull(self) -> NoReturn:
        """Refuse it."""
        raise InputError("what was added cannot be taken out of a buffer on disk")

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Open the store again, as it is now; a pickle has its path and not its steps."""
        super().__setstate__(state)  # type: ignore[misc]
        for name, flag in self._flags.items():
            self._meta.hold(name, flag)
        self._share_meta()
        self._load()


def _shaped(batch: Any, shape: tuple[int, ...]) -> Any:
    return batch.apply_values_transform(lambda values: values.reshape(*shape, *values.shape[1:]))
