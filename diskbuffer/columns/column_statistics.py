"""What the statistics of a column are: arrays of figures, which normalise batches, and are kept with marks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from diskbuffer.errors import InputError

Array = npt.NDArray[Any]
QUANTILES = (0.01, 0.1, 0.5, 0.9, 0.99)
_FIGURES = ("count", "mean", "std", "min", "max", "axis")


@dataclass(frozen=True)
class ColumnStatistics:
    """Statistics of each number of a vector, of each channel of a picture, or of each place on the last axis of other rows.

    Numbers that are not finite count in nothing.

    Attributes
    ----------
    count : array of int64
        How many numbers.
    mean, std : array of float64
        NaN where there are none; `std` is that of these numbers themselves (divided by `count`).
    min, max : array
        Of the column's dtype; 0 where there are none.
    quantiles : mapping of float to array of float64
    axis : int
        Of a row, counted from its end, on which these lie; 0 where a row has one of each.
    """

    count: Array
    mean: Array
    std: Array
    min: Array
    max: Array
    quantiles: Mapping[float, Array]
    axis: int

    def arrays(self, path: str) -> dict[str, Array]:
        """Return them as arrays by name, for ``copies.mark(name, arrays=...)``; `from_arrays` makes them of these again."""
        figures = {name: getattr(self, name) for name in _FIGURES} | {f"q{q:g}": values for q, values in self.quantiles.items()}
        return {f"statistics/{path}/{name}": np.asarray(values) for name, values in figures.items()}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array], path: str) -> ColumnStatistics:
        """Return those of a column that `arrays` returned, or that came with a data set: in ``buffer.copies.arrays()``.

        Raises
        ------
        InputError
            There are none of the column.
        """
        prefix = f"statistics/{path}/"
        found = {name.removeprefix(prefix): values for name, values in arrays.items() if name.startswith(prefix)}
        if not found.keys() >= {*_FIGURES}:
            raise InputError(f"there are no statistics of column {path!r} among the arrays {', '.join(arrays) or '(none)'}")
        quantiles = {float(name[1:]): values for name, values in found.items() if name.startswith("q")}
        return cls(**{name: found[name] for name in _FIGURES if name != "axis"}, quantiles=quantiles, axis=int(found["axis"]))

    def standardize(self, values: Any, smallest: float = 1e-8) -> Any:
        """Return values less their mean, over their standard deviation, for the ``transform=`` of batches.

        Parameters
        ----------
        values : (..., *shape) array or tensor
            The column's, with any axes in front, stacks of frames among them.
        smallest : float
            What is divided by at least.

        Returns
        -------
        array or tensor
            Of float32, or of float64 where `values` are.
        """
        shape = (*self.mean.shape, *[1] * (-self.axis - 1))
        mean, std = self.mean.reshape(shape), np.maximum(self.std, smallest).reshape(shape)
        if isinstance(values, np.ndarray | np.generic):
            dtype: Any = np.float64 if values.dtype == np.float64 else np.float32
            return (values - mean.astype(dtype)) / std.astype(dtype)
        import torch

        dtype = torch.float64 if values.dtype == torch.float64 else torch.float32
        return (values - torch.as_tensor(mean, dtype=dtype, device=values.device)) / torch.as_tensor(
            std, dtype=dtype, device=values.device
        )
