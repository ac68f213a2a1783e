"""The store behind a storage of TorchRL's: writing steps to places, and reading them."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
import numpy.typing as npt
import torch
from tensordict import TensorDict

from diskbuffer import Column, ReplayBuffer
from diskbuffer.adapters.place_column import SLOT
from diskbuffer.adapters.torchrl.entries import Entries, Entry, as_tensordict
from diskbuffer.adapters.torchrl.replacing import put_in_place, remove_leftovers, remove_tree, take_back
from diskbuffer.adapters.torchrl.ring import NO_INT64, Ring, has_slice, is_one, plain
from diskbuffer.adapters.torchrl.rows import Later, Rows, Span
from diskbuffer.errors import InputError, SchemaError
from diskbuffer.plugin import SharedStore, counted, integer, is_store

Array = npt.NDArray[Any]
Int64 = npt.NDArray[np.int64]
CPU = torch.device("cpu")
_TRIES = 20  # to load what a writer elsewhere is changing
_MORE = 64  # steps of each environment that a store keeps for who reads while others are written, or an eighth
_AT_ONCE, _NUMBERS_AT_ONCE = 4096, 65_536  # steps that are read together, and numbers of them

F = TypeVar("F", bound=Callable[..., Any])


def uncompiled(function: F) -> F:
    """Exclude a function from torch.compile: it reads or writes files, of which there is no graph."""
    return cast(F, torch.compiler.disable(function))  # type: ignore[no-untyped-call]


class Stored(SharedStore):
    """Steps in a ring of places, in a store that is opened read-only until something is written.

    Parameters
    ----------
    path : path-like
    max_size : int
        Places, of all environments together.
    ndim : int
        Axes of places: 2 for environments side by side.
    frame_stack : int
        Frames in a picture.
    **options
        Of `ReplayBuffer`.

    Attributes
    ----------
    max_size : int
        Rounded up to a multiple of the environments, once these are known.
    entries : Entries, optional
        None before the first step.
    ring : Ring
    """

    def __init__(self, path: str | os.PathLike[str], max_size: int, ndim: int = 1, frame_stack: int = 1, **options: Any) -> None:
        super().__init__(path, autoreset="disabled", **options)
        self.max_size, self.ndim, self._frame_stack = max_size, ndim, integer("frame_stack", frame_stack)
        self.entries: Entries | None = None
        self.ring = Ring(0, ())
        self._lanes: tuple[int, ...] = ()  # of a store with more than two axes, which does not tell them
        self._kept: dict[tuple[Any, str], tuple[Array, torch.Tensor, int]] = {}  # columns, and `_written` when they were read
        self._written = 0  # steps that were written to the ring
        self._replaced = 0  # how often another store took the place of this one
        take_back(self.path.resolve())
        self.open_to_read()

    # Opening

    def accept(self, opened: ReplayBuffer) -> None:
        """Load which entries steps have, and where they are; a SchemaError where the store is another storage's."""
        ring = self._empty_ring(opened)
        self._refuse_another(opened, ring)
        for attempt in range(_TRIES):
            try:
                ring.load(opened)
                break
            except InputError:  # a writer elsewhere evicts meanwhile
                if attempt == _TRIES - 1:
                    raise
                opened.refresh()
                ring = self._empty_ring(opened)
        self.entries = Entries.stored(opened.columns, ring.lanes, opened.frame_stack)
        self.ring, self.max_size, self._kept = ring, math.prod(ring.shape), {}

    def _empty_ring(self, opened: ReplayBuffer) -> Ring:
        """Return the ring of a store that is opened, before it is loaded."""
        lanes = (opened.n_envs,) if self.ndim == 2 else self._lanes
        if len(lanes) != self.ndim - 1:
            raise InputError(f"{self.path} holds steps already, and a storage of {self.ndim} dimensions cannot be opened again")
        return Ring(-(-self.max_size // max(opened.n_envs, 1)), lanes)

    def _refuse_another(self, opened: ReplayBuffer, ring: Ring) -> None:
        if SLOT not in opened.columns:
            raise SchemaError(
                f"{self.path} is no store of a DiskStorage: its columns are {list(opened.columns)}; give another path"
            )
        n_envs, held = opened.n_envs, opened.capacity
        if held != _capacity_of(ring.size) * n_envs or (self.ndim == 1 and n_envs > 1):
            held = _size_of(held // n_envs) * n_envs if held else None
            raise SchemaError(
                f"{self.path} holds up to {held} steps of {counted(n_envs, 'environment')}, and DiskStorage({self.max_size}, "
                f"ndim={self.ndim}) asks for something else; give another path, or DiskStorage({held}, "
                f"ndim={max(self.ndim, 2) if n_envs > 1 else self.ndim})"
            )
        if opened.frame_stack != self._frame_stack:
            raise SchemaError(
                f"{self.path} holds stacks of {opened.frame_stack} frames, and frame_stack={self._frame_stack} asks for "
                f"something else; give frame_stack={opened.frame_stack}, or another path"
            )

    def refresh(self) -> None:
        """Load what another process has written since."""
        with self.lock:
            if self.buffer is not None:
                self.buffer.refresh()
            self.reload()

    def settled(self) -> ReplayBuffer:
        """Return the store, opened, with `ring` as it has it; the lock must be held for as long as it is to stay so.

        It is loaded where the store was closed, and where a reader's buffer has seen newer steps by itself. TorchRL's error where
        there are no steps yet.
        """
        self.known()
        opened = self.opened
        if not self.writes and self.ring.is_behind(opened):
            self.accept(opened)
        return opened

    def known(self) -> Entries:
        """Return the entries that steps have; TorchRL's error where there is none yet."""
        if self.entries is None:
            raise RuntimeError("Cannot get elements out of a non-initialized storage.")
        return self.entries

    # Writing

    def put(self, cursor: Any, data: Any) -> None:
        """Write steps to places, which must be the next ones; when this returns, a kill does not lose them."""
        if data.__class__ is not TensorDict:
            data = as_tensordict(data)
        with self.lock:
            known, one = self.ring, is_one(cursor)
            entries = self._begin(data.unsqueeze(0) if one and self.entries is None else data, cursor)
            ring = self.ring
            places = ring.places_at(cursor)
            if places.tobytes() != ring.next_places(len(places)).tobytes():  # in a tenth of the time of `np.array_equal`
                raise InputError(self._out_of_turn(places, known))
            if not len(places):
                return
            ring.axes = max(len(data.batch_size) + one - self.ndim, 0)
            rows = entries.rows(data, places)
            slots = ring.slots(places)
            rows[SLOT] = slots if ring.lane_count == 1 else np.broadcast_to(slots[:, None], (len(slots), ring.lane_count))
            try:
                self.opened.extend(**rows)
                ring.put(len(places))
                self._written += len(places)
            except BaseException:  # the disk may be full; a Ctrl-C may come at any instant
                self.reload()
                raise

    def _out_of_turn(self, places: Int64, known: Ring) -> str:
        if known is not self.ring and self.ring.filled and not known.is_at(self.ring):
            return (
                f"{self.path}: another process has written since this was opened; nothing was written now. Its steps are known "
                "by now, and the writer goes on after them: write again"
            )
        where = f"places {places[:3].tolist()}{' ...' * (len(places) > 3)}" if len(places) else "no place"
        return (
            f"{self.path}: steps on disk are not changed, so that places are written to one after the other, and place "
            f"{self.ring.next} is next, not {where}. Extend the buffer, with TorchRL's RoundRobinWriter; what is known of a step "
            "later goes into a column of the store: storage.stored.buffer.columns.write(...)"
        )

    def _begin(self, data: Any, cursor: Any) -> Entries:
        """Open the store for writing, or make it for such steps; return the entries that it has."""
        if self.entries is not None or is_store(self.path):
            if not self.writes:
                self.open_to_write()
                remove_leftovers(self.path.resolve())
            return self.known()
        if np.size(plain(cursor)) == 0:
            raise InputError("the first step tells what a storage holds, and no step was given")
        entries = Entries.of(data, self.ndim, self._frame_stack)
        n_envs, self._lanes = math.prod(entries.lanes), entries.lanes
        self.open_to_write(
            columns=entries.columns | {SLOT: Column((), "int64")},
            capacity=_capacity_of(-(-self.max_size // n_envs)) * n_envs,
            n_envs=n_envs,
            frame_stack=entries.stack,
            padding=entries.padding(data),
        )
        self.entries = entries  # in the order in which they were given, which columns have not
        return entries

    def empty(self) -> None:
        """Drop every step, for good; see `ReplayBuffer.clear`."""
        with self.lock:
            if self.entries is not None:
                self.open_to_write().clear()
                self.reload()

    def restore(self, source: Path) -> None:
        """Hold what the store at a path holds, as it is now, in place of what is held here.

        A SchemaError where that is of another size, or of other stacks; a NotAStoreError where something else is at this
        storage's path. All is as it was then.
        """
        Stored(source, self.max_size, self.ndim, self._frame_stack).close()
        with self.lock:
            if self.path.exists() and any(self.path.iterdir()):
                self.open_to_write()  # so that no other process writes to it, and nothing but a store is replaced
            place = self.path.resolve()
            loaded = place.with_name(place.name + ".loaded")
            remove_tree(loaded)  # which a crash left
            with ReplayBuffer(source, mode="r") as other:
                other.copies.snapshot(loaded)
            self.close()
            try:
                put_in_place(loaded, place)
                self._replaced += 1
            finally:
                self.open_to_read()

    # Reading

    def get(self, index: Any, device: torch.device = CPU) -> Any:
        """Return the steps in places."""
        entries, ids = self.known(), self.steps(index)
        batch = self.opened.at(ids.ravel())

        def shaped(entry: Entry, at: str) -> torch.Tensor:
            values = entry.taken(batch, at, entries.stack)
            if ids.ndim != 1:
                values = values.reshape((*ids.shape, *entry.frames.shape))
            return values if device.type == "cpu" else values.to(device)

        # Without looking at each tensor again, which takes ten times as long; devices have to be looked at.
        make = TensorDict if device.type != "cpu" else TensorDict._new_unsafe
        return make(entries.nested(shaped), batch_size=self._batch_size(ids.shape), device=device)

    def look(self, index: Any, device: torch.device = CPU) -> Rows:
        """Return the steps that are in places now, of which each entry is read when it is asked for."""
        with self.lock:
            opened = self.settled()
            ring, replaced, span = self.ring.as_it_is(), self._replaced, self.ring.span(index)
            ids = NO_INT64 if span is not None else ring.ids(opened, *ring.chosen(plain(index)))
        shape = ids.shape if span is None else (len(span), *ring.lanes)

        @uncompiled
        def column(entry: Entry, at: str) -> torch.Tensor:
            with self.lock:
                now = self.settled()
                if replaced != self._replaced:
                    raise InputError(f"{self.path}: other steps were loaded since these were indexed; index the storage again")
                if entry.is_number and span == range(ring.filled) and ring.is_at(self.ring):
                    return self._whole(entry, at).to(device)
                size = _NUMBERS_AT_ONCE if entry.is_number else _AT_ONCE
                blocks = _blocks(ids.ravel(), size) if span is None else self._names_of(ring, now, span, size)
                parts = [self._column(block, entry, at) for block in blocks]
            values = parts[0] if len(parts) == 1 else torch.cat(parts)
            return values.reshape((*shape, *entry.frames.shape)).to(device)

        tree = self.known().nested(lambda entry, at: Later(partial(column, entry, at)))
        return (Span if has_slice(index) else Rows).of(tree, self._batch_size(shape))

    @staticmethod
    def _names_of(ring: Ring, buffer: ReplayBuffer, span: range, size: int) -> Iterator[Int64]:
        """Yield the ids of the steps of places, all lanes of each one behind the other."""
        for some in _blocks(np.array(span, np.int64), max(size // ring.lane_count, 1)):
            yield ring.names_of_then(buffer, *ring.of_all_lanes(some))

    def _column(self, ids: Int64, entry: Entry, at: str) -> torch.Tensor:
        opened = self.opened
        return entry.taken(opened.at(ids, columns=[entry.path]), at, opened.frame_stack)

    def _whole(self, entry: Entry, at: str) -> torch.Tensor:
        """Return a number of each step in the ring: a view of what is kept in memory, and follows what is written."""
        ring, key = self.ring, (entry.key, at)
        values, tensor, known = self._kept.get(key) or (None, None, 0)
        if values is None or tensor is None or tensor._version:  # or somebody has changed it in place
            values, known = np.zeros((*ring.shape, *entry.frames.shape), entry.frames.dtype), self._written - ring.filled
            with torch.inference_mode(False):  # whose tensors do not tell that they were changed
                tensor = torch.from_numpy(values)
        for places in _blocks(ring.newest_places(min(self._written - known, ring.filled)), _NUMBERS_AT_ONCE):
            ids = ring.ids(self.opened, *ring.of_all_lanes(places))
            values[places] = self._column(ids, entry, at).numpy().reshape(len(places), *values.shape[1:])
        self._kept[key] = values, tensor, self._written
        return tensor[: ring.filled]

    def _batch_size(self, shape: tuple[int, ...]) -> torch.Size:
        """Return the batch size of steps of such a shape, which may have axes of their own."""
        return torch.Size((*shape, *next(iter(self.known())).frames.shape[: self.ring.axes]))

    # Places and steps

    def steps(self, index: Any) -> Int64:
        """Return the ids of the steps in places, as `ReplayBuffer` has them."""
        with self.lock:
            opened = self.settled()
            return self.ring.ids(opened, *self.ring.chosen(plain(index)))

    def places_of(self, steps: Any) -> Int64:
        """Return the place of each step; -1 where it is in none any more."""
        ids = np.asarray(steps, np.int64)
        with self.lock:
            return self.ring.places_of(self.settled(), ids.ravel()).reshape(ids.shape)

    def __getstate__(self) -> dict[str, Any]:
        """Return what it takes to open it again elsewhere: no data."""
        return super().__getstate__() | {"_kept": {}}


def _capacity_of(size: int) -> int:
    """Return how many steps the store of a ring keeps: some more, for slices that were taken, and threads that read meanwhile."""
    return size + max(_MORE, -(-size // 8))


def _size_of(capacity: int) -> int:
    """Return the size of a ring whose store keeps so many steps."""
    return max(capacity - _MORE if capacity <= 9 * _MORE else capacity * 8 // 9, 0)


def _blocks(array: Int64, size: int) -> Iterator[Int64]:
    """Yield parts of an array, at least one."""
    yield from (array[first : first + size] for first in range(0, max(len(array), 1), size))
