"""A storage for TorchRL's replay buffers, on disk: the face that TorchRL asks for."""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import tempfile
import warnings
import weakref
from collections.abc import Iterator, Sequence
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
from torchrl.data.replay_buffers.writers import RoundRobinWriter, TensorDictMaxValueWriter

from diskbuffer import ReplayBuffer
from diskbuffer.adapters.torchrl.checkpointer import DiskCheckpointer
from diskbuffer.adapters.torchrl.columns import uncompiled
from diskbuffer.adapters.torchrl.indices import has_slice, is_one, plain
from diskbuffer.adapters.torchrl.stored import Stored
from diskbuffer.adapters.torchrl.trajectories import Selection, Source
from diskbuffer.errors import InputError, NotAStoreError, SchemaError
from diskbuffer.plugin import SharedStore, integer

Int64 = npt.NDArray[np.int64]
_COPIED = 1024  # steps that are copied together


class DiskStorage(TensorStorage):  # type: ignore[misc]
    """A `Storage` for TorchRL's replay buffers whose steps lie in a store on disk, in place of `LazyMemmapStorage`.

    What a buffer draws with TorchRL's own samplers and writers is what it would draw from a storage in memory, bit for bit.
    Entries below "next" that are what the next step begins with are stored once, and rolling stacks of frames frame by frame.

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
    frame_stack : int, optional
        Frames along the first axis of observations with at least two; 1 to store them as they are. Recognised by the first step.
    threads, segment_rows
        Of `diskbuffer.ReplayBuffer`.

    Raises
    ------
    InputError, SchemaError
        What is written does not fit to what is there. The storage is as it was.
    LockedError
        By the first write: another process writes to this path.

    Notes
    -----
    Where places are written to in a ring, as TorchRL's writers do, no RAM for each; after ``storage[i] = ...``, 16 bytes. A
    column of flags or of whole numbers that is read as a whole, ``storage[:]["next", "done"]``, is kept in RAM from then
    on, and is a view, as over TorchRL's own storages. What a place held before it was written to again is on the disk until it is
    evicted; up to an eighth more than `max_size` is kept for that. Where writes are not in a ring, old steps that are in use are
    copied now and then.

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
        frame_stack: int | None = None,
        threads: int | None = None,
        segment_rows: int | None = None,
    ) -> None:
        self.ndim, self.device = integer("ndim", ndim), torch.device(device)
        Storage.__init__(self, integer("max_size", max_size))  # not TensorStorage's, which wants a tensor
        self._last_cursor: Any = None
        self._compilable = False
        self._has_told = False  # what is slow
        self._is_started_copy = False  # in a process that was given this when it was started
        where = Path(tempfile.mkdtemp(prefix="diskbuffer-")) / "store" if path is None else path
        self.stored = Stored(where, self.max_size, self.ndim, frame_stack, threads=threads, segment_rows=segment_rows)
        self._pointed = self.stored.places  # behind which writers go on: what was loaded since, others have written
        if path is None:
            weakref.finalize(self, _remove, self.stored, os.getpid())
        self._load()

    # Opening

    @property
    def store(self) -> Stored:
        """The store behind this: `stored`, as buffers of the other libraries name it."""
        return self.stored

    @property
    def path(self) -> Path:
        """Where the store is."""
        return self.stored.path

    def _load(self) -> None:
        """Be where the store's writer would be."""
        self.max_size = self.stored.max_size
        if self.stored.places.newest >= 0:
            self._set_last_cursor(self.stored.places.newest)
        self._bump_mutation_revision()

    @contextmanager
    def _loading(self) -> Iterator[None]:
        """Load what the store is, if it is another one after what is done, or fails, meanwhile."""
        known = self.stored.places
        try:
            yield
        finally:
            if self.stored.places is not known:
                self._load()
                self._point_writers()

    def open_to_write(self) -> None:
        """Take the writer's lock, and see what others have written, if this was open for reading; there must be steps."""
        with self._loading():
            self.stored.open_to_write()

    def reading(self) -> ReplayBuffer:
        """Return the store's buffer."""
        with self._loading():
            return self.stored.opened

    def refresh(self) -> None:
        """See what another process has written since."""
        with self._loading():
            self.stored.refresh()

    def flush(self) -> None:
        """Bring every step to the disk, against a power loss; a kill of the process loses nothing in any case."""
        self.stored.flush()

    def close(self) -> None:
        """Close the store, and let others write to it."""
        self.stored.close()

    # Writing

    @uncompiled
    def set(self, cursor: Any, data: Any, *, set_cursor: bool = True) -> None:
        """Put steps in places; when this returns, a kill of the process does not lose them."""
        try:
            self._refuse_started_copy()
            self.stored.put(cursor, data, self._pointed, self.device)
        except BaseException:
            if self.stored.places is not self._pointed:
                self._load()
            if not self.stored.places.hold_the_same(self._pointed):  # some of it was written, or others wrote
                self._point_writers()
            elif set_cursor:
                self._set_back(cursor)
            raise
        self._pointed = self.stored.places
        self.max_size = self.stored.max_size  # which is known by the first step
        if set_cursor:
            self._set_last_cursor(cursor)
        self._bump_mutation_revision()

    def _refuse_started_copy(self) -> None:
        """Refuse to write in a process that was given the storage when it started: it shares the writer, and not the store."""
        if self._is_started_copy:
            raise InputError(
                f"{self.path}: only the process that made this storage writes to it, and this one was given it when it was "
                "started. Several writers of one replay buffer, as with MultiCollector(replay_buffer=...), do not work yet: have "
                "collectors return what they collect, and extend the buffer in the process that made it"
            )

    def _set_back(self, cursor: Any) -> None:
        """Have the writer that wrote to `cursor`, and is past it, write there again: nothing was written."""
        given = np.ravel(plain(cursor[0] if isinstance(cursor, tuple) else cursor))
        for writer in self._writers():
            if given.dtype.kind in "iu" and len(given) and given[-1] + 1 - writer._cursor in (0, self.stored.places.size):
                writer._cursor = int(given[0])
        self._pointed = self.stored.places

    def _point_writers(self) -> None:
        """Have TorchRL's writers go on behind the newest step, which another process wrote perhaps."""
        for writer in self._writers():
            writer._cursor = self.stored.places.next
        self._pointed = self.stored.places

    def point_writers_behind(self, snapshot: Path) -> None:
        """Have TorchRL save its writers next as they are to go on behind the steps of a snapshot."""
        copied = Stored(snapshot, self.max_size, self.ndim)
        for writer in self._writers():
            writer._cursor = copied.places.next
        self._pointed = copied.places
        copied.close()

    def _writers(self) -> Iterator[RoundRobinWriter]:
        """Yield the writers of the buffers that this is the storage of."""
        for buffer in self._attached_entities:
            writer = getattr(buffer, "_writer", None)
            if isinstance(writer, RoundRobinWriter):
                yield writer

    def _empty(self) -> None:
        """Drop every step, for good."""
        try:
            self._refuse_started_copy()
            with self._loading():
                self.stored.empty()
        finally:  # TorchRL has set its own writer to 0, also where this fails, and not those of other buffers on this storage
            self._point_writers()
        self._bump_mutation_revision()

    # Reading

    @uncompiled
    def get(self, index: Any) -> Any:
        """Return the steps in places; a slice of them is read when its entries are asked for."""
        if has_slice(index):
            return self[index]
        with self._loading():
            return self.stored.get(index, self.device)

    @uncompiled
    def __getitem__(self, index: Any) -> Any:
        """Return the steps in places: a single one, or a tensordict that reads each entry when it is asked for."""
        if is_one(index):
            return self.get(index)
        if has_slice(index):
            self._tell_what_is_slow()
        with self._loading():
            return self.stored.look(index, self.device)

    def _tell_what_is_slow(self) -> None:
        """Warn, once, where TorchRL's own sampler of slices is used."""
        for buffer in () if self._has_told else self._attached_entities:
            sampler: Any = getattr(buffer, "_sampler", None)
            if type(sampler) is SliceSampler and not (sampler.fragmented or sampler._cache):
                self._has_told = True
                size = f"slice_len={sampler.slice_len}" if sampler.num_slices is None else f"num_slices={sampler.num_slices}"
                warnings.warn(
                    "TorchRL's SliceSampler looks at every step of the storage to find the trajectories, for each batch after "
                    "something was written. diskbuffer.adapters.torchrl.DiskSliceSampler takes the same arguments, draws the "
                    f"same slices, and looks at those that are new: sampler=DiskSliceSampler({size}, ...)",
                    stacklevel=3,
                )

    def steps(self, index: Any) -> Int64:
        """Return the names of the steps in places, as `ReplayBuffer` has them; -1 where there is none."""
        with self._loading():
            return self.stored.steps(index)

    def places(self, steps: Any) -> Int64:
        """Return the place of each step; -1 where it is in none any more."""
        with self._loading():
            return self.stored.places_of(steps)

    @uncompiled
    def trajectories(self, source: Source, least: Sequence[int]) -> list[Selection] | None:
        """Return those of at least so many steps, for each of some; None where TorchRL has to look at all steps."""
        with self._loading():
            return self.stored.trajectories(source, least)

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
        return torch.Size(self.stored.places.shape) if self.initialized else None

    @property
    def _len(self) -> int:
        places = self.stored.places
        return places.filled * math.prod(places.lanes)

    @property
    def checkpointer(self) -> StorageCheckpointerBase:
        """What `dumps` and `loads` do."""
        return self._checkpointer

    @checkpointer.setter
    def checkpointer(self, value: StorageCheckpointerBase | None) -> None:
        self._checkpointer = DiskCheckpointer() if value is None else value
        for writer in self._writers():  # this is set when a buffer is complete: new writers go on where the steps end
            if not (writer._cursor or writer._write_count):
                writer._cursor = self.stored.places.next
        for buffer in self._attached_entities:
            if isinstance(getattr(buffer, "_writer", None), TensorDictMaxValueWriter) and self._len:
                warnings.warn(
                    f"{self.path} holds {self._len} steps, which a new TensorDictMaxValueWriter does not know: it writes over "
                    "them whatever their values are. Load what dumps saved of the buffer, or give another path",
                    stacklevel=4,
                )

    def state_dict(self) -> dict[str, Any]:
        """Return where the steps are, and none of them."""
        self.flush()
        return {"path": str(self.path), "len": self._len, "ever": self.stored.places.ever}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on with the steps at the state's path, as they are now; they are copied where that is another one."""
        if not isinstance(state_dict, dict) or "path" not in state_dict:
            raise InputError(f"a DiskStorage's state tells where its steps are, found {str(state_dict)[:200]}")
        path = Path(state_dict["path"])
        if path == self.path:
            self.refresh()
            ever = self.stored.places.ever
        elif state_dict["len"]:
            ever = self.copy_from(path)
        else:
            ever = 0
            self._empty()
        self._point_writers()
        if ever != state_dict.get("ever"):  # the state of writers, which TorchRL loads next, is older than the steps
            for writer in self._writers():
                writer.load_state_dict = _LoadAndGoOn(self, writer)

    def copy_from(self, path: Path) -> int:
        """Hold what another storage, at a path, holds, in the same places, in place of what is held now.

        Returns how many steps that one has ever had.
        A NotAStoreError where there are no steps at the path, a SchemaError where they have other entries. All is as it was then.
        """
        other = Stored(path, self.max_size, self.ndim)
        try:
            own, others = self.stored.entries, other.entries
            if others is None:
                raise NotAStoreError(
                    f"there are no steps at {path}, where a storage had them when its state was saved. Was it moved? Give the "
                    f'state its path now: state_dict["path"] = "..."; it is {self.path} where this storage is the one'
                )
            if own is not None and {*own} != {*others}:
                raise SchemaError(f"{path} holds other entries than {self.path}: {[entry.key for entry in others]}")
            self._empty()
            order = other.places.in_order_of_writing()
            for places in (order[first : first + _COPIED] for first in range(0, len(order), _COPIED)):
                self.set(torch.from_numpy(places), other.get(places))
            return other.places.ever
        finally:
            other.close()

    def restore(self, snapshot: Path) -> None:
        """Hold a copy of a snapshot of another storage's store, in place of what is held now; see `Stored.restore`."""
        with self._loading():
            self.stored.restore(snapshot)

    def flatten(self) -> Any:
        """Return a storage in memory of one dimension, as TorchRL's do."""
        return self if self.ndim == 1 else TensorStorage(self.get(slice(None)).to_tensordict().flatten(0, self.ndim - 1))

    def __repr__(self) -> str:
        keys = [".".join(entry.key) for entry in self.stored.entries or ()]
        return f"DiskStorage({len(self)} of {self.max_size} steps at {self.path}: {', '.join(keys)})"

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = Storage.__getstate__(self)
        if get_spawning_popen() is not None:
            state["_is_started_copy"] = True
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        Storage.__setstate__(self, state)
        # Else the last cursor is as it was, which may be another place than the newest step's. Writers are pointed by the first
        # write, which raises: they may not be there yet.
        if not self.stored.places.hold_the_same(self._pointed):
            self._load()
        self._bump_mutation_revision()


def _remove(store: SharedStore, process: int) -> None:
    if process != os.getpid():
        return  # a fork's
    with contextlib.suppress(Exception):  # it goes, whatever became of it
        store.close()
    shutil.rmtree(store.path.parent, ignore_errors=True)


class _LoadAndGoOn:
    """What a writer has in place of its own `load_state_dict`, once; a class, so that the writer can be pickled meanwhile."""

    def __init__(self, storage: DiskStorage, writer: RoundRobinWriter) -> None:
        self._storage, self._writer = storage, writer

    def __call__(self, state_dict: dict[str, Any]) -> None:
        del self._writer.load_state_dict  # this, which is the instance's
        self._writer.load_state_dict(state_dict)
        self._writer._cursor = self._storage.stored.places.next
