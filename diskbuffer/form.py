"""What samplers hand to the gather: which steps, and what a sample consists of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]


class Draw(NamedTuple):
    """Drawn steps: streams and positions, and the first and the last row of their episodes; (size,) int64 each.

    `notes` is what else the sampler tells of each, to be delivered beside the columns, such as importance weights.
    """

    streams: Int64
    positions: Int64
    starts: Int64
    ends: Int64
    notes: Mapping[str, npt.NDArray[Any]] = MappingProxyType({})

    @property
    def size(self) -> int:
        """How many steps were drawn."""
        return len(self.positions)


class Form:
    """What a sample is made of: one of the classes below."""


@dataclass(frozen=True)
class Steps(Form):
    """Single steps, or sequences of them.

    Attributes
    ----------
    length : int or None
        Consecutive steps, with an axis of time; None for single steps without one.
    burn_in : int
        Steps before them, on the same axis.
    padded : bool
        Whether there may be fewer, as an episode starts or ends; the others are zeros, and False in a mask.
    """

    length: int | None = None
    burn_in: int = 0
    padded: bool = False

    @property
    def steps(self) -> int:
        """Steps on the axis of time."""
        return 1 if self.length is None else self.burn_in + self.length


@dataclass(frozen=True)
class NSteps(Form):
    """`n_step` steps folded into one, their rewards summed up, discounted by `gamma`."""

    n_step: int
    gamma: float


@dataclass(frozen=True)
class Rows(Form):
    """`length` consecutive rows, also the last ones of episodes, on into the next episodes.

    Notes of the draw: ``firsts``, (size, length) int64, the first row of each row's episode.
    """

    length: int


@dataclass(frozen=True)
class Relabelled(Form):
    """Single steps, some with a goal that was reached elsewhere in their episode, and its reward.

    Notes of the draw: ``relabelled``, (size,) bool, and ``goals``, (size,) int64, the rows where those goals were reached.
    """

    reward: Callable[[dict[str, Any]], Any]
