"""Fields of structs of `runs.hpp`, in their order, as arrays of int64 have them: runs, (n, 11), and targets, (stores, n, 19)."""

from __future__ import annotations

FILE, LANE, ROW, COUNT, SAMPLE, AT, PAD, STREAM, POSITION, STORE, SOURCES = range(11)

TARGET_FIELDS = 19
COLUMN, ROW_BYTES, SKIP, ROWS, OUT, CHUNK_ROWS, CHUNKS, TAIL, ZEROS, FLAG = range(10)
CHECKSUMS, SALT, TAIL_ROWS, HEIGHT, WIDTH, GET_INFO, DECODE_INTO, LANES, LANE_ROWS = range(10, TARGET_FIELDS)
