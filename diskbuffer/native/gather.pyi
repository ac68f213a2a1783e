import numpy as np
import numpy.typing as npt

from diskbuffer.native.index import NativeIndex
from diskbuffer.native.sampling import Philox

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

# Fields of a run.
FILE: int
LANE: int
ROW: int
COUNT: int
SAMPLE: int
AT: int
PAD: int
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

Tables = list[tuple[Int64, int, int]]

def plan(
    index: NativeIndex,
    tables: Tables,
    streams: Int64,
    positions: Int64,
    starts: Int64,
    lasts: Int64,
    before: int,
    rows: int,
    first_stream: int = 0,
) -> tuple[Int64, Int64, bool] | None: ...
def find_sources(tables: Tables, runs: Int64, sources: Int64) -> bool: ...

class Helper:
    def __init__(self, scratch: Bytes) -> None: ...
    def serve(self) -> None: ...
    def call(self) -> None: ...
    def end(self) -> None: ...

def gather(
    targets: Int64, runs: Int64, sources: Int64, scratch: Bytes, parts: int = 1, helpers: list[Helper] = ...
) -> tuple[int, int, int, int] | None: ...
def gather_random(
    index: NativeIndex,
    tables: Tables,
    targets: Int64,
    scratch: npt.NDArray[np.uint8],
    random: Philox,
    before: int,
    rows: int,
    ids: Int64,
    parts: int = 1,
    helpers: list[Helper] = ...,
) -> bool: ...
def join_pages(pieces: Int64, page_bytes: int) -> Int64: ...
def request_pages(targets: Int64, runs: Int64, sources: Int64, page_bytes: int) -> None: ...
def missing_blocks(targets: Int64, runs: Int64, sources: Int64, block_bytes: int, whole: bool) -> Int64: ...
def list_chunks(targets: Int64, runs: Int64, sources: Int64, t: int, chunks: Int64, firsts: Int32) -> tuple[int, int, int]: ...
def copy_chunks(
    targets: Int64, runs: Int64, sources: Int64, t: int, chunks: Int64, blob: Bytes, room: int, before: int, scratch: Bytes
) -> int: ...
def list_rows(targets: Int64, runs: Int64, sources: Int64, t: int, firsts: Int32) -> int: ...
def copy_rows(targets: Int64, runs: Int64, sources: Int64, t: int, firsts: Int32, blob: Bytes) -> None: ...
