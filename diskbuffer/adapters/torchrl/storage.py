"""A storage for TorchRL's replay buffers, on disk."""

from __future__ import annotations

import math
import os
import shutil
import tempfile
import threading
import weakref
from collections.abc import Iterator
from functools import partial
from multiprocessing.context import get_spawning_popen
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from tensordict import TensorDict, is_tensor_collection
from torch.utils._pytree import tree_map
from torchrl.data.replay_buffers.checkpointers import StorageCheckpointerBase
from torchrl.data.replay_buffers.storages import Storage, TensorStorage
from torchrl.data.replay_buffers.writers import RoundRobinWriter

from diskbuffer.adapters.lazy_buffer import OpenedLate, close_or_tell
from diskbuffer.adapters.place_column import SLOT, told_by
from diskbuffer.adapters.torchrl.checkpointer import DiskCheckpointer
from diskbuffer.adapters.torchrl.entries import Entries, Entry
from diskbuffer.adapters.torchrl.indices import has_slice, plain
from diskbuffer.adapters.torchrl.kinds import Kind, axes_of, indexed, stacked
from diskbuffer.adapters.torchrl.places import Places
from diskbuffer.adapters.torchrl.replacing import put_in_place, remove_tree, sync_tree, take_back
from diskbuffer.adapters.torchrl.rows import Later, LazyRows
from diskbuffer.adapters.torchrl.strings import named
from diskbuffer.buffer import ReplayBuffer
from diskbuffer.errors import InputError, SchemaError
from diskbuffer.inputs import counted, local_path
from diskbuffer.samplers.sampler import at_least_one
from diskbuffer.store.building import is_there

Array = npt.NDArray[Any]
Int64 = npt.NDArray[np.int64]
_AT_ONCE = 4096  # steps that are read, or copied, together
_REPLACED = ".replaced"  # ends the name of a store while another is put in its place
_PATIENCE = 20  # times that a reader looks again


