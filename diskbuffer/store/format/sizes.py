"""Choosing sizes for a new store: rows of a chunk, of a tail, of a segment."""

from __future__ import annotations

from collections.abc import Mapping

from diskbuffer.errors import SchemaError
from diskbuffer.schema.schema import Column, Schema

PACKED_ROW_BYTES = 1024  # rows of at least this size are compressed; smaller ones are memory-mapped as they are
PACKED_FLOAT_BYTES = 4096  # of floats, which LZ4 hardly makes smaller: states of hundreds of numbers are mapped, too
TAIL_BYTES = 2 * 1024**2  # of a stream in a column; packing has a cost of its own, and takes many chunks at a time
SMALL_BYTES = 256 * 1024**2  # of all rows that a store keeps: nothing of it is compressed
ALL_TAILS_BYTES = 64 * 1024**2  # of all streams in a column: it is allocated when the store is created


CHUNK_ROWS = (1, 2, 4, 8)  # rows that can be compressed together


def chunk_rows_of(schema: Schema, chunk_rows: int | None = None) -> dict[str, int]:
    """Choose the packed columns, and how many rows are compressed together: `chunk_rows`, or 4 up to 64 KB a row, then fewer.

    Eight take a quarter less of the disk, and a tenth more time to pick single transitions from. Pictures that are compressed
    with a loss are one by one, whatever is asked.
    """
    chosen = {}
    for path, column in schema.columns.items():
        least = PACKED_FLOAT_BYTES if column.np_dtype.kind in "fc" and column.codec is None else PACKED_ROW_BYTES
        if column.codec not in (None, "none") and column.row_bytes < least:
            raise SchemaError(
                f"column {path!r} has rows of {column.row_bytes} bytes, which are not compressed, as such are read faster from "
                f"files that are mapped; rows of {least} and more have a codec. Leave out codec={column.codec!r}"
            )
        if column.is_lossy:
            chosen[path] = 1
        elif column.row_bytes >= least:
            chosen[path] = chunk_rows or next((rows for rows in (4, 2) if column.row_bytes * rows <= 256 * 1024), 1)
    return chosen


def tail_rows_of(schema: Schema, chunk_rows: Mapping[str, int], segment_rows: int, streams: int) -> int:
    """Choose how many rows a stream's tail holds, so that one half is packed while the other fills.

    64 chunks, and fewer where they take more than 2 MB, all streams' together more than 64 MB, or a segment's rows; but 8 at
    least.
    """
    rows = max(chunk_rows.values(), default=1)
    widest = max((schema[path].row_bytes for path in chunk_rows), default=1)
    most = min(segment_rows, min(TAIL_BYTES, ALL_TAILS_BYTES // streams) // widest)
    return next((chunks * rows for chunks in (64, 32, 16) if chunks * rows <= most), 8 * rows)


def segment_rows_of(capacity: int | None, streams: int, columns: Mapping[str, Column]) -> int:
    """Choose a segment's rows, a power of two: open segments about an eighth of the capacity at most, about 2,000 slots at most.

    They are an eighth as far as that is 8 MB of the heaviest column, and a sixteenth beyond: each segment takes a dozen files,
    made and removed. Of a small capacity they are up to a quarter, so that a segment has 64 rows, 256 KB of the heaviest column,
    or 16 MB of all streams together.
    """
    heaviest = _heaviest(columns)
    most = power_of_two(max(8, 256 * 1024**2 // heaviest))  # a segment's bytes, uncompressed
    if capacity is None:
        return min(most, 64 * 1024)
    share = capacity // streams
    few_slots = 2 * power_of_two(-(-capacity // 2000))
    worth_files = min(4096, power_of_two(min(256 * 1024, 16 * 1024**2 // streams) // heaviest))
    few_files = min(max(64, worth_files), power_of_two(share // 4))
    an_eighth = min(16_384, power_of_two(8 * 1024**2 // heaviest), power_of_two(share // 8))
    a_sixteenth = min(4096, power_of_two(share // 16))
    return max(8, min(most, max(few_slots, few_files, an_eighth, a_sixteenth)))


def small_segment_rows_of(capacity: int | None, streams: int, columns: Mapping[str, Column]) -> int | None:
    """Choose a segment's rows in a small store, of which nothing is compressed, so that no file is made in ten rollouts.

    They are 16 times a stream's share of the capacity, and at least 256 KB of the heaviest column, as each file takes a while to
    make; but all streams' together at most 128 MB: of two segments of each, that is what the disk has more than is kept. None
    where the store is not small, or a column's codec was chosen.
    """
    row_bytes = sum(column.row_bytes for column in columns.values())
    if capacity is None or capacity * row_bytes > SMALL_BYTES or any(column.codec for column in columns.values()):
        return None
    worth_files = max(16 * -(-capacity // streams), min(64 * 1024, 256 * 1024 // _heaviest(columns)))
    return max(8, power_of_two(min(worth_files, SMALL_BYTES // 2 // (streams * row_bytes))))


def _heaviest(columns: Mapping[str, Column]) -> int:
    return max((column.row_bytes for column in columns.values()), default=1)


def power_of_two(n: int) -> int:
    """Round down to a power of two, at least 1."""
    return 1 << (max(1, n).bit_length() - 1)
