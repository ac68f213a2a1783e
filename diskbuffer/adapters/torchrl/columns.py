"""Columns of the steps that a storage of TorchRL's holds, as they are asked for: some steps of one, or all, kept in memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np
import numpy.typing as npt
import torch

from diskbuffer.adapters.torchrl.entries import Entry, Key
from diskbuffer.adapters.torchrl.kept import Kept
from diskbuffer.adapters.torchrl.places import Ring, of_all_lanes
from diskbuffer.adapters.torchrl.trajectories import Selection, Source, Trajectories

if TYPE_CHECKING:
    from diskbuffer.adapters.torchrl.stored import Stored
from diskbuffer.plugin import Batch

Array = npt.NDArray[Any]
Int64 = npt.NDArray[np.int64]
_AT_ONCE, _SMALL_AT_ONCE = 4096, 65_536  # steps that are read together, and numbers of them
CPU = torch.device("cpu")

F = TypeVar("F", bound=Callable[..., Any])


def uncompiled(function: F) -> F:
    """Have torch.compile leave a function alone: it reads or writes files, of which there is no graph."""
    return cast(F, torch.compiler.disable(function))  # type: ignore[no-untyped-call]


@dataclass(frozen=True)
class Chosen:
    """Steps that are known by name, or those of a ring that were in some of its places at a time."""

    shape: tuple[int, ...]
    names: Int64 | None
    span: range | None = None
    ring: Ring | None = None
    numbers: Batch = field(default_factory=dict)  # those that were read of them

    def is_all_of(self, ring: Ring) -> bool:
        """Tell whether they are all steps that are in a ring now, in its order."""
        return self.ring is not None and self.span == range(ring.filled) and ring.since(self.ring) == 0

    def names_in_blocks(self, stored: Stored, size: int) -> Iterator[Int64]:
        """Yield their names, flat: so many together, or a little less; at least once."""
        if self.names is not None:
            flat = self.names.ravel()
            yield from (flat[first : first + size] for first in range(0, max(len(flat), 1), size))
            return
        assert self.span is not None
        assert self.ring is not None
        lanes = len(self.ring.ever)
        together = max(size // lanes, 1)
        for first in range(0, max(len(self.span), 1), together):
            places = np.asarray(self.span[first : first + together], np.int64)
            with stored.lock:  # or steps could be added in between
                yield self.ring.names(stored.opened, *of_all_lanes(places, lanes))


class Columns:
    """What is known of an open store's columns.

    The store is given to each method, and not held: nothing but what holds the store itself keeps it open.
    """

    def __init__(self) -> None:
        self._kept: dict[tuple[Key, str], Kept] = {}
        self._trajectories: dict[Source, Trajectories] = {}

    def read(self, stored: Stored, chosen: Chosen, device: torch.device, entry: Entry, at: str) -> torch.Tensor:
        """Return one entry of steps."""
        with stored.lock:
            ring = stored.places.ring if stored.places.in_order else None
            if ring is not None and entry.is_number and chosen.is_all_of(ring):
                return self._all(stored, ring, entry, at).to(device)
        if entry.is_number and chosen.names is not None and chosen.names.size <= _SMALL_AT_ONCE:
            values = _number(stored, chosen, chosen.names.ravel(), entry, at)
        else:
            size = _SMALL_AT_ONCE if entry.is_number else _AT_ONCE
            parts = [_values(stored, names, entry, at) for names in chosen.names_in_blocks(stored, size)]
            values = parts[0] if len(parts) == 1 else torch.cat(parts)
        return values.reshape((*chosen.shape, *entry.frames.shape)).to(device)

    def _all(self, stored: Stored, ring: Ring, entry: Entry, at: str) -> torch.Tensor:
        """Return a number of each step, as it is kept."""
        read = partial(_in_places, stored, entry, at)
        if (entry.key, at) in self._kept:
            values = self._kept[entry.key, at].up_to(ring, read)
            if values is not None:
                return values
        kept = self._kept[entry.key, at] = Kept((*stored.places.shape, *entry.frames.shape), entry.frames.dtype)
        return cast(torch.Tensor, kept.up_to(ring, read))

    def trajectories(self, stored: Stored, source: Source, least: Sequence[int]) -> list[Selection] | None:
        """Return those of at least so many steps, for each of some; None where the store cannot tell trajectories by that."""
        entries, places = stored.known(), stored.places
        found = [entries.find(key) for key in source.keys]
        there = [(entry, at) for entry, at in filter(None, found) if _tells(entry, source)]
        if not there or len(there) < sum(map(bool, found)):
            return None
        if source not in self._trajectories:
            grid = np.arange(stored.opened.n_envs).reshape(places.lanes)
            order = np.moveaxis(grid, -1, 0).ravel() if places.lanes else grid.ravel()
            self._trajectories[source] = Trajectories(order, is_number=source.is_number)
        known = self._trajectories[source]
        known.bring_up_to(places.ring, lambda at: _any([_in_places(stored, *which, at) for which in there]))
        return [known.of(n) for n in least]


def _number(stored: Stored, chosen: Chosen, names: Int64, entry: Entry, at: str) -> torch.Tensor:
    """Return an entry of a number a step; who asks for one flag asks for others, too, which are read with it."""
    if not chosen.numbers:
        chosen.numbers.update(stored.opened.at(names, columns=stored.known().numbers))
    return entry.taken(chosen.numbers, at, stored.opened.frame_stack)


def _in_places(stored: Stored, entry: Entry, at: str, places: Int64) -> Array:
    """Return a number of each of the steps that are in places, (n,), now: (n, lanes)."""
    lanes = stored.opened.n_envs
    names = stored.places.names(stored.opened, *of_all_lanes(places, lanes))
    return _values(stored, names, entry, at).numpy().reshape(len(places), lanes)


def _values(stored: Stored, names: Int64, entry: Entry, at: str) -> torch.Tensor:
    """Return an entry of steps by their names, (n,)."""
    opened = stored.opened
    return entry.taken(opened.at(names, columns=[entry.path]), at, opened.frame_stack)


def _tells(entry: Entry, source: Source) -> bool:
    shape, dtype = entry.frames.shape, entry.frames.dtype
    return not shape if source.is_number else dtype == np.bool_ and math.prod(shape) == 1


def _any(found: list[Array]) -> Array:
    return found[0] if len(found) == 1 else np.logical_or.reduce(found)
