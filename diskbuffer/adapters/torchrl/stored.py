"""The store behind a storage of TorchRL's: which step is in which place, writing steps to places, and reading them."""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from tensordict import TensorDict

from diskbuffer import ReplayBuffer
from diskbuffer.adapters.place_column import SLOT, told_by
from diskbuffer.adapters.torchrl.columns import CPU, Chosen, Columns, uncompiled
from diskbuffer.adapters.torchrl.entries import Entries, Entry, as_tensordict
from diskbuffer.adapters.torchrl.indices import has_slice, is_one, plain
from diskbuffer.adapters.torchrl.many_steps import ManySteps
from diskbuffer.adapters.torchrl.places import Places
from diskbuffer.adapters.torchrl.replacing import put_in_place, remove_tree, take_back
from diskbuffer.adapters.torchrl.rows import Later, Rows, Span
from diskbuffer.adapters.torchrl.trajectories import Selection, Source
from diskbuffer.errors import InputError, SchemaError
from diskbuffer.formats.unfinished import sync_tree
from diskbuffer.plugin import SharedStore, counted, integer_or_none, is_store, one_of

Int64 = npt.NDArray[np.int64]
_TRIES = 20  # to load what a writer elsewhere is changing


class Stored(SharedStore):
    """Steps in places, in a store that is opened read-only until something is written.

    Parameters
    ----------
    path : path-like
    max_size : int
        Places, of all environments together.
    ndim : int
        Axes of places: 2 for environments side by side.
    frame_stack : int, optional
        Recognised by the first step where it is missing.
    **options
        Of `ReplayBuffer`.

    Attributes
    ----------
    max_size : int
        Rounded up to a multiple of the environments, once these are known.
    entries : Entries, optional
        None before the first step.
    places : Places
    """

    def __init__(
        self, path: str | os.PathLike[str], max_size: int, ndim: int = 1, frame_stack: int | None = None, **options: Any
    ) -> None:
        super().__init__(path, autoreset="disabled", **options)
        self.max_size, self.ndim, self._frame_stack = max_size, ndim, integer_or_none("frame_stack", frame_stack)
        self.entries: Entries | None = None
        self.places = Places(0, ())
        self._lanes: tuple[int, ...] = ()  # of a store with more than two axes, which does not tell them
        self._many_steps: ManySteps | None = None
        self._columns = Columns()
        self._loaded = 0  # how often another store took the place of this one
        if not self.path.exists():  # a crash came while `restore` put another store in its place
            take_back(self.path, self._aside)
        self.open_to_read()

    @property
    def _aside(self) -> Path:
        """Where this store is while another one is put in its place."""
        place = self.path.resolve()
        return place.with_name(place.name + ".replaced")

    # Opening

    def accept(self, opened: ReplayBuffer) -> None:
        """Load which entries steps have, and where they are; a SchemaError where the store is another storage's."""
        if opened is not self._buffer:
            self._columns = Columns()
        places = self._unfilled(opened)
        self._refuse_another(opened, places.capacity)
        for attempt in range(_TRIES):
            try:
                places.load(opened)
                break
            except InputError:  # a writer elsewhere evicts meanwhile
                if attempt == _TRIES - 1:
                    raise
                opened.refresh()
                places = self._unfilled(opened)
        self._many_steps = None
        self.entries = Entries.stored(opened.columns, places.lanes, opened.frame_stack)
        self.places, self.max_size = places, math.prod(places.shape)

    def _unfilled(self, opened: ReplayBuffer) -> Places:
        """Return the places of a store that is opened, before any is loaded."""
        lanes = (opened.n_envs,) if self.ndim == 2 else self._lanes
        if len(lanes) != self.ndim - 1:
            raise InputError(f"{self.path} holds steps already, and a storage of {self.ndim} dimensions cannot be opened again")
        return Places(-(-self.max_size // max(opened.n_envs, 1)), lanes)

    def _refuse_another(self, opened: ReplayBuffer, capacity: int) -> None:
        if SLOT not in opened.columns:
            raise SchemaError(
                f"{self.path} is no store of a DiskStorage: its columns are {list(opened.columns)}; give another path"
            )
        n_envs = opened.n_envs
        if opened.capacity != capacity * n_envs or (self.ndim == 1 and n_envs > 1):
            held = Places.held_by(opened.capacity, n_envs)
            raise SchemaError(
                f"{self.path} holds up to {held} steps of {counted(n_envs, 'environment')}, and DiskStorage({self.max_size}, "
                f"ndim={self.ndim}) asks for something else; give another path, or DiskStorage({held}, "
                f"ndim={max(self.ndim, 2) if n_envs > 1 else self.ndim})"
            )
        if self._frame_stack and opened.frame_stack != self._frame_stack:
            raise SchemaError(
                f"{self.path} holds stacks of {opened.frame_stack} frames, and frame_stack={self._frame_stack} asks for "
                "something else; leave it out, or give another path"
            )

    def refresh(self) -> None:
        """Load what another process has written since."""
        with self.lock:
            if self._buffer is not None:
                self._buffer.refresh()
            self.reload()

    def _settled(self) -> ReplayBuffer:
        """Return the store, opened, with `places` as it has them; the lock must be held for as long as they are to stay so.

        They are loaded where it was closed, and where a reader's buffer has seen newer steps by itself. TorchRL's error where
        there are no steps yet.
        """
        self.known()
        opened = self.opened
        if not self._writes and self.places.are_behind(opened):
            self.accept(opened)
        return opened

    def _begin(self, data: Any) -> Entries:
        """Open the store for writing, or make it for such steps; return the entries that it has."""
        if self.entries is not None or is_store(self.path):
            self.open_to_write()
            assert self.entries is not None
            return self.entries
        entries = Entries.of(data, self.ndim, self._frame_stack)
        n_envs, self._lanes = math.prod(entries.lanes), entries.lanes
        self.open_to_write(
            columns=entries.columns,
            capacity=Places(-(-self.max_size // n_envs), entries.lanes).capacity * n_envs,
            n_envs=n_envs,
            frame_stack=entries.stack,
            padding=entries.padding(data),
        )
        self.entries = entries  # in the order in which they were given, which columns have not
        return entries

    # Writing

    def put(self, cursor: Any, data: Any, known: Places, device: torch.device = CPU) -> None:
        """Put steps in places, unless there are others than were `known`; when this returns, a kill does not lose them.

        `device` is where those are read to of which `data` is a part alone.
        """
        if data.__class__ is not TensorDict:
            data = as_tensordict(data)
        with self.lock:
            if isinstance(cursor, tuple):
                self._settled()
                cursor, data = self._merged(cursor, data, device)
            try:
                if self._put_directly(cursor, data):
                    return
                if is_one(cursor):
                    data = data.unsqueeze(0)
                self._put(cursor, data, known)
            except BaseException:  # the disk may be full; a Ctrl-C may come at any instant
                if self._writes:
                    self.reload()
                raise

    def _merged(self, cursor: tuple[Any, ...], data: Any, device: torch.device) -> tuple[Any, Any]:
        """Return whole places, and what is to be in them when parts of them are replaced."""
        grid = np.zeros(self.places.shape, np.bool_)
        grid[plain(cursor)] = True
        places = np.flatnonzero(grid.reshape(len(grid), -1).any(axis=1))
        whole = self.read(self.steps(places), device).clone()
        moved = np.searchsorted(places, np.arange(self.places.size)[plain(cursor[0])])
        whole[(torch.as_tensor(moved), *cursor[1:])] = data
        return places, whole

    def _put_directly(self, cursor: Any, data: Any) -> bool:
        """Put tensordicts in places without a copy, where they are as the store has them; return whether that was so."""
        one = is_one(cursor)
        if self._many_steps is None or not self._writes or data.__class__ is not TensorDict:
            return False
        places = self._places_at(cursor)
        n = len(places)
        if not 0 < n <= self.places.size or (n == 1 and self.opened.n_envs > 1):
            return False
        if len(self.places.ready_for(self.opened, places)):
            return False
        axes, self.places.axes = self.places.axes, max(len(data.batch_size) + one - self.ndim, 0)
        values = self._many_steps.find(data, n, self.places.slots(places), one=one)
        if values is None:
            self.places.axes = axes
            return False
        self.opened.extend(**values)
        lanes = self.opened.n_envs
        ages, envs = np.arange(n)[::-1].repeat(lanes), np.tile(np.arange(lanes), n)
        self.places.put(places, self.opened.steps(ages, envs).reshape(n, lanes))
        return True

    def _places_at(self, cursor: Any) -> Int64:
        """Return the places of a cursor, (n,)."""
        size, index = self.places.size, plain(cursor)
        if index.__class__ is int and 0 <= index < size:
            return np.array([index])
        is_list = isinstance(index, np.ndarray) and index.dtype == np.int64 and index.ndim == 1 and len(index) > 0
        if is_list and index.min() >= 0 and index.max() < size:
            return np.asarray(index)
        return np.atleast_1d(np.arange(size)[index])

    def _put(self, cursor: Any, data: Any, known: Places) -> None:
        if self.entries is None and not is_store(self.path) and np.size(plain(cursor)) == 0:
            raise InputError("the first step tells what a storage holds, and no step was given")
        entries = self._begin(data)
        if self.places is not known and not self.places.hold_the_same(known):  # some of which `data` would take the place of
            raise InputError(
                f"{self.path}: another process has written since this was opened; nothing was written now. Its steps are known "
                "by now, and the writer goes on after them: write again"
            )
        places = self._places_at(cursor)
        if not len(places):
            return
        rows = entries.rows(_indexed(data, entries, places), len(places))
        self.places.axes = max(len(data.batch_size) - self.ndim, 0)
        while len(again := self.places.ready_for(self.opened, places)):
            if entries.stack > 1:
                raise InputError(
                    "steps that are in use would have to be stored once more, as places are not written to in a ring, and stacks "
                    "of frames cannot be; make the storage with frame_stack=1, at another path, for such writers"
                )
            self._append(entries.rows(self.read(self.steps(again)), len(again)), again)
        self._append(rows, places)
        columns = self.opened.columns
        recorded = {path: column for path, column in columns.items() if path not in columns.derived}
        self._many_steps = ManySteps.of(entries, recorded)

    def _append(self, rows: dict[str, Any], places: Int64) -> None:
        """Add rows, (n, environments, ...), to the store as the steps of places, (n,)."""
        opened, n = self.opened, len(places)
        rows[SLOT] = np.repeat(self.places.slots(places)[:, None], opened.n_envs, axis=1)
        # With few together no environment is so far ahead that its steps evict those of others.
        together = n if opened.n_envs == 1 else max(self.places.size // 16, 1)
        for first in range(0, n, together):
            some = slice(first, min(first + together, n))
            if some.stop - first == 1:
                opened.add(**{"action": None} | one_of(rows, first))
                continue
            for env in range(opened.n_envs):
                opened.extend(env=env, **one_of(rows, (some, env)))
        ages = np.arange(min(n, int(opened.counts()[0].min())) - 1, -1, -1)  # the others are evicted already
        names = np.stack([opened.steps(ages, env) for env in range(opened.n_envs)], axis=1)
        self.places.put(places, names)

    def empty(self) -> None:
        """Drop every step, for good; see `ReplayBuffer.clear`."""
        with self.lock:
            if self.entries is not None:
                self.open_to_write().clear()
            self.places.empty()

    def restore(self, snapshot: Path) -> None:
        """Hold a copy of a snapshot of another storage's store, in place of what is held now.

        A SchemaError where that is of another size, or of other stacks; a NotAStoreError where something else is at this
        storage's path. All is as it was then.
        """
        Stored(snapshot, self.max_size, self.ndim, self._frame_stack).close()
        with self.lock:
            if self.path.exists() and any(self.path.iterdir()):
                self.open_to_write()  # so that no other process writes to it, and nothing but a store is replaced
            place = self.path.resolve()
            loaded = place.with_name(place.name + ".loaded")
            remove_tree(loaded)  # which a crash left
            try:
                shutil.copytree(snapshot, loaded, symlinks=True)
                sync_tree(loaded)
            except BaseException:
                shutil.rmtree(loaded, ignore_errors=True)
                raise
            self.close()
            try:
                put_in_place(loaded, place, self._aside)
                self._loaded += 1
            finally:
                self.open_to_read()

    # Reading

    def get(self, index: Any, device: torch.device = CPU) -> Any:
        """Return the steps in places."""
        return self.read(self.steps(index), device)

    def look(self, index: Any, device: torch.device = CPU) -> Rows:
        """Return the steps that are in places now, of which each entry is read when it is asked for."""
        with self.lock:
            opened = self._settled()
            entries, places, loaded = self.known(), self.places, self._loaded
            span = places.span(index)
            if span is not None and places.in_order:
                chosen = Chosen((len(span), *places.lanes), None, span, places.ring)
            else:
                names = places.names(opened, *places.chosen(plain(index)))
                chosen = Chosen(names.shape, names)
        tree = entries.nested(lambda entry, at: Later(partial(self._column, loaded, chosen, device, entry, at)))
        return (Span if has_slice(index) else Rows).of(tree, self._batch_size(chosen.shape))

    @uncompiled
    def _column(self, loaded: int, *what: Any) -> torch.Tensor:
        """Read an entry of steps that were chosen when the store had been replaced so often."""
        with self.lock:
            self._settled()
            if loaded != self._loaded:
                raise InputError(f"{self.path}: other steps were loaded since these were indexed; index the storage again")
            columns = self._columns
        return columns.read(self, *what)

    def trajectories(self, source: Source, least: Sequence[int]) -> list[Selection] | None:
        """Return those of at least so many steps, for each of some; None where TorchRL has to look at all steps."""
        with self.lock:
            if self.entries is None or not (self._settled() and self.places.in_order and self.places.filled):
                return None
            return self._columns.trajectories(self, source, least)

    def _batch_size(self, shape: tuple[int, ...]) -> torch.Size:
        """Return the batch size of steps of such a shape, which may have axes of their own."""
        return torch.Size((*shape, *next(iter(self.known())).frames.shape[: self.places.axes]))

    def known(self) -> Entries:
        """Return the entries that steps have; TorchRL's error where there is none yet."""
        if self.entries is None:
            raise RuntimeError("Cannot get elements out of a non-initialized storage.")
        return self.entries

    def read(self, names: Int64, device: torch.device = CPU) -> Any:
        """Return steps by their names, of any shape."""
        entries, flat = self.known(), names.ravel()
        if (flat < 0).any():
            raise InputError("there is nothing in some of these places")
        batch = self.opened.at(flat)
        tree = entries.nested(lambda entry, at: self._shaped(entry.taken(batch, at, entries.stack), names, device, entry))
        # Without looking at each tensor again, which takes ten times as long; devices have to be looked at.
        make = TensorDict if device.type != "cpu" else TensorDict._new_unsafe
        return make(tree, batch_size=self._batch_size(names.shape), device=device)

    def _shaped(self, values: torch.Tensor, names: Int64, device: torch.device, entry: Entry) -> Any:
        if names.ndim != 1:
            values = values.reshape((*names.shape, *entry.frames.shape))
        return values if device.type == "cpu" else values.to(device)

    # Places and steps

    def steps(self, index: Any) -> Int64:
        """Return the names of the steps in places, as `ReplayBuffer` has them; -1 where there is none."""
        with self.lock:
            opened = self._settled()
            return self.places.names(opened, *self.places.chosen(plain(index)))

    def places_of(self, steps: Any) -> Int64:
        """Return the place of each step; -1 where it is in none any more."""
        names = np.asarray(steps, np.int64)
        with self.lock:
            opened = self._settled()
            return self.places.of(opened, names.ravel(), told_by(opened, names.ravel())).reshape(names.shape)

    def __getstate__(self) -> dict[str, Any]:
        """Return what it takes to open it again elsewhere: no data."""
        return super().__getstate__() | {"_columns": Columns()}


def _indexed(data: Any, entries: Entries, places: Int64) -> Any:
    """Return tensordicts with the entry "index" that TorchRL's writers add, or without it, as the storage has it."""
    has = any(entry.key == ("index",) for entry in entries)
    given = "index" in data.keys()  # noqa: SIM118  tensordicts are no dicts
    if has and not given:
        index = torch.from_numpy(places).reshape(-1, *(1,) * (data.ndim - 1)).expand(data.shape)
        return data.copy().set("index", index)
    return data.exclude("index") if given and not has else data
