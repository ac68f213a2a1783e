"""Making all checksums of a store right, as a stranger can who knows the format: they tell of damage, not of who wrote."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np

from diskbuffer.schema.schema import CHECKSUM
from diskbuffer.store.format import codec
from diskbuffer.store.format.checksums import OBS, STEP, covered, row_checksums
from diskbuffer.store.format.layout import ATTRIBUTE, Layout
from diskbuffer.store.format.zarr_metadata import encode_json
from diskbuffer.store.inspection import Inspected
from diskbuffer.store.last_writer import State
from diskbuffer.store.opening import open_store
from diskbuffer.store.segments import cleared as cleared_words
from diskbuffer.store.segments.cleared import Cleared
from diskbuffer.store.segments.shard import identity, identity_of, shard_checksum
from diskbuffer.store.segments.table import NEVER, UNCHECKED, SegmentTable
from diskbuffer.store.system.files import Files
from diskbuffer.store.tail_copy import CopyNote
from tests.support.specimens import replace

_COPY, _STATE = "_segments/length/group.json", "_segments/length/state.json"
_LARGEST = 2**22  # bytes of a segment in a column that are worth the time


def vouch(root: Path) -> None:
    """Make right whatever checksum can be made right; what is too strange stays as it is."""
    with contextlib.suppress(Exception):
        layout, slots = _vouch_for_group(root)
        with contextlib.suppress(Exception):
            _vouch_for_state(root / _STATE, layout.salt)
        _Voucher(root, layout, slots).vouch()


def _vouch_for_state(file: Path, salt: int) -> None:
    found = json.loads(file.read_bytes())
    synced, begins = (tuple(int(n) for n in found[name]) for name in ("synced", "begins"))
    tail = None
    if found["tail"] is not None:
        copied = file.with_name(f"tail.{found['tail'][0]}")
        found["tail"] = tail = CopyNote(found["tail"][0], google_crc32c.value(copied.read_bytes()) if copied.is_file() else 0)
    state = State(str(found["boot"]), bool(found["clean"]), synced, begins, salt, str(found["place"]), tail)
    found["checksum"] = state._checksum()
    replace(file, json.dumps(found).encode())


def _vouch_for_group(root: Path) -> tuple[Layout, int]:
    metadata: Any = json.loads((root / "zarr.json").read_bytes())
    described = metadata["attributes"][ATTRIBUTE]
    described.pop("checksum", None)
    described["checksum"] = google_crc32c.value(json.dumps(described, sort_keys=True).encode())
    for name in ("zarr.json", _COPY):
        replace(root / name, encode_json(metadata))
    return Layout.from_group(metadata, str(root))


class _Voucher:
    """Go through the segment table, and make every entry, and what it is about, vouched for."""

    def __init__(self, root: Path, layout: Layout, slots: int) -> None:
        self._files, self._layout = Files(root), layout
        self._table = SegmentTable(self._files, layout, writable=True)
        self._table.grow(slots)
        self._store = open_store(root, writable=False, recover=False)
        self._small = all(layout.segment_rows * column.row_bytes <= _LARGEST for column in layout.schema.columns.values())

    def vouch(self) -> None:
        with contextlib.suppress(Exception):
            self._cleared()
        was_sealed = self._table.column("sealed") != 0
        for slot in np.flatnonzero(self._table.column("length"))[:64].tolist():
            steps: tuple[Callable[[int], None], ...] = (self._shards, self._rows, self._derived, self._notes)
            for step in (*steps, self._seal) if was_sealed[slot] else steps:
                with contextlib.suppress(Exception):
                    step(slot)
            self._table.set_length(slot, self._table.length(slot), no_reset=self._table.no_reset(slot))

    def _cleared(self) -> None:
        cleared = Cleared(self._files, self._layout, writable=True)
        times = int(cleared._words[2, 0]) >> 32 & 0x7FFFFFFF
        cleared._words[2, 0] = times and cleared_words._word(self._layout.salt, times, cleared._words[times & 1])

    def _shards(self, slot: int) -> None:
        for path in self._layout.packed:
            mapped = self._files.map(self._layout.data_file(path, slot), -1, writable=True)
            found = identity_of(mapped, self._layout.chunks(path))
            found[:3] = identity(self._layout, path, self._table.identity(slot))[:3]

    def _rows(self, slot: int) -> None:
        if not self._small:
            return
        layout, (stream, first) = self._layout, self._table.identity(slot)
        found = Inspected(self._store, slot, min(self._table.length(slot), layout.segment_rows), decode=True)
        mapped = self._files.map(layout.data_file(CHECKSUM, slot), layout.flat_bytes(CHECKSUM), writable=True)
        words = mapped.array(np.uint32, (layout.segment_rows, 3))
        for word in (OBS, STEP):
            rows = {path: found.rows(path, 0, found.length) for path in covered(layout.schema, word)}
            values = row_checksums(layout.schema, layout.salt, stream, first, found.length, rows, word)
            if word == STEP and self._is_newest(stream, first) and not rows["is_last"][-1].any():
                values[-1] = 0
            words[: found.length, word] = values

    def _is_newest(self, stream: int, first: int) -> bool:
        used = np.flatnonzero(self._table.column("length"))[:64].tolist()
        return first == max(at for of, at in map(self._table.identity, used) if of == stream)

    def _derived(self, slot: int) -> None:
        for path in self._layout.derived:
            if self._table.checksum(path, slot) not in (NEVER, UNCHECKED):
                self._table.set_checksum(path, slot, max(2, self._checksum(path, slot)))

    def _checksum(self, path: str, slot: int) -> int:
        layout, packed = self._layout, path in self._layout.chunks_of
        mapped = self._files.map(layout.data_file(path, slot), -1 if packed else layout.flat_bytes(path), writable=False)
        if mapped.size > 4 * _LARGEST:
            raise ValueError("it would take too long")
        return shard_checksum(mapped, layout.chunks(path)) if packed else codec.checksum(mapped.array(np.uint8, (mapped.size,)))

    def _notes(self, slot: int) -> None:
        if self._table.get("before", slot):
            self._table.note_before(slot, self._table.get("first_step", slot), self._table.get("episode_start", slot))

    def _seal(self, slot: int) -> None:
        self._table.note_sealed(slot, {path: self._checksum(path, slot) for path in self._layout.schema.recorded})
