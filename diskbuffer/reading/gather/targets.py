"""The memory that columns are gathered into."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from diskbuffer.reading.gather import kernel as k
from diskbuffer.schema import CHECKSUM, Schema
from diskbuffer.store.format.checksums import OBS, covered

_WORTH_READING_ROWS = 4096  # bytes of a row: a page. Of smaller ones, chunks are in few pages, and all of a chunk is read


@dataclass(frozen=True, eq=False)
class Columns:
    """The columns to deliver, and what the kernel needs to know of them: one row of `targets` each, but for the address."""

    schema: Schema
    paths: tuple[str, ...]
    targets: npt.NDArray[np.int64]

    @classmethod
    def of(cls, schema: Schema, packed: dict[str, tuple[int, int, int]], zeros: bool, salt: int) -> Columns:
        """Describe all columns of a schema; `packed` tells (chunk_rows, chunks, address of the tail) of the packed ones.

        `salt` is what the checksums of rows start from.
        """
        paths = (*schema.obs, *schema.step)
        order = list(schema)
        targets = np.zeros((len(paths), k.TARGET_FIELDS), np.int64)
        for target, path in zip(targets, paths, strict=True):
            target[k.COLUMN], target[k.ROW_BYTES], target[k.ZEROS] = order.index(path), schema[path].row_bytes, zeros
            target[k.FLAG] = schema[path].np_dtype == np.bool_
            if path in packed:
                target[[k.CHUNK_ROWS, k.CHUNKS, k.TAIL]] = packed[path]
            alone = covered(schema, OBS) == (path,) and schema[path].row_bytes >= _WORTH_READING_ROWS
            target[k.CHECKSUMS], target[k.SALT] = order.index(CHECKSUM) if alone else -1, salt
        return cls(schema, paths, targets)

    def select(self, paths: tuple[str, ...]) -> Columns:
        """Return some of the columns."""
        return Columns(self.schema, paths, self.targets[[self.paths.index(path) for path in paths]])


class ColumnMemory:
    """One array, in pinned memory where it goes to a GPU."""

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype[Any], pinned: bool) -> None:
        self._pinned: torch.Tensor | None = None
        if pinned:
            like = torch.from_numpy(np.empty(0, dtype))
            self._pinned = torch.zeros(shape, dtype=like.dtype, pin_memory=True)
        # Zeros: a stream of LZ4 that a stranger made can leave some of it as it was.
        self.array: npt.NDArray[Any] = np.zeros(shape, dtype) if self._pinned is None else self._pinned.numpy()

    def tensor(self) -> torch.Tensor:
        """Return a tensor over the array."""
        return torch.from_numpy(self.array) if self._pinned is None else self._pinned


class Memory:
    """Memory for some columns of `size` windows: of each column `rows` rows, the window's from number `skip` on.

    Parameters
    ----------
    columns : Columns
        One may be there twice.
    extents : sequence of (skip, rows, alone)
        Of each column; `alone` where there is one row, and no axis for it.
    size : int
    pinned : bool
    """

    def __init__(self, columns: Columns, extents: Sequence[tuple[int, int, bool]], size: int, pinned: bool) -> None:
        self.paths = columns.paths
        self.targets = columns.targets.copy()
        self.blocks: list[ColumnMemory] = []
        for target, path, (skip, rows, alone) in zip(self.targets, self.paths, extents, strict=True):
            target[k.SKIP], target[k.ROWS] = skip, rows
            column = columns.schema[path]
            block = ColumnMemory((size, *(() if alone else (rows,)), *column.shape), column.np_dtype, pinned)
            target[k.OUT] = block.array.ctypes.data
            self.blocks.append(block)
        self.nbytes = sum(block.array.nbytes for block in self.blocks)

    def items(self) -> Iterator[tuple[str, npt.NDArray[Any]]]:
        """Yield the columns and their arrays."""
        for path, block in zip(self.paths, self.blocks, strict=True):
            yield path, block.array

    def bound_to(self, columns: Columns) -> Memory:
        """Return this same memory, to be filled from another store, which has these columns, too."""
        other = copy.copy(self)
        other.targets = columns.select(self.paths).targets
        other.targets[:, [k.SKIP, k.ROWS, k.OUT]] = self.targets[:, [k.SKIP, k.ROWS, k.OUT]]
        return other
