"""Reading a chunk of any column: of Blosc where its codec loses nothing, else of WebP.

`diskbuffer.store.format.encoding` has the other direction.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from diskbuffer.native import codec as native
from diskbuffer.native import webp
from diskbuffer.native.arrays import address_of
from diskbuffer.schema.schema import Column, Schema
from diskbuffer.store.format import codec, pictures

Int64 = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]


def check_libraries(schema: Schema) -> None:
    """Raise a MissingPackageError where a column cannot be decoded, as a package is not installed."""
    if any(column.is_lossy for column in schema.columns.values()):
        webp.functions()


def decode_entry(shard: Any, entries: Int64, chunk: int, column: Column, raw: Bytes) -> int:
    """Decode a chunk of a mapped shard into `raw`, which it fills; return what is wrong, or 0."""
    at, size = entries[chunk].tolist()
    if not _is_inside(shard, entries, at, size):
        return codec.BAD_ENTRY
    if column.is_lossy:
        return pictures.decode(shard.address + at, size, column, raw)
    return native.decode(shard.address + at, size, raw.nbytes, raw.nbytes, address_of(raw), 0)


def verify_picture(shard: Any, entries: Int64, chunk: int) -> int:
    """Verify a chunk of a mapped shard that is compressed with a loss, without decoding it; return what is wrong, or 0."""
    at, size = entries[chunk].tolist()
    return native.verify_picture(shard.address + at, size) if _is_inside(shard, entries, at, size) else codec.BAD_ENTRY


def _is_inside(shard: Any, entries: Int64, at: int, size: int) -> bool:
    return 0 <= at <= at + size <= int(shard.size) - entries.nbytes
