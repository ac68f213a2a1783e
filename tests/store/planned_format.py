"""Small stores in the format that docs/format.md describes, made by hand: numpy and numcodecs write every byte.

Nothing of the package is used but the names of Zarr's metadata. `Made.rows` is what a reader must return.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import numpy.typing as npt
from numcodecs import Blosc

from diskbuffer.store.format.zarr_metadata import array, group

Array = npt.NDArray[Any]
UInt64 = npt.NDArray[np.uint64]

ROWS, CHUNK, TAIL_ROWS = 8, 4, 8  # of a segment, of a chunk, of a tail
TABLE_SEGMENTS, WORDS = 64, 8  # segments in a chunk file of the segment table (4,096 in a real store), words of an entry
COLUMNS: dict[str, tuple[tuple[int, ...], str]] = {
    "obs/pixels": ((12, 10), "uint8"),
    "obs/vector": ((3,), "float32"),
    "action": ((), "int64"),
    "reward": ((), "float32"),
    "is_last": ((), "bool"),
}
PACKED = ("obs/pixels",)
EMPTY = 2**64 - 1
COMPRESSOR = Blosc("lz4", clevel=5, shuffle=Blosc.NOSHUFFLE)


def values(path: str, environment: int, positions: Array) -> Array:
    """Return what a column has at positions of an environment."""
    shape, dtype = COLUMNS[path]
    mixed = positions * 131 + environment * 17 + len(path)
    if dtype == "bool":
        return np.asarray(positions % 9 == 8)
    inner = np.arange(int(np.prod(shape, dtype=int))).reshape(shape)
    spread: Array = mixed.reshape(-1, *(1,) * len(shape)) + inner
    return (spread % 251).astype(dtype)


def word(environment: int, number: int) -> int:
    """Return a word of the heads: a number in the low 40 bits, a hash of it above. (A real store's hash has the store in it.)"""
    return number | (int(google_crc32c.value(f"{environment} {number}".encode())) & 0xFFFFFF) << 40


@dataclass
class Made:
    """A store, and what it holds.

    Attributes
    ----------
    rows : dict
        By environment, the positions of the rows that it has.
    """

    root: Path
    environments: int
    heads: list[int]
    live: bool = False  # whether the newest file's shard has free room, and rows in the tail that are in no chunk
    rows: dict[int, Array] = field(default_factory=dict)
    segments: list[tuple[int, int]] = field(default_factory=list)  # (environment, first position), by number
    first_file: int = 0
    lost: dict[int, tuple[int, int]] = field(default_factory=dict)  # positions that a power loss took, first and behind the last
    ended: dict[int, int] = field(default_factory=dict)  # the newest row when a segment was ended, which is the next one's first

    @property
    def files(self) -> int:
        """Files that were begun, those that are gone included."""
        return -(-len(self.segments) // self.environments)

    def write(self) -> Made:
        """Write the store."""
        self._metadata()
        for file in range(self.first_file, self.files):
            for path in COLUMNS:
                (self._shard if path in PACKED else self._flat)(path, file)
        self._table()
        heads: UInt64 = np.zeros((self.environments, 4), np.uint64)
        for environment, rows in self.rows.items():
            end = self.heads[environment] + 1
            heads[environment, :2] = [word(environment, n) for n in (end, int(rows[0]) if len(rows) else end)]
        (self.root / "_heads" / "c.0.0").write_bytes(heads.tobytes())
        return self

    def _metadata(self) -> None:
        grown = 1 << max(0, self.files - 1).bit_length()  # the number of files that the arrays have room for is doubled
        nodes: dict[str, dict[str, Any]] = {"obs": group({}), "_tail": group({}), "_tail/obs": group({})}
        lanes = self.environments
        for path, (shape, dtype) in COLUMNS.items():
            names = ("row", "lane", *(f"{path.replace('/', '_')}_{axis + 1}" for axis in range(len(shape))))
            nodes[path] = array((grown * ROWS, lanes, *shape), (ROWS, lanes, *shape), dtype, names)
            codecs = nodes[path]["codecs"]
            if path in PACKED:
                blosc = {"cname": "lz4", "clevel": 5, "shuffle": "noshuffle", "typesize": 1, "blocksize": 0}
                inner = [*codecs, {"name": "blosc", "configuration": blosc}, {"name": "crc32c"}]
                index = [{"name": "bytes", "configuration": {"endian": "little"}}]
                sharding = {"chunk_shape": [CHUNK, 1, *shape], "codecs": inner, "index_codecs": index, "index_location": "end"}
                nodes[path]["codecs"] = [{"name": "sharding_indexed", "configuration": sharding}]
                tail = (lanes, TAIL_ROWS, *shape)
                nodes[f"_tail/{path}"] = array(tail, tail, dtype, ("environment", "tail_row", *names[2:]))
            else:
                order = [1, 0, *range(2, len(shape) + 2)]
                nodes[path]["codecs"] = [{"name": "transpose", "configuration": {"order": order}}, *codecs]
        table = -(-max(1, len(self.segments)) // TABLE_SEGMENTS) * TABLE_SEGMENTS
        nodes["_segments"] = array((table, WORDS), (TABLE_SEGMENTS, WORDS), "uint64", ("segment", "segment_word"))
        nodes["_heads"] = array((lanes, 4), (lanes, 4), "uint64", ("environment", "head_word"))
        about = {
            "format": 2,
            "environments": lanes,
            "lanes": lanes,
            "segment_rows": ROWS,
            "segments": len(self.segments),
            "first_file": self.first_file,
            "chunk_rows": dict.fromkeys(PACKED, CHUNK),
            "tail_rows": TAIL_ROWS,
            "columns": {path: {"shape": list(shape), "dtype": dtype} for path, (shape, dtype) in COLUMNS.items()},
        }
        for path, node in nodes.items():
            (self.root / path).mkdir(parents=True, exist_ok=True)
            (self.root / path / "zarr.json").write_text(json.dumps(node))
        consolidated = {"kind": "inline", "must_understand": False, "metadata": nodes}
        (self.root / "zarr.json").write_text(json.dumps(group({"diskbuffer": about}) | {"consolidated_metadata": consolidated}))

    def _lane(self, path: str, file: int, lane: int) -> Array:
        """Return the rows of a lane, (ROWS, ...): zeros where there are none, and in a lane that nobody took."""
        shape, dtype = COLUMNS[path]
        lane_rows = np.zeros((ROWS, *shape), dtype)
        number = file * self.environments + lane
        if number < len(self.segments):
            environment, first = self.segments[number]
            positions = np.arange(first, self.end_of(number))
            lane_rows[: len(positions)] = values(path, environment, positions)
            if not path.startswith("obs") and self._was_ended(number):
                lane_rows[len(positions) - 1] = 0  # nothing was done at its newest row yet
        return lane_rows

    def _was_ended(self, number: int) -> bool:
        """Return whether a segment was ended, and the next one has its newest row again."""
        environment, first = self.segments[number]
        later = (environment, self.ended.get(environment)) in self.segments[number + 1 :]
        return later and first <= self.ended[environment] < first + ROWS

    def end_of(self, number: int) -> int:
        """Return the position behind the last row of a segment."""
        environment, first = self.segments[number]
        lost, _ = self.lost.get(environment, (first, first))
        end = min(first + ROWS, self.heads[environment] + 1)
        end = min(end, lost) if first < lost else end
        return self.ended[environment] + 1 if self._was_ended(number) else end

    def _flat(self, path: str, file: int) -> None:
        shape, _ = COLUMNS[path]
        name = f"c.{file}.0" + ".0" * len(shape)
        lanes = np.stack([self._lane(path, file, lane) for lane in range(self.environments)])
        (self.root / path / name).write_bytes(lanes.tobytes())

    def _shard(self, path: str, file: int) -> None:
        shape, dtype = COLUMNS[path]
        chunks, lanes = ROWS // CHUNK, self.environments
        index: UInt64 = np.full((chunks, lanes, 2), EMPTY, np.uint64)
        data = bytearray()
        order = [(chunk, lane) for lane in range(lanes) for chunk in range(chunks)]
        if self.live:
            order.reverse()  # as several packers may append them, and with what a forgotten chunk took
            data += b"\xff" * 37
        for chunk, lane in order:
            number = file * lanes + lane
            if number >= len(self.segments):
                continue
            environment, first = self.segments[number]
            rows = self.end_of(number) - first - chunk * CHUNK
            if rows <= 0:
                continue
            if self.live and rows < CHUNK:  # in the tail alone
                continue
            encoded = COMPRESSOR.encode(self._lane(path, file, lane)[chunk * CHUNK : (chunk + 1) * CHUNK])
            encoded = bytes(encoded) + int(google_crc32c.value(bytes(encoded))).to_bytes(4, "little")
            index[chunk, lane] = len(data), len(encoded)
            data += encoded
        if self.live:
            data += bytes(-len(data) % 4096 + 4096)  # room that is left
            tail = np.zeros((lanes, TAIL_ROWS, *shape), dtype)
            for environment, head in enumerate(self.heads):
                positions = np.arange(max(0, head + 1 - TAIL_ROWS), head + 1)
                tail[environment, positions % TAIL_ROWS] = values(path, environment, positions)
            (self.root / "_tail" / path / ("c.0.0" + ".0" * len(shape))).write_bytes(tail.tobytes())
        name = f"c.{file}.0" + ".0" * len(shape)
        (self.root / path / name).write_bytes(bytes(data) + index.tobytes())

    def _table(self) -> None:
        entries: UInt64 = np.zeros((-(-max(1, len(self.segments)) // TABLE_SEGMENTS) * TABLE_SEGMENTS, WORDS), np.uint64)
        for number, (environment, first) in enumerate(self.segments):
            end = self.end_of(number)
            is_complete = end < self.heads[environment] + 1 or end == first + ROWS or self._was_ended(number)
            entries[number, :6] = (
                environment + 1,
                first,
                0,
                0,
                0,
                end if is_complete else 0,
            )  # (all but what tells where rows are)
        for part in range(self.first_file * self.environments // TABLE_SEGMENTS, len(entries) // TABLE_SEGMENTS):
            data = entries[part * TABLE_SEGMENTS : (part + 1) * TABLE_SEGMENTS].tobytes()
            (self.root / "_segments" / f"c.{part}.0").write_bytes(data)


def made(
    root: Path,
    heads: list[int],
    seed: int = 0,
    *,
    kept: int | None = None,
    live: bool = False,
    ended: dict[int, int] | None = None,
    lost: dict[int, tuple[int, int]] | None = None,
) -> Made:
    """Make a store whose environments begin their segments in an order drawn at random.

    Parameters
    ----------
    heads : list of int
        The position of the newest row of each environment, -1 for none.
    kept : int, optional
        How many of the newest files are there; others are gone. All by default.
    live : bool
        Have a shard with free room, and rows in the tail alone.
    ended : dict of int to int, optional
        By environment, the position of its newest row when a segment was ended before it was full, as it had no rows for long.
    lost : dict of int to (int, int), optional
        By environment, the positions that a power loss took: from one on, up to the first of a segment.
    """
    store, random = Made(root, len(heads), heads, live, lost=lost or {}, ended=ended or {}), np.random.default_rng(seed)
    due = {environment: list(range(0, head + 1, ROWS)) for environment, head in enumerate(heads)}
    for environment, (first, behind) in store.lost.items():
        due[environment] = [position for position in due[environment] if position < first or position >= behind]
    for environment, newest in store.ended.items():
        due[environment] = [*range(0, newest + 1, ROWS), *range(newest, heads[environment] + 1, ROWS)]
    while any(due.values()):
        environment = int(random.choice([n for n, positions in due.items() if positions]))
        store.segments.append((environment, due[environment].pop(0)))
    store.first_file = 0 if kept is None else max(0, store.files - kept)
    for environment, head in enumerate(heads):
        there = store.segments[store.first_file * len(heads) :]
        low = min((first for one, first in there if one == environment), default=head + 1)
        positions = np.arange(low, head + 1)
        first, behind = store.lost.get(environment, (head + 1, head + 1))
        store.rows[environment] = positions[(positions < first) | (positions >= behind)]
    return store.write()
