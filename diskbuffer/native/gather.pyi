import numpy as np
import numpy.typing as npt

from diskbuffer.native.sampling import Philox

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

def plan(
    table: Int64,
    mapped: Int64,
    streams: Int64,
    positions: Int64,
    starts: Int64,
    lasts: Int64,
    before: int,
    rows: int,
    segment_rows: int,
    first_stream: int,
    lanes: int = 1,
) -> tuple[Int64, Int64, bool] | None: ...
def find_sources(mapped: Int64, runs: Int64, sources: Int64) -> bool: ...

class Helper:
    def __init__(self, scratch: Bytes) -> None: ...
    def serve(self) -> None: ...
    def call(self) -> None: ...
    def end(self) -> None: ...

def gather(
    targets: Int64, runs: Int64, sources: Int64, scratch: Bytes, parts: int = 1, helpers: list[Helper] = ...
) -> tuple[int, int, int, int] | None: ...
def gather_random(
    table: Int64,
    mapped: Int64,
    targets: Int64,
    scratch: npt.NDArray[np.uint8],
    random: Philox,
    before: int,
    rows: int,
    segment_rows: int,
    ids: Int64,
) -> bool: ...
def join_pages(pieces: Int64, page_bytes: int) -> Int64: ...
def request_pages(targets: Int64, runs: Int64, sources: Int64, page_bytes: int) -> None: ...
