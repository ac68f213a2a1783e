import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

HEADER: int
CHECKSUM: int
PICTURE_HEADER: int
BAD_ENTRY: int
BAD_CHECKSUM: int
BAD_HEADER: int
BAD_STREAM: int
BAD_PICTURE: int
OUTSIDE: int

def decode(chunk: int, size: int, chunk_bytes: int, n_bytes: int, target: int, scratch: int) -> int: ...
def encode(rows: int, chunk_bytes: int, compressor: bytes, level: int, item_bytes: int, target: int) -> int: ...
def encode_chunks(
    rows: int, first: int, ring: int, chunk_bytes: int, compressor: bytes, level: int, out: Bytes, entries: Int64
) -> int: ...
def workspace_bytes(chunk_bytes: int) -> int: ...
def recode_chunks(
    shard: int,
    entries: Int64,
    chunk_bytes: int,
    compressor: bytes,
    level: int,
    item_bytes: int,
    distances: tuple[int, int, int],
    workspace: Bytes,
    stored: Int64,
    out: Bytes,
    moved: Int64,
) -> int: ...
def decodes_to(chunk: int, size: int, rows: int, chunk_bytes: int) -> bool: ...
def verify_picture(chunk: int, size: int) -> int: ...
def decode_picture(chunk: int, size: int, width: int, height: int, target: int, get_info: int, decode_into: int) -> int: ...
def decode_file(file: int, size: int, width: int, height: int, target: int, get_info: int, decode_into: int) -> int: ...
def copy_pictures(shard: int, entries: Int64, row_bytes: int, out: Bytes, moved: Int64) -> int: ...
def decode_lz4(block: int, size: int, target: int, n_bytes: int) -> int: ...
def encode_lz4(rows: int, size: int, target: int, room: int, distances: Int64) -> int: ...
