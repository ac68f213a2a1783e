"""Random values for the comparisons with other libraries: of every dtype, with the floats that are easily mistaken."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
_DTYPES = ("uint8", "int8", "int32", "int64", "float16", "float32", "float64", "bool")
_ODD = (np.nan, np.inf, -np.inf, -0.0, 0.0, 1e-40)


class Values:
    """Random arrays of one shape and dtype.

    Parameters
    ----------
    rng : numpy.random.Generator
    shape : tuple of int
    dtype : str, optional
        A random one, where it is missing.
    few : bool, optional
        Whether there are so few that the same come again and again.
    """

    def __init__(self, rng: np.random.Generator, shape: tuple[int, ...], dtype: str = "", few: bool | None = None) -> None:
        self._rng, self.shape, self.dtype = rng, shape, np.dtype(dtype or str(rng.choice(_DTYPES)))
        self._few = bool(rng.random() < 0.2) if few is None else few

    def __call__(self) -> Array:
        """Return a new one."""
        if self.dtype.kind in "biu":
            highest = 2 if self._few or self.dtype.kind == "b" else 128
            return np.asarray(self._rng.integers(0, highest, self.shape)).astype(self.dtype)
        found = np.asarray(self._rng.normal(size=self.shape) if not self._few else self._rng.integers(0, 2, self.shape))
        odd = self._rng.random(self.shape) < 0.05
        with np.errstate(over="ignore", under="ignore"):
            return np.where(odd, self._rng.choice(_ODD, self.shape), found).astype(self.dtype)


def make_calls(both: Any, names: Iterable[str], seed: int) -> None:
    """Call methods of a pair of buffers by name, and close it; an error tells what was called before."""
    done = list[str]()
    try:
        for name in names:
            done.append(name)
            getattr(both, name)()
    except Exception as error:
        error.add_note(f"seed {seed}: {both} after {done}")
        raise
    finally:
        both.close()


def random_shape(rng: np.random.Generator) -> tuple[int, ...]:
    """Return a shape: of a number, a vector, a small matrix, or a picture that is packed."""
    shapes = ((), (1,), (3,), (2, 3), (4, 9, 8), (36, 40))
    return shapes[int(rng.choice(len(shapes), p=[0.25, 0.15, 0.25, 0.15, 0.1, 0.1]))]


def same_bits(one: Array, other: Array, where: str) -> None:
    """Require two arrays of the same shape, dtype, and bytes; an AssertionError that names where they are."""
    assert (one.dtype, one.shape) == (other.dtype, other.shape), f"{where}: {one.dtype}{one.shape}, {other.dtype}{other.shape}"
    if one.tobytes() != other.tobytes():
        differ = np.argwhere((one != other) & ~((one != one) & (other != other)))
        raise AssertionError(f"{where} differs at {differ[:5].tolist()}: expected\n{one}\nfound\n{other}")
