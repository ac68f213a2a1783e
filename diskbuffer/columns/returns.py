"""Returns and advantages of the steps of a store, written to columns of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from diskbuffer.arguments.inputs import step_ids
from diskbuffer.columns.derived import DerivedColumns, SegmentSteps
from diskbuffer.errors import InputError
from diskbuffer.native.returns import advantages, returns_to_go
from diskbuffer.schema.schema import Column

Array = npt.NDArray[Any]


@dataclass(frozen=True, kw_only=True)
class Returns:
    """What to compute, from which columns, into which; see `Columns.returns_and_advantages`.

    Attributes
    ----------
    rewards, values, next_values : str
        Columns that are read; without values there are no advantages.
    gamma, gae_lambda : float
    out : (str, str or None)
        Columns for returns and for advantages.
    """

    rewards: str
    values: str | None
    next_values: str | None
    gamma: float
    gae_lambda: float
    out: tuple[str, str | None]

    @property
    def _read(self) -> list[str]:
        return [name for name in (self.rewards, self.values, self.next_values) if name is not None]

    @property
    def _written(self) -> list[str]:
        return [name for name in self.out if name is not None]

    def compute(self, columns: DerivedColumns, steps: Any = None) -> int:
        """Compute them of every step, or of `steps`; return of how many."""
        some = None if steps is None else columns.by_stream(step_ids(steps))
        self._check(columns)
        for name in self._written:
            columns.check(name)
        for name in self._written:
            columns.ensure(name, Column((), "float32"))
        computed = 0
        with columns.in_use([*self._written, *self._read]):
            for stream in range(columns.store.layout.streams):
                carry = 0.0
                for segment in columns.segments(stream, None if some is None else some[stream]):
                    carry = self._compute(columns, segment, carry)
                    computed += len(segment.rows)
        return computed

    def _check(self, columns: DerivedColumns) -> None:
        schema = columns.store.layout.schema
        for name, number in (("gamma", self.gamma), ("gae_lambda", self.gae_lambda)):
            if not isinstance(number, int | float | np.number) or not 0 <= number <= 1:
                raise InputError(f"{name} must be a number from 0 to 1, found {number!r}")
        if self.values is not None and self.next_values is None:
            raise InputError("advantages need next_values=, the values of next_obs: where an episode was cut off, they count")
        for name in self._read:
            if name not in schema.columns or schema[name].shape or schema[name].np_dtype.kind != "f":
                column = schema.columns.get(name, "none")
                raise InputError(
                    f"expected a column {name!r} with a floating-point number for each step, found {column}; columns.map() "
                    "writes one, and values=None asks for plain returns, which need none"
                )
        if len({*self._written, *self._read}) < len(self._written) + len(set(self._read)):
            raise InputError(f"out must name different columns, and none that is read, found {self.out!r}")

    def _compute(self, columns: DerivedColumns, segment: SegmentSteps, carry: float) -> float:
        """Compute those of one segment; return what the segment before needs of it. The store's lock must be held."""
        store, slot = columns.store, segment.slot
        read = {name: store.values(name, slot)[segment.rows].astype(np.float64) for name in self._read}
        terminated = store.values("terminated", slot)[segment.rows]
        following: Array = read[self.next_values] if self.next_values else np.zeros(len(segment.rows))
        rewards = read[self.rewards]
        if self.values is None:
            returns, carry = returns_to_go(rewards, following, terminated, segment.ended, self.gamma, carry)
            computed = [returns]
        else:
            values = read[self.values]
            gained, carry = advantages(rewards, values, following, terminated, segment.ended, self.gamma, self.gae_lambda, carry)
            computed = [gained + values, gained]
        for name, numbers in zip(self._written, computed, strict=False):  # advantages need not be wanted
            store.derived(name, slot)[segment.rows] = numbers
            store.note_checksum(name, slot)
        return carry
