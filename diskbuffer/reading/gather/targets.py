"""The memory that columns are gathered into."""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from diskbuffer.native import webp
from diskbuffer.reading.gather import structs
from diskbuffer.reading.gather.store_tail import StoreTail
from diskbuffer.schema.schema import CHECKSUM, Schema
from diskbuffer.store.format.checksums import OBS, covered

if TYPE_CHECKING:
    from diskbuffer.reading.gather.block import Block

_WORTH_READING_ROWS = 4096  # bytes of a row: a page. Of smaller ones, chunks are in few pages, and all of a chunk is read


@dataclass(frozen=True, eq=False)
class Columns:
    """The columns to deliver, and what native code needs to know of them: `targets`, (stores, columns, TARGET_FIELDS)."""

    schema: Schema
    paths: tuple[str, ...]
    targets: npt.NDArray[np.int64]
    chosen_from: Columns | None = None  # of all that there are

    @classmethod
    def of(cls, schema: Schema, packed: Mapping[str, tuple[int, int]], zeros: bool, tails: Sequence[StoreTail]) -> Columns:
        """Describe all columns of a schema; `packed` tells (chunk_rows, chunks) of the packed ones, the same in all stores."""
        paths = (*schema.obs, *schema.step)
        order = list(schema)
        targets = np.zeros((len(tails), len(paths), structs.TARGET_FIELDS), np.int64)
        for n, path in enumerate(paths):
            target = targets[:, n].T
            target[structs.COLUMN], target[structs.ROW_BYTES], target[structs.ZEROS] = (
                order.index(path),
                schema[path].row_bytes,
                zeros,
            )
            target[structs.LANES] = 1  # so no rows of another lane come before a row: LANE_ROWS stays 0
            target[structs.FLAG] = schema[path].np_dtype == np.bool_
            if path in packed:
                target[structs.CHUNK_ROWS], target[structs.CHUNKS] = packed[path]
                target[structs.TAIL] = [tail.addresses[path] for tail in tails]
                target[structs.TAIL_ROWS] = [tail.rows for tail in tails]
            lossy = schema[path].is_lossy
            if lossy:
                target[structs.HEIGHT], target[structs.WIDTH], _ = schema[path].shape
                target[structs.GET_INFO], target[structs.DECODE_INTO] = webp.functions()
            alone = covered(schema, OBS) == (path,) and schema[path].row_bytes >= _WORTH_READING_ROWS and not lossy
            target[structs.CHECKSUMS], target[structs.SALT] = (
                order.index(CHECKSUM) if alone else -1,
                [tail.salt for tail in tails],
            )
        return cls(schema, paths, targets)

    def sample_bytes(self, frame_stack: int) -> float:
        """Return about how many bytes are decoded for a sample; infinity where pictures are, which takes much longer."""
        rows, chunks = self._nbytes
        return frame_stack * rows + chunks

    @functools.cached_property
    def _nbytes(self) -> tuple[float, float]:
        """Of a row of all columns, and of the chunks that it is in."""
        sizes = self.targets[0].T
        rows = sizes[structs.ROW_BYTES]
        each = math.inf if sizes[structs.WIDTH].any() else float(rows.sum())
        return each, float((rows * np.maximum(sizes[structs.CHUNK_ROWS], 1)).sum())

    @property
    def all(self) -> Columns:
        """All that there are in the same stores."""
        return self.chosen_from or self

    def select(self, paths: tuple[str, ...]) -> Columns:
        """Return some of all columns that there are."""
        every = self.all
        return Columns(self.schema, paths, every.targets.take([every.paths.index(path) for path in paths], axis=1), every)


def new_array(shape: tuple[int, ...], dtype: np.dtype[Any], block: Block | None = None) -> npt.NDArray[Any]:
    """Return an array of zeros; in a block where it goes to an accelerator."""
    # Zeros: a stream of LZ4 that a stranger made can leave some of it as it was.
    return np.zeros(shape, dtype) if block is None else block.take(shape, dtype)


class Memory:
    """Memory for some columns of `size` windows: of each column `rows` rows, the window's from number `skip` on.

    Parameters
    ----------
    columns : Columns
        One may be there twice.
    extents : sequence of (skip, rows, alone)
        Of each column; `alone` where there is one row, and no axis for it.
    size : int
    block : Block, optional
    """

    def __init__(self, columns: Columns, extents: Sequence[tuple[int, int, bool]], size: int, block: Block | None = None) -> None:
        self.paths = columns.paths
        self.targets = columns.targets.copy()
        self.arrays: list[npt.NDArray[Any]] = []
        for n, (path, (skip, rows, alone)) in enumerate(zip(self.paths, extents, strict=True)):
            column = columns.schema[path]
            array = new_array((size, *(() if alone else (rows,)), *column.shape), column.np_dtype, block)
            self.targets[:, n, [structs.SKIP, structs.ROWS, structs.OUT]] = skip, rows, array.ctypes.data
            self.arrays.append(array)
        self.nbytes = sum(array.nbytes for array in self.arrays)

    def items(self) -> Iterator[tuple[str, npt.NDArray[Any]]]:
        """Yield the columns and their arrays."""
        yield from zip(self.paths, self.arrays, strict=True)

    def bound_to(self, columns: Columns) -> Memory:
        """Return this same memory, to be filled from another store, which has these columns, too."""
        other = copy.copy(self)
        other.targets = columns.select(self.paths).targets
        places = [structs.SKIP, structs.ROWS, structs.OUT]
        other.targets[..., places] = self.targets[0][:, places]
        return other
