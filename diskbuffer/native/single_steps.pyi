from typing import Any

import numpy as np
import numpy.typing as npt

from diskbuffer.native.sampling import Philox

Int64 = npt.NDArray[np.int64]
Filled = tuple[npt.NDArray[Any], ...]

def allocate(kinds: list[tuple[tuple[int, ...], np.dtype[Any]]], n: int) -> Filled: ...
def copy_drawn(
    table: Int64, mapped: Int64, segment_rows: int, columns: Int64, filled: Filled, streams: Int64, positions: Int64
) -> bool: ...
def copy_random(table: Int64, mapped: Int64, segment_rows: int, columns: Int64, filled: Filled, random: Philox) -> bool: ...
def copy_recent(
    table: Int64, mapped: Int64, segment_rows: int, columns: Int64, filled: Filled, ages: Int64, streams: Int64
) -> bool: ...
def copy_numbered(table: Int64, mapped: Int64, segment_rows: int, columns: Int64, filled: Filled, ids: Int64) -> bool: ...
