"""What ratio of samples to inserts is asked for."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from diskbuffer.arguments.integers import integer
from diskbuffer.errors import InputError

_FEWEST = 100  # steps that the buffer of the error is at least, where it is left open


@dataclass(frozen=True)
class SampleToInsertRatio:
    """How many steps are sampled for each that is added; whichever side is ahead waits for the other.

    After the rate limiter of Reverb (Cassirer et al., 2021, "Reverb: a framework for experience replay"). The *surplus* is how
    many samples are due: ``ratio * inserts - samples``. `add` and `extend` wait while it is above `error_buffer`; `sample`,
    `draw` and loaders wait while it is below ``-error_buffer``, and until `min_size` steps were added. The first `min_size`
    steps, and those that were there before the limiter, do not count as inserts.

    A call goes ahead as long as the bound is not passed yet, however large the call is; so each bound is passed by one call of
    every process at most, and never do both sides wait at once. (Reverb asks where a call would lead, and so needs an
    `error_buffer` that is larger than every call.)

    Parameters
    ----------
    ratio : float
        Steps sampled for each step added. A sequence counts as all of its steps, a batch when it is delivered, not when it is
        drawn ahead.
    min_size : int
        Steps that must have been added, ever, before the first is sampled.
    error_buffer : float, optional
        Samples by which either side may be ahead. A tenth of ``ratio * min_size`` where it is left out, and ``100 * ratio`` at
        least. Small ones have both sides wait for each other often.
    timeout : float or None
        Seconds that a call waits while nothing comes from the other side; then a LimiterTimeoutError. 0 never waits, None waits
        for ever.

    Raises
    ------
    InputError
        A number is out of its range.
    """

    ratio: float
    min_size: int = 1
    error_buffer: float | None = None
    timeout: float | None = 600.0

    def __post_init__(self) -> None:
        if not _is_number(self.ratio) or self.ratio <= 0:
            raise InputError(f"ratio must be a number above 0, found {self.ratio!r}")
        object.__setattr__(self, "min_size", integer("min_size", self.min_size, 1, 2**53 - 1))
        for name in ("error_buffer", "timeout"):
            value = getattr(self, name)
            if value is not None and (not _is_number(value) or value < 0):
                raise InputError(f"{name} must be a number from 0 on, or None, found {value!r}")

    @property
    def bound(self) -> float:
        """The buffer of the error, as given or chosen."""
        if self.error_buffer is not None:
            return float(self.error_buffer)
        return float(self.ratio * max(_FEWEST, self.min_size / 10))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
