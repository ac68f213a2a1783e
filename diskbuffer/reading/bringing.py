"""Bringing here what a batch needs of a store whose files are elsewhere, before it is gathered."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from diskbuffer.native import gather
from diskbuffer.reading.gather.plan import Plan
from diskbuffer.schema import Schema
from diskbuffer.store.system.block_cache import Blocks
from diskbuffer.store.system.bucket_files import BucketFiles

Int64 = npt.NDArray[np.int64]
_LOOK_SECONDS = 5.0  # after which others are told what is used, and it is seen which files they have removed


class Mapped(Protocol):
    """What is mapped of a store, or of several."""

    def retire_gone(self) -> None:
        """Give up maps of files that have made room for others."""

    def mapped(self, slot: int, /) -> list[Any]:
        """Return the maps that a slot has now: a file of every column."""


class Shape(Protocol):
    """What tells how its columns lie in files: its `Layout`."""

    @property
    def schema(self) -> Schema:
        """All columns."""

    def looked_at(self, path: str) -> int | None:
        """Bytes at a file's end that are read when it is mapped; None for all."""


class Elsewhere(Protocol):
    """A store whose files are elsewhere, or several."""

    lock: threading.RLock

    @property
    def layout(self) -> Shape:
        """Its shape."""

    @property
    def maps(self) -> Mapped:
        """What is mapped."""


class Bringing:
    """What a gatherer asks for parts of shards; any number of callers at once, none of whom holds the store's lock.

    Parameters
    ----------
    store : Store or GatheredStore
    files : BucketFiles
        The store's, or those of the directory with all stores.
    slots : int
        The number behind the highest that the store has.
    check : callable
        ``check(path, slot, mapped)`` raises a CorruptionError where a file does not match its checksum.
    """

    def __init__(self, store: Elsewhere, files: BucketFiles, slots: int, check: Callable[[str, int, Any], None]) -> None:
        self._store, self._files, self._check = store, files, check
        self._used = np.zeros(slots, np.uint8)
        self._looked = time.monotonic()

    def bring(self, plan: Plan, targets: Int64, *, whole: bool = False) -> None:
        """Have all be here that a plan reads; of files that have made room meanwhile, in memory of the plan's own."""
        self._used[plan.runs[:, gather.FILE]] = 1
        missing = self._missing_blocks(plan, targets, whole)
        if missing:
            first_run = dict(zip(plan.runs[::-1, gather.FILE].tolist(), range(len(plan.runs) - 1, -1, -1), strict=True))
            known = [self._files.mapped_at(int(plan.sources[first_run[slot], column, 0])) for column, slot, _ in missing]
            brought = self._files.bring([(blocks, part[2]) for blocks, part in zip(known, missing, strict=True)])
            for (column, slot, _), before, blocks in zip(missing, known, brought, strict=True):
                if blocks is not before:
                    self._replace(plan, column, slot, blocks)
        if time.monotonic() - self._looked > _LOOK_SECONDS:
            self._look()
        if self._files.cache.some_gone:
            with self._store.lock:
                self._store.maps.retire_gone()

    def _missing_blocks(self, plan: Plan, targets: Int64, whole: bool) -> list[tuple[int, int, Int64]]:
        """Return which blocks of shards a plan lacks: by column and slot, their numbers, each once, in order.

        With `whole`, of chunks of which only some rows would be read, all are. The index of a shard is here in any case, and
        files of flat columns come as a whole when they are mapped.
        """
        missing = gather.missing_blocks(targets, plan.runs, plan.sources, self._files.block_bytes, whole)
        if not len(missing):
            return []
        missing = np.unique(missing, axis=0)
        begins = np.flatnonzero((missing[1:, :2] != missing[:-1, :2]).any(axis=1)) + 1
        return [(int(part[0, 0]), int(part[0, 1]), part[:, 2]) for part in np.split(missing, begins)]

    def renew(self, plan: Plan, targets: Int64, target: int, run: int) -> bool:
        """Have a damaged shard come once more, and what else is read; return False where it came just now, so that is in vain."""
        column, slot = int(targets[0, target, gather.COLUMN]), int(plan.runs[run, gather.FILE])
        path = list(self._store.layout.schema)[column]
        damaged, last = self._files.mapped_at(int(plan.sources[run, column, 0])), self._store.layout.looked_at(path)
        blocks = None if last is None else self._files.renewed(damaged, last)
        if blocks is None:
            return False
        self._check(path, slot, blocks)
        self._replace(plan, column, slot, blocks)
        self.bring(plan, targets, whole=True)
        return True

    def _replace(self, plan: Plan, column: int, slot: int, blocks: Blocks) -> None:
        plan.sources[plan.runs[:, gather.FILE] == slot, column] = blocks.address, blocks.size
        plan.held.append(blocks)

    def _look(self) -> None:
        self._looked = time.monotonic()
        with self._store.lock:
            used, self._used[:] = np.flatnonzero(self._used).tolist(), 0
            maps = [mapped for slot in used for mapped in self._store.maps.mapped(slot)]
        self._files.cache.look([mapped for mapped in maps if isinstance(mapped, Blocks)])
