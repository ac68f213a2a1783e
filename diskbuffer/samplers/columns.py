"""Columns of a store, as samplers see them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from diskbuffer.errors import InputError
from diskbuffer.index.index import Index
from diskbuffer.samplers.draws import Draw
from diskbuffer.schema.schema import Column


class Segments(Protocol):
    """A column that a sampler reads, and writes if it keeps it, segment by segment."""

    @property
    def lock(self) -> AbstractContextManager[Any]:
        """To be held while the index is looked at."""

    @property
    def index(self) -> Index:
        """The index of the steps."""

    @property
    def check(self) -> Callable[[], Any]:
        """Raises where the buffer was closed, or may not be written to."""

    @property
    def is_there(self) -> bool:
        """Whether the store has the column; else `values` makes it."""

    def values(self, slot: int) -> npt.NDArray[Any]:
        """View the values of a segment."""

    def hold(self, rows: npt.NDArray[np.int64]) -> bool:
        """Return whether rows of the store are still those of the index; where some were evicted since, it is read anew."""


class Tags(Protocol):
    """The tags of a buffer's steps, and how far these lie apart."""

    @property
    def index(self) -> Index:
        """The index of the steps."""

    @property
    def fps(self) -> float | None:
        """Steps a second, where that is known."""

    def has_tag(self, tag: str, drawn: Draw, /) -> npt.NDArray[np.bool_]:
        """Return which of some steps lie in an episode with a tag."""


T = TypeVar("T", Segments, Tags)


def met_here(met: T | None, index: Index, said: str) -> T:
    """Return what a sampler that was made with arguments, `said`, has met; an InputError where that is another buffer's."""
    if met is None or met.index is not index:
        raise InputError(f"a sampler with {said} draws from the buffer that it was last given to: make one for each")
    return met


class OpenColumn(Protocol):
    """Opens a column of the buffer that a sampler meets."""

    def __call__(self, name: str, kept: Column | None, /) -> Any:
        """Return a column's `Segments`.

        That is a column that the sampler keeps, made as told where it is missing; None: a recorded one of numbers, to read.
        "tag" gives `Tags`.
        """
