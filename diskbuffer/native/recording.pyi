from typing import Any

import numpy as np
import numpy.typing as npt

from diskbuffer.native.retention import Retention
from diskbuffer.store.writing.open_segments import Places

Bytes = npt.NDArray[np.uint8]
Int64 = npt.NDArray[np.int64]

NEEDS_ROOM: int
HAS_PROBLEM: int
MISFIT: int
NOT_FINITE: int
DOES_NOT_ROLL: int

class BlockRecorder:
    problem: tuple[int, int, int, int, bool]
    done: int
    steps: int
    part: tuple[int, int]
    def __init__(
        self,
        columns: Int64,
        slots: list[tuple[int, bool | None, np.dtype[Any], tuple[int, ...]]],
        flags: tuple[int, int, int],
        table: Int64,
        limits: Int64,
        places: Places,
        retention: Retention,
        *,
        frame_stack: int,
        next_step: bool,
        fills_zeros: bool,
    ) -> None: ...
    def begin(self, steps: int | None, first_stream: int, environments: int, has_environments: bool) -> None: ...
    def commit(self, until: int) -> bool: ...
    def coming(self) -> int: ...
    def add(self, values: tuple[Any, ...], declared: Bytes | bool | None, most: int) -> int: ...
    def finish(self) -> int: ...
    def take_starts(self) -> tuple[Int64, int]: ...
    def cut_off(self, streams: Int64) -> int: ...
    def put_newest_stack(self, column: int, stream: int, stack: Bytes, newest_frame_only: bool) -> None: ...
    def forget(self) -> None: ...

def round_to_float32(doubles: npt.NDArray[np.float64]) -> tuple[npt.NDArray[np.float32], bool]: ...
def same_values(a: Bytes, b: Bytes, number_bytes: int) -> bool: ...
def all_zero(values: Bytes, number_bytes: int) -> bool: ...
def has_nonfinite(values: Bytes, number_bytes: int) -> bool: ...
def are_bools(values: Bytes) -> bool: ...
