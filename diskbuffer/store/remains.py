"""Opening what is left of a damaged store, to look at it: as a repair would find it, with nothing changed on the disk.

Files of the segment table and the tail that are missing or cut short count as zeros, as far as they are gone. Rows whose flags or
rewards cannot be read, or that do not match their checksums, are no steps. All else is verified when it is read, as ever.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from diskbuffer.errors import CorruptionError
from diskbuffer.schema.schema import FLAGS, TAG
from diskbuffer.store import directory
from diskbuffer.store.format.checksums import OBS, STEP
from diskbuffer.store.format.layout import COPY, GROUP, SEGMENTS, TAIL
from diskbuffer.store.inspection import Inspected
from diskbuffer.store.last_writer import State
from diskbuffer.store.opening import open_store
from diskbuffer.store.recovery import going_back
from diskbuffer.store.recovery.visible_rows import visible_from, visible_rows
from diskbuffer.store.segments.mapped import InMemory
from diskbuffer.store.store import Store
from diskbuffer.store.system.files import SMALL, Files, Map

Bools = npt.NDArray[np.bool_]


class _Remains(Files):
    """A store's files, as if those without which it cannot be opened had been put in their places.

    `group` is the file that describes the store, or its copy.
    """

    def __init__(self, root: Path, group: str) -> None:
        super().__init__(root)
        self._group = group

    def anew(self) -> Files:
        return _Remains(self.root, self._group)

    @contextlib.contextmanager
    def _in(self, name: str, *, make: bool = False) -> Iterator[tuple[int, str]]:
        try:
            with super()._in(name, make=make) as opened:
                yield opened
        except CorruptionError as error:
            if isinstance(error.__cause__, NotADirectoryError):  # something else is in the place of a directory
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(self.root / name)) from error
            raise

    def read(self, name: str, most: int = SMALL) -> bytes:
        return super().read(self._group if name == GROUP else name, most)

    def is_directory(self, name: str) -> bool:
        try:
            return super().is_directory(name) or not self.is_link(name)
        except FileNotFoundError:
            return True  # an empty one

    def map(self, name: str, size: int, *, writable: bool, random: bool = False) -> Map:
        try:
            return super().map(name, size, writable=writable, random=random)
        except CorruptionError:
            if size < 0 or not name.startswith((f"{SEGMENTS}/", f"{TAIL}/")):
                raise
        contents = np.zeros(size, np.uint8)
        with contextlib.suppress(OSError, CorruptionError):
            kept = np.frombuffer(super().read(name)[:size], np.uint8)
            contents[: len(kept)] = kept
        return InMemory(contents)


def open_remains(path: Path) -> Store:
    """Open a damaged store to look at what is left of it; a CorruptionError where not even that can be read."""
    group = GROUP if directory.damaged_group(path) is None else COPY
    store = open_store(_Remains(path, group), writable=False, recover=False)
    store.durability.state = State.read(store.files, store.layout)
    kept = visible_rows(store, damaged=True)
    begins = np.zeros(store.layout.streams, np.int64)
    with contextlib.suppress(CorruptionError):
        begins = visible_from(store, kept)
    store.show_only(kept, begins, cut_off=False)
    for slots, lengths in kept:
        bad_after = False
        for slot, length in zip(slots[::-1].tolist(), lengths[::-1].tolist(), strict=True):
            bad = _bad_rows(store, slot, length, newest=slot == slots[-1])
            if bad.any() or bad_after:
                _hide(store, slot, bad, bad_after)
            bad_after = bool(bad[:1].any())
    with contextlib.suppress(CorruptionError):  # then reading these chunks says so
        going_back.show_tail(store, kept)
    return store


def _bad_rows(store: Store, slot: int, length: int, *, newest: bool) -> Bools:
    """Return which rows of a segment cannot count, (length,)."""
    if store.verification.is_sealed(slot):
        try:
            for path in _needed(store):
                store.verification.verify_file(path, slot)
        except CorruptionError:
            return np.ones(length, np.bool_)
        return np.zeros(length, np.bool_)
    segment = Inspected(store, slot, length, decode=True)
    if not all(segment.is_readable(path) for path in _needed(store)):
        return np.ones(length, np.bool_)
    steps = segment.verified(STEP)
    if newest:
        steps[-1:] = True  # nothing need have been done there
    return ~(segment.verified(OBS) & steps)


def _needed(store: Store) -> list[str]:
    """Return the columns that tell of episodes: where they begin and end, and how good they are."""
    return [*FLAGS, *(path for path in store.layout.schema.step if path.split("/")[0] == "reward")]


def _hide(store: Store, slot: int, bad: Bools, bad_after: bool) -> None:
    """Make no bad row of a segment a step, and each row before one the last of its episode."""
    layout, rows = store.layout, store.layout.segment_rows
    last = np.ones(rows, np.bool_)
    for path in [*_needed(store), *([TAG] if TAG in layout.derived else [])] if bad.all() else ["is_last"]:
        if path == "is_last":
            if not bad.all():
                last[: len(bad)] = store.verification.flags(path, slot, len(bad)) | bad | np.append(bad[1:], bad_after)
            shown: npt.NDArray[Any] = last
        else:
            shown = np.zeros((rows, *layout.schema[path].shape), layout.schema[path].np_dtype)
        if path in FLAGS:
            store.verification.replace_flags(path, slot, shown)
        store.maps.hold(path, slot, InMemory(shown.view(np.uint8).reshape(-1)))
