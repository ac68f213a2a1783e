from typing import Any

import numpy as np
import numpy.typing as npt

from diskbuffer.native.index import NativeIndex
from diskbuffer.native.sampling import Philox

Int64 = npt.NDArray[np.int64]
Filled = tuple[npt.NDArray[Any], ...]
Tables = list[tuple[Int64, int, int]]

def allocate(kinds: list[tuple[tuple[int, ...], np.dtype[Any]]], n: int) -> Filled: ...
def copy_drawn(index: NativeIndex, tables: Tables, columns: Int64, filled: Filled, streams: Int64, positions: Int64) -> bool: ...
def copy_random(index: NativeIndex, tables: Tables, columns: Int64, filled: Filled, random: Philox) -> bool: ...
def copy_recent(index: NativeIndex, tables: Tables, columns: Int64, filled: Filled, ages: Int64, streams: Int64) -> bool: ...
def copy_numbered(index: NativeIndex, tables: Tables, columns: Int64, filled: Filled, ids: Int64) -> bool: ...
