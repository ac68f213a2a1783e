"""Compressing chunks of any column: by Blosc where its codec loses nothing, else by WebP."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from diskbuffer.schema import Column
from diskbuffer.store.format import codec, codec_kernel, pictures

Int64 = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]


def encode_chunks(
    column: Column, source: int, first: int, ring: int, chunk_bytes: int, out: Bytes, entries: Int64, *, exact: bool = False
) -> int:
    """Compress chunks of a column for a live shard, as `codec_kernel.encode_chunks` does; with `exact`, without a loss."""
    if column.is_lossy:
        return pictures.encode_chunks(source, first, ring, column, out, entries, exact=exact)
    return codec_kernel.encode_chunks(source, first, ring, chunk_bytes, out, entries, codec.live_method(column))
