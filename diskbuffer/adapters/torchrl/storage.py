"""A storage for TorchRL's replay buffers, on disk: the face that TorchRL asks for."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import threading
import warnings
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from multiprocessing.context import get_spawning_popen
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torchrl.data.replay_buffers.checkpointers import StorageCheckpointerBase
from torchrl.data.replay_buffers.samplers import SliceSampler
from torchrl.data.replay_buffers.storages import Storage, TensorStorage

from diskbuffer import ReplayBuffer
from diskbuffer.adapters.torchrl.checkpointer import DiskCheckpointer
from diskbuffer.adapters.torchrl.ring import Ring, has_slice, is_one
from diskbuffer.adapters.torchrl.stored import Stored, uncompiled
from diskbuffer.adapters.torchrl.writers import follow_ring
from diskbuffer.errors import InputError, NotAStoreError
from diskbuffer.plugin import SharedStore, integer, is_store, local_path

Int64 = npt.NDArray[np.int64]


class DiskStorage(TensorStorage):  # type: ignore[misc]
    """A `Storage` for TorchRL's replay buffers whose steps lie in a store on disk, in place of `LazyMemmapStorage`.

    What a buffer draws with TorchRL's own samplers is what it would draw from a storage in memory, bit for bit. Entries below
    "next" that are what the next step begins with are stored once, and with `frame_stack` each frame of rolling stacks.

    It is opened, never wiped: a buffer that is made with the same `path` goes on with what is there, its writer behind the newest
    step. Until something is written it is opened for reading, and needs no lock.

    Parameters
    ----------
    max_size : int
        Places, of all environments together.
    path : path-like, optional
        Where the store is, or will be. Where it is missing, a temporary directory that goes with the storage.
    ndim : int
        As of `TensorStorage`: 2 for environments side by side; `extend` is given (environments, time) then, as TorchRL has it.
    device : torch.device or str
        Where samples go.
    frame_stack : int
        How many frames pictures have along their first axis, such as 4 where `CatFrames` stacks so many: each is stored once.
    threads, segment_rows, metadata
        Of `diskbuffer.ReplayBuffer`.
    codec : str, or mapping of str to str, optional
        As of `diskbuffer.Column`, of all entries below "next" that are compressed, or of some by their column: "obs/pixels".

    Raises
    ------
    InputError, SchemaError
        What is written does not fit to what is there, or is for other places than the next ones of the ring. The storage is as it
        was.
    LockedError
        By the first write: another process writes to this path.

    Notes
    -----
    There is nothing in RAM for each step, but a column of flags or of whole numbers that was read as a whole,
    ``storage[:]["next", "done"]``: it is kept from then on, and is a view, as over TorchRL's own storages.

    Examples
    --------
    >>> rb = TensorDictReplayBuffer(storage=DiskStorage(1_000_000, "runs/pong"), batch_size=32)  # doctest: +SKIP
    """

    supports_conditional_update = False
    max_size: int

    def __init__(
        self,
        max_size: int,
        path: str | os.PathLike[str] | None = None,
        *,
        ndim: int = 1,
        device: torch.device | str = "cpu",
        frame_stack: int = 1,
        threads: int | None = None,
        segment_rows: int | None = None,
        codec: str | Mapping[str, str] | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        self.ndim, self.device = integer("ndim", ndim), torch.device(device)
        Storage.__init__(self, integer("max_size", max_size))  # not TensorStorage's, which wants a tensor
        self._has_told = False  # what is slow
        self._is_started_copy = False  # in a process that was given this when it was started
        self._read_ahead = dict[int, tuple[Any, Any]]()  # by thread: the index that a sampler drew last, and what it has read
        where = Path(tempfile.mkdtemp(prefix="diskbuffer-")) / "store" if path is None else path
        how = {"threads": threads, "segment_rows": segment_rows, "codec": codec, "metadata": metadata}
        self.stored = Stored(where, self.max_size, self.ndim, frame_stack, **how)
        self._known: Ring | None = None
        if path is None:
            weakref.finalize(self, _remove, self.stored, os.getpid())
        self._follow()

    # Opening

    @property
    def path(self) -> Path:
        """Where the store is."""
        return self.stored.path

    def _follow(self) -> None:
        """Note for TorchRL where the newest step is, if the ring was loaded since."""
        if self.stored.ring is not self._known:
            self._known, self.max_size = self.stored.ring, self.stored.max_size
            self._set_last_cursor(self._known.newest)
            self._bump_mutation_revision()

    @contextmanager
    def _following(self) -> Iterator[Stored]:
        """Follow what the store is after what is done with it, or fails."""
        try:
            yield self.stored
        finally:
            self._follow()

    def open_to_write(self) -> None:
        """Take the writer's lock, and see what others have written, if this was open for reading; there must be steps."""
        with self._following() as stored:
            stored.open_to_write()

    def reading(self) -> ReplayBuffer:
        """Return the store's buffer."""
        with self._following() as stored:
            return stored.opened

    def refresh(self) -> None:
        """See what another process has written since."""
        with self._following() as stored:
            stored.refresh()

    def flush(self) -> None:
        """Sync every step to the disk, against a power loss; a kill of the process loses nothing in any case."""
        self.stored.flush()

    def close(self) -> None:
        """Close the store, and let others write to it."""
        self.stored.close()

    # Writing

    @uncompiled
    def set(self, cursor: Any, data: Any, *, set_cursor: bool = True) -> None:
        """Write steps to the next places; when this returns, a kill of the process does not lose them."""
        self._refuse_started_copy()
        with self._following() as stored:
            stored.put(cursor, data)
        if set_cursor:
            self._set_last_cursor(self.stored.ring.newest)  # a number, which TorchRL does not have to read from a tensor
        self._bump_mutation_revision()

    def _refuse_started_copy(self) -> None:
        """Refuse to write in a process that was given the storage when it started: it shares the writer, and not the store."""
        if self._is_started_copy:
            raise InputError(
                f"{self.path}: only the process that made this storage writes to it, and this one was given it when it was "
                "started. Where collectors in several processes write, as with MultiCollector(replay_buffer=...), give them a "
                "diskbuffer.adapters.torchrl.CollectorBuffer; or have them return what they collect, and extend this one here"
            )

    def _empty(self) -> None:
        """Drop every step, for good."""
        self._refuse_started_copy()
        with self._following() as stored:
            stored.empty()

    # Reading

    def hand_over(self, index: Any, data: Any) -> None:
        """Have the next `get` of this thread return what a sampler has read already, of that index, or of its parts in turn."""
        self._read_ahead[threading.get_ident()] = index, data

    @uncompiled
    def get(self, index: Any) -> Any:
        """Return the steps in places; a slice of them is read when its entries are asked for."""
        if has_slice(index):
            return self[index]
        drawn, data = self._read_ahead.pop(threading.get_ident(), (None, None))
        if drawn is not None and (n := _beginning(drawn, index)):
            if n < len(data):  # an ensemble draws for several batches at once
                self.hand_over(tuple(axis[n:] for axis in drawn) if isinstance(drawn, tuple) else drawn[n:], data[n:])
            return data[:n]
        with self._following() as stored:
            return stored.get(index, self.device)

    @uncompiled
    def __getitem__(self, index: Any) -> Any:
        """Return the steps in places: a single one, or a tensordict that reads each entry when it is asked for."""
        if is_one(index):
            return self.get(index)
        if has_slice(index):
            self._warn_of_slow_use()
        with self._following() as stored:
            return stored.look(index, self.device)

    def _warn_of_slow_use(self) -> None:
        """Warn, once, where TorchRL's own sampler of slices is used."""
        for buffer in () if self._has_told else self._attached_entities:
            sampler: Any = getattr(buffer, "sampler", None)
            if type(sampler) is SliceSampler and not (sampler.fragmented or sampler.cache_values):
                self._has_told = True
                warnings.warn(
                    "TorchRL's SliceSampler looks at every step of the storage to find the trajectories, for each batch after "
                    "something was written. sampler=diskbuffer.adapters.torchrl.DiskSampler(diskbuffer.Slices(length)) asks the "
                    "store's index, whose time does not grow with the storage",
                    stacklevel=3,
                )

    def steps(self, index: Any) -> Int64:
        """Return the ids of the steps in places, as `ReplayBuffer` has them."""
        with self._following() as stored:
            return stored.steps(index)

    def places(self, steps: Any) -> Int64:
        """Return the place of each step; -1 where it is in none any more."""
        with self._following() as stored:
            return stored.places_of(steps)

    # What TorchRL asks its storages for

    @property
    def initialized(self) -> bool:
        """Whether anything was ever written."""
        return self.stored.entries is not None

    @property
    def _storage(self) -> Any:
        return self[:] if self.initialized else None

    @property
    def _total_shape(self) -> Any:
        return torch.Size(self.stored.ring.shape) if self.initialized else None

    @property
    def _len(self) -> int:
        return self.stored.ring.filled * self.stored.ring.lane_count

    @property
    def checkpointer(self) -> StorageCheckpointerBase:
        """What `dumps` and `loads` do."""
        return self._checkpointer

    @checkpointer.setter
    def checkpointer(self, value: StorageCheckpointerBase | None) -> None:
        self._checkpointer = DiskCheckpointer() if value is None else value
        for buffer in self._attached_entities:  # this is set when a buffer has its writer
            follow_ring(getattr(buffer, "writer", None))

    def state_dict(self) -> dict[str, Any]:
        """Return where the steps are, and none of them."""
        self.flush()
        return {"path": str(self.path), "len": len(self)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on with the steps at the state's path, as they are now; they are copied where that is another one.

        A NotAStoreError where there are none there any more. All is as it was then.
        """
        if not isinstance(state_dict, dict) or "path" not in state_dict:
            raise InputError(f"a DiskStorage's state tells where its steps are, found {str(state_dict)[:200]}")
        path = local_path(state_dict["path"])
        if path == self.path:
            self.refresh()
        elif is_store(path):
            self.restore(path)
        elif not state_dict.get("len", 1):  # of a storage that held nothing
            self._empty()
        else:
            raise NotAStoreError(
                f"there are no steps at {path}, where a storage had them when its state was saved. Was it moved? Give the state "
                f'its path now: state_dict["path"] = "..."; it is {self.path} where this storage is the one'
            )

    def restore(self, source: Path) -> None:
        """Hold what another storage's store, or a snapshot of one, holds, in place of what is held now; see `Stored.restore`."""
        with self._following() as stored:
            stored.restore(source)

    def flatten(self) -> Any:
        """Return a storage in memory of one dimension, as TorchRL's do."""
        return self if self.ndim == 1 else TensorStorage(self.get(slice(None)).to_tensordict().flatten(0, self.ndim - 1))

    def __repr__(self) -> str:
        keys = [".".join(entry.key) for entry in self.stored.entries or ()]
        return f"DiskStorage({len(self)} of {self.max_size} steps at {self.path}: {', '.join(keys)})"

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = Storage.__getstate__(self)
        state["_read_ahead"] = {}
        if get_spawning_popen() is not None:
            state["_is_started_copy"] = True
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        Storage.__setstate__(self, state)
        self._follow()


def _beginning(drawn: Any, index: Any) -> int:
    """Return how many places an index has, perhaps on another device, if one that was drawn begins with them; else 0."""
    whole, part = (each if isinstance(each, tuple) else (each,) for each in (drawn, index))
    axes = [torch.as_tensor(axis).cpu() for axis in part]
    if len(axes) != len(whole) or not axes[0].ndim:
        return 0
    return len(axes[0]) if all(torch.equal(a, b[: len(a)]) for a, b in zip(axes, whole, strict=True)) else 0


def _remove(store: SharedStore, process: int) -> None:
    if process != os.getpid():
        return  # a fork's
    with contextlib.suppress(Exception):  # it goes, whatever became of it
        store.close()
    shutil.rmtree(store.path.parent, ignore_errors=True)
