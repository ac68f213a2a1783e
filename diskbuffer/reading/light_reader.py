"""Rows and episodes of a store of format 2, without PyTorch, without the writer's lock, and beside a writer.

What a `ReplayBuffer` that reads does with plans and batches is done here with arrays of numpy: for whoever looks into a store.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from diskbuffer.bucket import Bucket
from diskbuffer.errors import CorruptionError, EvictedError, InputError
from diskbuffer.index.fields import HEAD, LOW
from diskbuffer.index.index import Index
from diskbuffer.reading.follow_stored_index import MOVING_SECONDS, IndexFollower
from diskbuffer.storage.opening import open_bucket, open_to_read
from diskbuffer.storage.shards import EMPTY, entries_of
from diskbuffer.storage.store import Store
from diskbuffer.store.format import codec
from diskbuffer.store.format.chunks import decode_entry
from diskbuffer.store.system.bucket_files import BucketFiles

T = TypeVar("T")
Int64 = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]


class LightReader:
    """Read columns of a store, and follow whoever writes to it; one thread at a time.

    Parameters
    ----------
    place : Path or Bucket
    frame_stack : int, optional
        Frames in an observation: a step counts as long as all of them are there. As the store says, by default.

    Attributes
    ----------
    store : Store
        Opened to read.
    index : Index
        Its rows and episodes, as of the last `refresh`.

    Raises
    ------
    NotAStoreError, FormatError, LockedError, CorruptionError
        As `diskbuffer.storage.opening.open_to_read`, or of a store in a bucket `open_bucket`, which may be a BucketError, too.
    """

    def __init__(self, place: Path | Bucket, frame_stack: int | None = None) -> None:
        self._have(open_bucket(BucketFiles(place)) if isinstance(place, Bucket) else open_to_read(place))
        try:
            self._follower = IndexFollower(self.store, (frame_stack or self.store.layout.frame_stack) - 1)
            self.refresh()
        except BaseException:
            self.store.close()
            raise

    def _have(self, store: Store) -> None:
        """Have a store, which is closed with this, or when nothing refers to this any more: its maps are counted."""
        self.store = store
        weakref.finalize(self, store.close).atexit = False

    def close(self) -> None:
        """Give back all memory maps."""
        self.store.close()

    def refresh(self) -> None:
        """See what was added and evicted since; costs what has come, and some 0.1 us for each environment."""
        with self.store.lock:
            self.index: Index = self._follower.read()

    def read(self, column: str, steps: Any) -> npt.NDArray[Any]:
        """Read rows of a column by step ids, ``position * environments + environment``: (n, *shape) of its dtype, a copy.

        An episode's final observation is in the row after its last step. Each chunk of a packed column is decoded once.

        Raises
        ------
        InputError
            There is no such column, or a row was never there.
        EvictedError
            A row is gone.
        CorruptionError
            A chunk or a file that holds a row is damaged.
        """
        layout = self.store.layout
        if column not in layout.schema.columns:
            raise InputError(f"there is no column {column!r}; there are {', '.join(layout.schema)}")
        positions, environments = np.divmod(np.asarray(steps, np.int64).reshape(-1), layout.environments)
        return self.retried(lambda: self._read(column, environments, positions))

    def recent(self, column: str, environments: Any, ages: Any) -> npt.NDArray[Any]:
        """Read rows by how many rows of their environments came later, 0 for the newest: (n, *shape)."""
        environments = np.asarray(environments, np.int64)
        positions = self.index.table[environments, HEAD] - np.asarray(ages, np.int64)
        return self.read(column, positions * self.store.layout.environments + environments)

    def retried(self, attempt: Callable[[], T]) -> T:
        """Return what an attempt returns, made again from a new look where a writer has changed what it read.

        With the store's lock held. What it raises without anything having changed is final.
        """
        begun = time.monotonic()
        while True:
            with self.store.lock:
                before = self._signature()
                try:
                    return attempt()
                except (EvictedError, CorruptionError, FileNotFoundError) as error:
                    self.refresh()
                    if self._signature() == before or time.monotonic() - begun > MOVING_SECONDS:
                        if isinstance(error, FileNotFoundError):
                            raise CorruptionError(f"{self.store.root}: {error.filename} is missing; was it removed?") from error
                        raise

    def _signature(self) -> tuple[Any, ...]:
        """Return what is another one whenever rows or files have gone, or were replaced."""
        return self.store.manifest.state.generation, self.index.table[:, LOW].tobytes(), id(self.index)

    def _read(self, column: str, environments: Int64, positions: Int64) -> npt.NDArray[Any]:
        layout = self.store.layout
        found = np.zeros((len(positions), *layout.schema[column].shape), layout.schema[column].np_dtype)
        if not len(positions):
            return found
        self._check(environments, positions)
        segments, offsets = np.divmod(self.index.rows_of(environments, positions), layout.segment_rows)
        self.store.map_segments(segments, (column,))
        for segment in np.unique(segments).tolist():
            here = np.flatnonzero(segments == segment)
            if column in layout.packed:
                rows = self._packed(column, segment, int(environments[here[0]]), positions[here], offsets[here])
                found[here] = rows.view(found.dtype).reshape(-1, *found.shape[1:])
            else:
                found[here] = self.store.values(column, segment)[offsets[here]]
        return found

    def _packed(self, column: str, segment: int, environment: int, positions: Int64, offsets: Int64) -> Bytes:
        """Return rows of one segment of a packed column, (n, row_bytes): of the shard, or of the tail while not there."""
        layout, (file, lane) = self.store.layout, divmod(segment, self.store.layout.lanes)
        mapped, row_bytes = self.store.maps.get(column, file), layout.schema[column].row_bytes
        entries = entries_of(layout, column, mapped)
        chunks, within = np.divmod(offsets, layout.chunk_rows[column])
        found, raw = np.empty((len(offsets), row_bytes), np.uint8), np.empty(layout.chunk_bytes(column), np.uint8)
        for chunk in np.unique(chunks).tolist():
            here = np.flatnonzero(chunks == chunk)
            if (entries[chunk, lane] == EMPTY).any():
                found[here] = self.store.tail(column)[environment, positions[here] % layout.tail_rows]
                if (entries[chunk, lane] == EMPTY).any():  # or its place in the tail may be another row's by now
                    continue
            if wrong := self._decode(column, file, chunk * layout.lanes + lane, raw):
                first, last = int(positions[here].min()), int(positions[here].max())
                where = self.store.describe_rows(column, file, environment, first, last)
                raise CorruptionError(
                    f"{where}: chunk {chunk}: {codec.REASONS[wrong]}. `diskbuffer check` tells what else is damaged"
                )
            found[here] = raw.reshape(-1, row_bytes)[within[here]]
        return found

    def _decode(self, column: str, file: int, number: int, raw: Bytes) -> int:
        """Decode a chunk; return why it cannot be, or 0. Of a file that is elsewhere, it comes once more where it is damaged."""
        store, wrong = self.store, 0
        for _ in range(2):
            mapped = store.maps.get(column, file)
            entries = entries_of(store.layout, column, mapped).reshape(-1, 2)
            mapped = store.files.need(mapped, *entries[number].tolist())
            wrong = decode_entry(mapped, entries, number, store.layout.schema[column], raw)
            if not wrong or not store.files.block_bytes:
                break
            store.files.mistrust(store.layout.data_file(column, file))
            store.maps.retire([file], (column,))
        return wrong

    def _check(self, environments: Int64, positions: Int64) -> None:
        """Raise an InputError where a row was never there, and an EvictedError where one is gone."""
        low, head = (self.index.table[environments, field] for field in (LOW, HEAD))
        for at in np.flatnonzero((positions > head) | (positions < 0))[:1].tolist():
            raise InputError(f"environment {environments[at]} has no row {positions[at]}: its newest is {head[at]}")
        for at in np.flatnonzero(positions < low)[:1].tolist():
            where = f"row {positions[at]} of environment {environments[at]}"
            raise EvictedError(f"{self.store.root}: {where} was evicted; its oldest is {low[at]}")
