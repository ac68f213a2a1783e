"""Compressing chunks of any column: for a live shard, and again for a sealed one."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from diskbuffer.native import codec as native
from diskbuffer.native.arrays import address_of
from diskbuffer.schema.schema import Column
from diskbuffer.store.format import codec, pictures
from diskbuffer.store.format.codec import NONE, Method

Int64 = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

TRIES, SHRANK = 0, 1


def encode_chunks(
    column: Column, source: int, first: int, ring: int, chunk_bytes: int, out: Bytes, entries: Int64, *, exact: bool = False
) -> int:
    """Compress chunks of a column, for a live shard, one after the other into `out`: as many as there are `entries`.

    They lie one after the other, from byte `first` on, in a ring of `ring` bytes at the address `source`. `entries[i]`
    becomes (offset in `out`, size). With `exact`, nothing is lost. Returns the bytes written. Holds no GIL for most of the time.
    """
    if column.is_lossy:
        return pictures.encode_chunks(source, first, ring, column, out, entries, exact=exact)
    method = codec.live_method(column)
    size = native.encode_chunks(source, first, ring, chunk_bytes, _name(method), method.level, out, entries)
    if size < 0:
        raise RuntimeError("c-blosc failed to compress a chunk")
    return size


def encode_rows(column: Column, chunk_rows: int, rows: Bytes, *, exact: bool = False) -> tuple[Bytes, Int64]:
    """Return the chunks of some rows, (n, row_bytes), one after the other, and (offset, size) of each.

    The last is filled up with zeros.
    """
    chunks, chunk_bytes = -(-len(rows) // chunk_rows), chunk_rows * column.row_bytes
    filled = np.zeros((chunks * chunk_rows, column.row_bytes), np.uint8)
    filled[: len(rows)] = rows
    out, entries = np.empty(chunks * codec.bound(chunk_bytes), np.uint8), np.zeros((chunks, 2), np.int64)
    size = encode_chunks(column, address_of(filled), 0, filled.nbytes, chunk_bytes, out, entries, exact=exact)
    return out[:size], entries


class Recoder:
    """Compress chunks of live shards of one column again, for sealed ones; for one thread at a time.

    Attributes
    ----------
    stored : (2,) int64
        Of chunks that LZ4 could not make smaller while they were live: at `TRIES`, how many are still tried until the others
        are copied as they are; at `SHRANK`, how many became smaller, after which all are tried.
    """

    def __init__(self, chunk_bytes: int, distances: tuple[int, int, int]) -> None:
        self._chunk_bytes, self._distances = chunk_bytes, distances
        self._workspace = np.empty(native.workspace_bytes(chunk_bytes), np.uint8)
        self.stored = np.zeros(2, np.int64)

    def recode(self, shard: int, entries: Int64, out: Bytes, moved: Int64, method: Method) -> int:
        """Compress the chunks at `entries` of a live shard, mapped at the address `shard`, again, into `out`.

        One that would be no smaller than it was is copied. `moved[i]` becomes (offset in `out`, size). Returns the bytes
        written, or -1 - i where chunk i cannot be decoded. Holds no GIL.
        """
        how = _name(method), method.level, method.item, self._distances
        return native.recode_chunks(shard, entries, self._chunk_bytes, *how, self._workspace, self.stored, out, moved)


def _name(method: Method) -> bytes:
    """Return the name of a compressor, as native code has it."""
    return b"lz4" if method == NONE else method.compressor.encode()  # at level 0, nothing is compressed