class DiskStorage(TensorStorage):  # type: ignore[misc]
    """A `Storage` for TorchRL's replay buffers whose steps lie in a store on disk, in place of `LazyMemmapStorage`.

    What a buffer draws with TorchRL's own samplers and writers is what it would draw from a storage in memory, bit for bit.
    Entries below "next" that are what the next step begins with are stored once, and rolling stacks of frames frame by frame.
    Entries of tensordicts may be tensors, and strings, of which each is stored once.

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
    16 bytes of RAM for each place. What a place held before it was written to again is on the disk until it is evicted; up to an
    eighth more than `max_size` is kept for that. Where writes are not in a ring, old steps that are in use are copied now and
    then.

    Examples
    --------
    >>> rb = TensorDictReplayBuffer(storage=DiskStorage(1_000_000, "runs/pong"), batch_size=32)  # doctest: +SKIP
    """

    supports_conditional_update = False

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
        self.ndim, self.device = at_least_one("ndim", ndim), torch.device(device)
        self._frame_stack = frame_stack
        Storage.__init__(self, at_least_one("max_size", max_size))  # not TensorStorage's, which wants a tensor
        self._last_cursor: Any = None
        self._compilable = False
        self._lock = threading.RLock()
        self._entries: Entries | None = None
        self._kind = Kind()
        self._places = Places(0, ())
        self._shared_with_this = False
        where = Path(tempfile.mkdtemp(prefix="diskbuffer-")) / "store" if path is None else local_path(path)
        self.store = OpenedLate(where, autoreset="disabled", threads=threads, segment_rows=segment_rows)
        if path is None:
            weakref.finalize(self, _remove, self.store, os.getpid())
        if not self.path.exists():  # a crash came while `load` put another in its place
            take_back(self.path, self._replaced)
        self._open_to_read()

    # Opening

    @property
    def _replaced(self) -> Path:
        return self.path.with_name(self.path.name + _REPLACED)

    @property
    def path(self) -> Path:
        """Where the store is."""
        return self.store.path

    def _open_to_read(self) -> None:
        opened = self.store.open_to_read()
        if opened is not None:
            self._take_up(opened)

    def open_to_write(self) -> None:
        """Take the writer's lock, and see what others have written, if this was open for reading; there must be steps."""
        if not self.store.writes:
            self._take_up(self.store.open_to_write())

    def refresh(self) -> None:
        """See what another process has written since."""
        with self._lock:
            if self.store.buffer is not None and not self.store.writes:
                self.store.buffer.refresh()
                self._take_up(self.store.buffer)
            elif self.store.buffer is None:
                self._open_to_read()

    def _take_up(self, opened: ReplayBuffer) -> None:
        """Find out what a store has, and where."""
        if self.ndim > 2:
            raise InputError(f"{self.path} holds steps already, and a storage of {self.ndim} dimensions cannot be opened again")
        places = self._no_places(opened)
        if (
            SLOT not in opened.columns
            or (self.ndim == 1 and opened.n_envs > 1)
            or opened.capacity != places.capacity * opened.n_envs
        ):
            raise SchemaError(
                f"{self.path} was made to hold {Places.held_by(opened.capacity, opened.n_envs)} steps of "
                f"{counted(opened.n_envs, 'environment')}, in the columns {list(opened.columns)}; a "
                f"DiskStorage({self.max_size}, ndim={self.ndim}) cannot "
                "be that. Give another path, or what it was made with"
            )
        if self._frame_stack and opened.frame_stack != self._frame_stack:
            raise SchemaError(
                f"{self.path} holds stacks of {opened.frame_stack} frames, and frame_stack={self._frame_stack} asks for "
                "something else; leave it out, or give another path"
            )
        for attempt in range(_PATIENCE):
            try:
                places.take_up(opened)
                break
            except InputError:  # a writer elsewhere evicts meanwhile
                if self.store.writes or attempt == _PATIENCE - 1:
                    raise
                opened.refresh()
                places = self._no_places(opened)
        self._begin(Entries.stored(opened.columns, places.names.shape[1:], opened.frame_stack), places)

    def _no_places(self, opened: ReplayBuffer) -> Places:
        """Return the places of a store that is opened, none of which is filled yet."""
        places = Places(-(-self.max_size // max(opened.n_envs, 1)), (opened.n_envs,) if self.ndim == 2 else ())
        places.emptied_as_often(self._places)
        return places

    def _begin(self, entries: Entries, places: Places) -> None:
        self._entries, self._places, self.max_size = entries, places, places.names.size
        if places.newest >= 0:
            self._set_last_cursor(places.newest)
        self._bump_mutation_revision()

    def _writing(self, data: Any) -> tuple[ReplayBuffer, Entries]:
        """Open the store for writing, or make it for such data."""
        if self.store.writes and self._entries is not None:
            assert self.store.buffer is not None
            return self.store.buffer, self._entries
        if self._entries is not None or is_there(self.path):
            self.open_to_write()
            assert self._entries is not None
            assert self.store.buffer is not None
            return self.store.buffer, self._entries
        entries = Entries.of(data, self.ndim, self._frame_stack)
        places = Places(-(-self.max_size // math.prod(entries.lanes)), entries.lanes)
        opened = self.store.open_to_write(
            columns=entries.columns,
            capacity=places.capacity * math.prod(entries.lanes),
            n_envs=math.prod(entries.lanes),
            frame_stack=entries.stack,
            padding=entries.padding(data),
        )
        self._begin(entries, places)
        return opened, entries

    # Writing

    def set(self, cursor: Any, data: Any, *, set_cursor: bool = True) -> None:
        """Put steps in places; when this returns, a kill of the process does not lose them."""
        if isinstance(data, list):
            data = stacked(data)
        with self._lock:
            given = cursor
            self._must_be_the_writers(cursor)
            if isinstance(cursor, tuple):
                cursor, data = self._merged(cursor, data)
            alone = isinstance(cursor, int | np.integer) or (isinstance(cursor, torch.Tensor | np.ndarray) and cursor.ndim == 0)
            if alone:
                one = data
                data = data.unsqueeze(0) if is_tensor_collection(one) else tree_map(lambda part: part.unsqueeze(0), one)
            newest = self._places.newest
            try:
                self._put(cursor, data)
            except BaseException:
                self._recover(cursor, newest)
                raise
            if set_cursor:
                self._set_last_cursor(given)
        self._bump_mutation_revision()

    def _must_be_the_writers(self, cursor: Any) -> None:
        """Refuse to write in a process that was given the storage when it started: it shares the writer, and not the store."""
        if self._shared_with_this:
            self._recover(cursor, self._places.newest)
            raise InputError(
                f"{self.path}: only the process that made this storage writes to it, and this one was given it when it was "
                "started. Several writers of one replay buffer, as with MultiCollector(replay_buffer=...), do not work yet: have "
                "collectors return what they collect, and extend the buffer in the process that made it"
            )

    def _put(self, cursor: Any, data: Any) -> None:
        known = self._places
        opened, entries = self._writing(data)
        if self._places is not known and not self._places.hold_the_same(known):  # some of which `data` would take the place of
            raise InputError(
                f"{self.path}: another process has written since this was opened; nothing was written now. Its steps are known "
                "by now, and the writer goes on behind them: write again"
            )
        places = np.atleast_1d(np.arange(len(self._places.names))[plain(cursor)])
        rows = entries.rows(indexed(data, entries, places), len(places), opened._numbers_of_strings)
        self._kind, self._places.axes = Kind.of(data), axes_of(data, self.ndim)
        while len(again := self._places.old_ones(places)):
            if entries.stack > 1:
                raise InputError(
                    "steps that are in use would have to be stored once more, as places are not written to in a ring, and stacks "
                    "of frames cannot be; make the storage with frame_stack=1, at another path, for such writers"
                )
            old = entries.rows(self._steps(self._places.names[again]), len(again), opened._numbers_of_strings)
            self._append(opened, old, again)
        self._append(opened, rows, places)

    def _recover(self, cursor: Any, newest: int) -> None:
        """Know what there is, after a write to `cursor` that failed or was interrupted; TorchRL's writers are past it already."""
        if self.store.writes and self.store.buffer is not None:
            self._take_up(self.store.buffer)
        places = np.ravel(plain(cursor[0] if isinstance(cursor, tuple) else cursor))
        for writer in self._writers():
            if self._places.newest != newest:  # some of it was written, or others wrote
                writer._cursor = self._places.next
            elif places.dtype.kind in "iu" and len(places) and places[-1] + 1 - writer._cursor in (0, len(self._places.names)):
                writer._cursor = int(places[0])  # it was this one's write

    def _writers(self) -> Iterator[RoundRobinWriter]:
        """Yield the writers of the buffers that this is the storage of."""
        for buffer in self._attached_entities:
            writer = getattr(buffer, "_writer", None)
            if isinstance(writer, RoundRobinWriter):
                yield writer

    def _merged(self, cursor: tuple[Any, ...], data: Any) -> tuple[Any, Any]:
        """Return whole places, of which parts are to be other."""
        grid = np.zeros(self._places.names.shape, np.bool_)
        grid[plain(cursor)] = True
        places = np.flatnonzero(grid.reshape(len(grid), -1).any(axis=1))
        whole = self._steps(self._places.names[places])
        whole = whole.to_tensordict() if isinstance(whole, LazyRows) else whole.clone()
        moved = np.searchsorted(places, np.arange(len(self._places.names))[plain(cursor[0])])
        whole[(torch.from_numpy(np.atleast_1d(moved)), *cursor[1:])] = data
        return places, whole

    def _append(self, opened: ReplayBuffer, rows: dict[str, Any], places: Int64) -> None:
        n, lanes = len(places), opened.n_envs
        rows[SLOT] = np.repeat(self._places.slots(places)[:, None], lanes, axis=1)
        together = n if lanes == 1 else max(len(self._places.names) // 16, 1)  # or one lane would have steps of others evicted
        for first in range(0, n, together):
            some = slice(first, min(first + together, n))
            if some.stop - first == 1:
                step = {name: _each(v, lambda v, at=first: v[at]) for name, v in rows.items()}
                opened.add(**{"action": None} | step)
                continue
            for lane in range(lanes):
                opened.extend(env=lane, **{name: _each(v, lambda v, t=some, at=lane: v[t, at]) for name, v in rows.items()})
        ages = np.arange(min(n, int(opened.counts()[0].min())) - 1, -1, -1)  # the others are evicted already
        names = np.stack([opened.recent_steps(ages, lane) for lane in range(lanes)], axis=1)
        self._places.put(places[n - len(ages) :], names)

    def _empty(self) -> None:
        """Have no steps; those on disk are evicted as others come, and are back where it is opened again before that."""
        with self._lock:
            self._must_be_the_writers(np.zeros(0, np.int64))
            if self._entries is not None:
                self.open_to_write()  # or who writes first would find them again
            self._places.empty()
        self._bump_mutation_revision()

    def flush(self) -> None:
        """Bring every step to the disk, against a power loss; a kill of the process loses nothing in any case."""
        self.store.flush()

    def close(self) -> None:
        """Close the store, and let others write to it."""
        self.store.close()

    # Reading

    def get(self, index: Any) -> Any:
        """Return the steps in places: many, or a slice of them, are read when their entries are asked for."""
        with self._lock:
            if self._entries is None:
                raise RuntimeError("Cannot get elements out of a non-initialized storage.")
            names = np.array(self._places.names[: self._places.filled][plain(index)])
        return self._steps(names, lazy=has_slice(index))

    def _steps(self, names: Int64, *, lazy: bool = False) -> Any:
        """Return steps by their names, of any shape; `lazy` if they are read when they are asked for."""
        entries = self._entries
        assert entries is not None
        if (names < 0).any():
            raise InputError("there is nothing in some of these places")
        if lazy:
            read = partial(self._column, names)
            tree = entries.nested(lambda entry, at: Later(partial(read, entry, at)))
        else:
            batch = self.reading().at(names.ravel())
            tree = entries.nested(lambda entry, at: self._shaped(entry.taken(batch, at, entries.stack), names, entry))
        plain_one = self._kind.made_of(tree, entries)
        if plain_one is not None:
            return plain_one
        size = self._batch_size(names)
        return self._kind.from_tensordict(LazyRows.of(tree, size) if lazy else TensorDict(tree, size, device=self.device))

    def _batch_size(self, names: Int64) -> torch.Size:
        """Return that of tensordicts; steps may have axes of their own."""
        assert self._entries is not None
        return torch.Size((*names.shape, *next(iter(self._entries)).frames.shape[: self._places.axes]))

    def reading(self) -> ReplayBuffer:
        """Return the store's buffer."""
        opened = self.store.open_to_read()
        assert opened is not None
        return opened

    def _column(self, names: Int64, entry: Entry, at: str) -> Any:
        opened, flat = self.reading(), names.ravel()
        size = _AT_ONCE if len(entry.frames.shape) else len(flat)
        parts = [
            entry.taken(opened.at(flat[n : n + size], columns=[entry.path]), at, opened.frame_stack)
            for n in range(0, max(len(flat), 1), max(size, 1))
        ]
        return self._shaped(parts[0] if len(parts) == 1 else torch.cat(parts), names, entry)

    def _shaped(self, values: torch.Tensor, names: Int64, entry: Entry) -> Any:
        values = values.reshape((*names.shape, *entry.frames.shape))
        return self._strings(values.numpy()) if entry.strings else values.to(self.device)

    def _strings(self, numbers: Array) -> Any:
        """Return strings by their numbers."""
        opened = self.reading()
        if not self.store.writes and numbers.max(initial=0) > len(opened.tags):  # a writer elsewhere has named them since
            opened.refresh()
        return named(numbers, opened.tags)

    def steps(self, index: Any) -> Int64:
        """Return the names of the steps in places, as `ReplayBuffer` has them; -1 where there is none."""
        return np.asarray(self._places.names[: self._places.filled][plain(index)])

    def places(self, steps: Any) -> Int64:
        """Return the place of each step; -1 where it is in none any more."""
        named = np.asarray(steps, np.int64)
        return self._places.of(named.ravel(), told_by(self.reading(), named.ravel())).reshape(named.shape)

    def index_of(self, steps: Int64) -> Any:
        """Return the index of steps, (n,), that are in places: a tensor, or one for each axis."""
        places = torch.from_numpy(self.places(steps))
        if self.ndim == 1:
            return places
        lanes = np.unravel_index(steps % self.reading().n_envs, self._places.names.shape[1:])
        return (places, *map(torch.from_numpy, lanes))

    @property
    def in_order(self) -> bool:
        """Whether steps were written in a ring, so that those of an episode lie one behind the other."""
        return self._places.in_order

    def episodes(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return where episodes start and stop, (n, ndim) each, and how long they are, (n,): of what is in places."""
        episodes, lanes = self.reading().episodes, self.reading().n_envs
        starts, stops, lengths = list[Int64](), list[Int64](), list[Int64]()
        newest, size = self._places.newest, len(self._places.names)
        for lane in range(lanes):
            length = episodes.length[episodes.stream == lane]
            after = np.cumsum(length[::-1])[::-1] - length  # steps behind each episode
            length = np.minimum(length, self._places.filled - after)
            there = length > 0
            length, after = length[there], after[there]
            where = np.unravel_index(lane, self._places.names.shape[1:]) if self.ndim > 1 else ()
            at = [np.full(len(length), axis) for axis in where]
            for found, ages in ((starts, after + length - 1), (stops, after)):
                found.append(np.stack([(newest - ages) % size, *at], axis=1))
            lengths.append(length)
        start, stop, length = (np.concatenate(found).astype(np.int64) for found in (starts, stops, lengths))
        order = np.lexsort((stop[:, 0], *stop.T[:0:-1]))  # by lane, then by time
        return torch.from_numpy(start[order]), torch.from_numpy(stop[order]), torch.from_numpy(length[order])

    # What TorchRL asks its storages for

    @property
    def initialized(self) -> bool:
        """Whether anything was ever written."""
        return self._entries is not None

    @property
    def _storage(self) -> Any:
        return None if self._entries is None else self.get(slice(None))

    @property
    def _total_shape(self) -> Any:
        return None if self._entries is None else torch.Size(self._places.names.shape)

    @property
    def _len(self) -> int:
        return self._places.filled * math.prod(self._places.names.shape[1:])

    @property
    def checkpointer(self) -> StorageCheckpointerBase:
        """What `dumps` and `loads` do."""
        return self._checkpointer

    @checkpointer.setter
    def checkpointer(self, value: StorageCheckpointerBase | None) -> None:
        self._checkpointer = DiskCheckpointer() if value is None else value
        for writer in self._writers():  # this is set when a buffer is complete: new writers go on where the steps end
            if self._len and not (writer._cursor or writer._write_count):
                writer._cursor = self._places.next

    def state_dict(self) -> dict[str, Any]:
        """Return where the steps are, and none of them."""
        self.flush()
        return {"path": str(self.path), "len": self._len}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on with the steps at the state's path, as they are now; they are copied where that is another one."""
        if not isinstance(state_dict, dict) or "path" not in state_dict:
            raise InputError(f"a DiskStorage's state tells where its steps are, found {str(state_dict)[:200]}")
        path = Path(state_dict["path"])
        if path == self.path:
            self._open_to_read()
            for writer in self._writers():
                self._keep_cursor(writer)
        elif state_dict["len"]:
            self.copy_from(path)

    def _keep_cursor(self, writer: RoundRobinWriter) -> None:
        """Have a writer go on behind the newest step, though TorchRL loads its state next, which may be older than the steps."""
        writer.load_state_dict = _LoadAndGoOn(self, writer)

    def load(self, path: Path) -> None:
        """Hold what another storage's snapshot, at a path, holds, in place of what is held now.

        A SchemaError where that is of another size, or of other stacks; a NotAStoreError where something else is at this
        storage's path. All is as it was then.
        """
        DiskStorage(self.max_size, path, ndim=self.ndim, frame_stack=self._frame_stack).close()
        with self._lock:
            if self.path.exists() and any(self.path.iterdir()):
                self.open_to_write()  # so that no other process writes to it, and nothing but a store is replaced
            loaded = self.path.with_name(self.path.name + ".loaded")
            remove_tree(loaded)  # which a crash left
            try:
                shutil.copytree(path, loaded, symlinks=True)
                sync_tree(loaded)
            except BaseException:
                shutil.rmtree(loaded, ignore_errors=True)
                raise
            self.store.close()
            self._places = Places(0, ())  # which was emptied never
            try:
                put_in_place(loaded, self.path, self._replaced)
            finally:
                self._open_to_read()

    def copy_from(self, path: Path) -> None:
        """Hold what another storage, at a path, holds, in the same places, in place of what is held now."""
        other = DiskStorage(self.max_size, path, ndim=self.ndim)
        self._empty()
        order, size = other._places.in_order_of_writing(), _AT_ONCE // 4
        for places in (order[first : first + size] for first in range(0, len(order), size)):
            self.set(torch.from_numpy(places), other.get(places))
        other.close()

    def flatten(self) -> Any:
        """Return a storage in memory of one dimension, as TorchRL's do."""
        return self if self.ndim == 1 else TensorStorage(self.get(slice(None)).to_tensordict().flatten(0, self.ndim - 1))

    def __repr__(self) -> str:
        keys = [".".join(entry.key) for entry in self._entries or ()]
        return f"DiskStorage({len(self)} of {self.max_size} steps at {self.path}: {', '.join(keys)})"

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = Storage.__getstate__(self)
        if get_spawning_popen() is not None:
            self.flush()
            state["_shared_with_this"] = True
        del state["_lock"]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        Storage.__setstate__(self, state)
        self._lock = threading.RLock()
        self._open_to_read()


def _remove(store: OpenedLate, process: int) -> None:
    if process != os.getpid():
        return  # a fork's
    close_or_tell(store.close, store.path)
    shutil.rmtree(store.path.parent, ignore_errors=True)


class _LoadAndGoOn:
    """What a writer has in place of its own `load_state_dict`, once; a class, so that the writer can be pickled meanwhile."""

    def __init__(self, storage: DiskStorage, writer: RoundRobinWriter) -> None:
        self._storage, self._writer = storage, writer

    def __call__(self, state_dict: dict[str, Any]) -> None:
        writer, storage = self._writer, self._storage
        del writer.load_state_dict  # this, which is the instance's
        writer.load_state_dict(state_dict)
        writer._cursor = storage._places.next if storage._len else 0


def _each(values: Any, function: Any) -> Any:
    return {name: _each(v, function) for name, v in values.items()} if isinstance(values, dict) else function(values)
