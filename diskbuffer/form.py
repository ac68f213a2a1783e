"""What samplers hand to the gather: which steps, and what a sample consists of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]


class Draw(NamedTuple):
    """Drawn steps: streams and positions, and the first and the last row of their episodes; (size,) int64 each."""

    streams: Int64
    positions: Int64
    starts: Int64
    ends: Int64


@dataclass(frozen=True)
class Form:
    """One step, `n_step` steps folded into one, or a sequence.

    Attributes
    ----------
    length : int or None
        Consecutive steps, with an axis of time; None for single steps without one.
    padded : bool
        Whether sequences may be cut short by their episode's end, and are filled up then.
    n_step : int
        Steps whose rewards are summed up, discounted by `gamma`; only where `length` is None.
    gamma : float
    """

    length: int | None = None
    padded: bool = False
    n_step: int = 1
    gamma: float = 1.0

    @property
    def steps(self) -> int:
        """Steps with an axis of time of their own."""
        return 1 if self.length is None else self.length
