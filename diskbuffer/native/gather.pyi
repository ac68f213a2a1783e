import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

# Fields of a run.
FILE: int
LANE: int
ROW: int
COUNT: int
STREAM: int
POSITION: int
STORE: int
RUN_FIELDS: int

# Fields of a target.
COLUMN: int
ROW_BYTES: int
SKIP: int
ROWS: int
OUT: int
CHUNK_ROWS: int
CHUNKS: int
TAIL: int
ZEROS: int
FLAG: int
CHECKSUMS: int
SALT: int
TAIL_ROWS: int
HEIGHT: int
WIDTH: int
GET_INFO: int
DECODE_INTO: int
LANES: int
LANE_ROWS: int
TARGET_FIELDS: int

def join_pages(pieces: Int64, page_bytes: int) -> Int64: ...
