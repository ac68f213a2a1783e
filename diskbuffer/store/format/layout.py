"""The shape of a store: sizes, names, and the Zarr metadata. Pure; nothing here touches a disk.

    zarr.json                    the group: schema, capacity and format in its attributes; all metadata consolidated
    obs/c.7.0.0                  packed column, slot 7: a shard of compressed chunks, its index at the end
    action/c.7                   flat column, slot 7: the array's bytes
    _segments/stream/c.0         the segment table, by slot, in chunk files of TABLE_SLOTS slots
    _tail/obs/c.0.0.0.0          the newest rows of every stream, until their chunk is packed

A segment is `segment_rows` consecutive rows of one stream, and one file in each column. ``row = slot * segment_rows + offset``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import google_crc32c

from diskbuffer.errors import CorruptionError, FormatError, NotAStoreError, SchemaError
from diskbuffer.schema.environment import is_sane
from diskbuffer.schema.schema import Schema, is_part
from diskbuffer.store.format import codec
from diskbuffer.store.format.sizes import CHUNK_ROWS, small_segment_rows_of

FORMAT = 9
MOST_STREAMS, MOST_FRAMES = 2**16, 2**12
PADDINGS = ("first", "zeros")
NEXT_STEP, SAME_STEP, DISABLED = AUTORESETS = ("next_step", "same_step", "disabled")
ATTRIBUTE = "diskbuffer"
MULTI_WRITER = "diskbuffer_writers"  # in place of it, in the group above the stores of several writers
SEGMENTS, TAIL, CHECKSUMS, CLEARED = "_segments", "_tail", "_segments/checksum", "_segments/cleared"
GROUP = "zarr.json"
COPY = f"{SEGMENTS}/length/group.json"  # of the group's file; inside an array's directory, which no Zarr tool lists
TABLE_SLOTS = 4096  # slots in one chunk file of the segment table
ENTRY_BYTES = 16  # of a shard's index: offset and size of a chunk
IDENTITY_BYTES = 32  # of a shard, before its index: whose rows these are
SPARE_CHUNKS = 1  # room in a live shard for the incomplete chunk, published at close

# Columns of the segment table. `length` comes into force last: a row exists once it is below its segment's length.
TABLE = {
    "stream": "int64",  # whose rows these are
    "first_row": "int64",  # the position in the stream of the segment's first row
    "first_step": "int64",  # how many steps the stream had before it
    "episode_start": "int64",  # position where the episode of that first row starts
    "before": "uint64",  # hash of these two
    "sealed": "uint64",  # once it is synced and recompressed: hash of the checksums of its files
    "length": "uint32",  # (2,) each: rows, and a hash of them, the stream and the first row
}


@dataclass(frozen=True)
class Layout:
    """All that is fixed when a store is created. The number of slots, which grows, is apart.

    `chunks_of` tells of each packed column how many rows are compressed together; columns that it lacks are flat.
    """

    schema: Schema
    capacity: int | None
    streams: int
    segment_rows: int
    chunks_of: Mapping[str, int]
    tail_rows: int
    frame_stack: int = 1
    padding: str = "first"
    autoreset: str = "disabled"
    tags: tuple[str, ...] = ()  # names of what is numbered, from 1 on, in the column "tag"
    salt: int = 0  # a random number, of this store alone, that checksums start from
    capacity_each: bool = False  # whether every environment keeps its part of the capacity, however many steps the others add
    generation: int = 0  # how often the group was described; of two descriptions of a store the one with the larger counts
    removals: int = 0  # of columns, so far: by it readers know that a column is another one of the same name
    environment: Mapping[str, Any] | None = None  # where the steps come from, as far as it tells: `schema.environment`
    metadata: Mapping[str, Any] | None = None  # the user's own
    removed: tuple[str, ...] = ()  # columns whose files are to be removed, and may be there still

    @property
    def n_envs(self) -> int:
        """Streams that environments write."""
        return self.streams

    @cached_property
    def packed(self) -> tuple[str, ...]:
        """Paths of the packed columns."""
        return tuple(path for path in self.schema if path in self.chunks_of)

    @cached_property
    def flat(self) -> tuple[str, ...]:
        """Paths of the flat columns that are recorded."""
        return tuple(path for path in self.schema.recorded if path not in self.chunks_of)

    @cached_property
    def is_small(self) -> bool:
        """Whether it has the sizes of a small store: it is sealed where somebody asks for that, and when it is closed."""
        columns = {path: self.schema[path] for path in self.schema.recorded}
        return not self.packed and self.segment_rows == small_segment_rows_of(self.capacity, self.streams, columns)

    @property
    def derived(self) -> frozenset[str]:
        """Paths of the columns that were written later: flat, and without a file where nothing was written."""
        return self.schema.derived

    @cached_property
    def lossy(self) -> tuple[str, ...]:
        """Paths of the columns whose chunks do not have the very values that were given."""
        return tuple(path for path in self.schema if self.schema[path].is_lossy)

    def chunk_rows(self, path: str) -> int:
        """Rows of a packed column that are compressed together."""
        return self.chunks_of[path]

    def chunk_bytes(self, path: str) -> int:
        """Bytes of a chunk, uncompressed."""
        return self.chunk_rows(path) * self.schema[path].row_bytes

    def chunks(self, path: str) -> int:
        """Chunks in a shard."""
        return self.segment_rows // self.chunk_rows(path)

    def index_bytes(self, path: str) -> int:
        """Bytes of the index at the end of a shard."""
        return self.chunks(path) * ENTRY_BYTES

    def live_bytes(self, path: str) -> int:
        """Bytes of a live shard, sparse: every chunk at its largest, the spare ones, whose it is, the index."""
        room = (self.chunks(path) + SPARE_CHUNKS) * codec.bound(self.chunk_bytes(path))
        return -(-room // ENTRY_BYTES) * ENTRY_BYTES + IDENTITY_BYTES + self.index_bytes(path)  # so that entries are aligned

    def flat_bytes(self, path: str) -> int:
        """Bytes of a flat column's chunk file."""
        return self.segment_rows * self.schema[path].row_bytes

    def data_file(self, path: str, slot: int) -> str:
        """Name, within the store, of a segment's file in a column."""
        return f"{path}/c.{slot}" + ".0" * len(self.schema[path].shape)

    def table(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Return dtype and shape of an entry in each array of the segment table, by path."""
        entries: dict[str, tuple[str, tuple[int, ...]]] = {
            f"{SEGMENTS}/{name}": (dtype, (2,) if name == "length" else ()) for name, dtype in TABLE.items()
        }
        return entries | {f"{CHECKSUMS}/{path}": ("uint32", ()) for path in self.schema}

    def first_slots(self) -> int:
        """How many slots a new store starts with: what its capacity takes where episodes are long."""
        if self.capacity is None:
            return self.streams
        return -(-self.capacity * 65 // (64 * self.segment_rows)) + 2 * self.streams

    def attributes(self, slots: int) -> dict[str, Any]:
        """Describe the store, for the group's attributes."""
        attributes: dict[str, Any] = {
            "format": FORMAT,
            "generation": self.generation,
            "slots": slots,
            "salt": self.salt,
            "capacity": self.capacity,
            "capacity_each": self.capacity_each,
            "streams": self.streams,
            "segment_rows": self.segment_rows,
            "frame_stack": self.frame_stack,
            "padding": self.padding,
            "autoreset": self.autoreset,
            "codec": {"cname": codec.SEALED.compressor, "clevel": codec.SEALED.level},
            "chunk_rows": dict(self.chunks_of),
            "tail_rows": self.tail_rows,
            "tags": list(self.tags),
            "columns": self.schema.to_attributes(),
        }
        optional: dict[str, Any] = {"removals": self.removals, "removed": list(self.removed)}
        optional |= {"environment": self.environment, "metadata": self.metadata}
        attributes |= {name: value for name, value in optional.items() if value or value == {}}
        return attributes | {"checksum": checksum_of_json(attributes)}

    @classmethod
    def from_group(cls, metadata: Any, where: str) -> tuple[Layout, int]:
        """Read a layout, and the number of slots, from a group's metadata, trusting nothing."""
        try:
            attributes = metadata["attributes"][ATTRIBUTE]
            version = attributes["format"]
        except (KeyError, TypeError):
            raise NotAStoreError(f"{where} is {_what_else(metadata)}") from None
        if type(version) is not int or version != FORMAT:
            older = type(version) is int and version < FORMAT
            advice = "the version that wrote it can export it" if older else "install a newer diskbuffer"
            raise FormatError(f"{where} is of format {version}, and this diskbuffer reads format {FORMAT}; {advice}")
        try:
            expected = checksum_of_json({name: value for name, value in attributes.items() if name != "checksum"})
        except RecursionError:
            raise NotAStoreError(f"{where}/zarr.json is nested too deeply to be a store's; damaged, or made up") from None
        if attributes.get("checksum") != expected:
            raise CorruptionError(
                f"{where}/zarr.json: the attributes that describe the store do not match their checksum; damaged, or edited"
            )
        try:
            slots = attributes["slots"]
            layout = cls(
                Schema.from_attributes(attributes["columns"]),
                None if attributes["capacity"] is None else int(attributes["capacity"]),
                int(attributes["streams"]),
                int(attributes["segment_rows"]),
                {str(path): int(rows) for path, rows in attributes["chunk_rows"].items()},
                int(attributes["tail_rows"]),
                int(attributes["frame_stack"]),
                str(attributes["padding"]),
                str(attributes["autoreset"]),
                tuple(str(tag) for tag in attributes["tags"]),
                int(attributes["salt"]),
                bool(attributes["capacity_each"]),
                generation=int(attributes.get("generation", 0)),
                removals=int(attributes.get("removals", 0)),
                environment=attributes.get("environment"),
                metadata=attributes.get("metadata"),
                removed=tuple(str(path) for path in attributes.get("removed", ())),
            )
            sane = isinstance(slots, int) and 0 <= slots < 2**31 and layout._is_possible()
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError, SchemaError) as error:
            raise NotAStoreError(f"{where}/zarr.json describes a diskbuffer store, but is damaged: {error}") from error
        if not sane:
            raise NotAStoreError(f"{where}/zarr.json describes a store of impossible sizes; it is damaged")
        return layout, slots

    def _is_possible(self) -> bool:
        """Return whether every number and name is one that a store can have: it may be damaged, or a stranger's."""
        rows, tails = self.segment_rows, [self.tail_rows * self.schema[path].row_bytes for path in self.packed]
        return (
            self.n_envs > 0
            and 8 <= rows < 2**31
            and rows & (rows - 1) == 0
            and self.frame_stack > 0
            and all(n in CHUNK_ROWS and path in self.schema.recorded for path, n in self.chunks_of.items())
            and all(self.chunks_of.get(path) == 1 for path in self.lossy)
            and self.tail_rows % 8 == 0
            and 8 <= self.tail_rows <= 2**20
            and self.streams <= MOST_STREAMS
            and self.frame_stack <= MOST_FRAMES
            and len(self.tags) < 2**16
            and max(map(len, self.tags), default=0) <= 200
            and self.padding in PADDINGS
            and self.autoreset in AUTORESETS
            and (self.capacity is None or self.capacity >= (self.n_envs if self.capacity_each else 1))
            and 0 <= self.salt < 2**63
            and self.generation >= 0
            and 0 <= self.removals < 2**62
            and len(self.removed) < 2**16
            and all(is_part(path) and "/" not in path and len(path) <= 200 for path in self.removed)
            and is_sane(self.environment)
            and is_sane(self.metadata)
            and not {path.split("/")[0] for path in self.schema} & {*self.removed}
            and self.streams * max([1, *tails]) < 2**40
        )


def _what_else(metadata: Any) -> str:
    """Say what a group is that is no store, and what to do."""
    if isinstance(metadata, Mapping) and MULTI_WRITER in (metadata.get("attributes") or ()):
        return (
            "a directory of several writers' stores; give the path of one of them, or open it with ReplayBuffer(path, mode='r')"
        )
    return "a Zarr hierarchy, but not one that diskbuffer made; give another path"


def checksum_of_json(value: Any) -> int:
    """Return the CRC32C of what JSON holds, its names in order."""
    return int(google_crc32c.value(json.dumps(value, sort_keys=True).encode()))
