"""Drawing from a buffer: with samplers of its own, or with those that callers give."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from diskbuffer.columns.derived import DerivedColumns
from diskbuffer.errors import InputError
from diskbuffer.limiting.limiter import Limiter
from diskbuffer.opening.access import Access
from diskbuffer.reading.batch_reader import BatchReader
from diskbuffer.reading.batch_source import SampleSource, Sampling
from diskbuffer.reading.ranks import ALONE, Ranks
from diskbuffer.reading.recorded_column import RecordedColumn
from diskbuffer.samplers import Sampler, Uniform
from diskbuffer.samplers.sampler import seed_sequence
from diskbuffer.schema.schema import TAG, Column

Paths = tuple[str, ...] | None


class OwnSamplers(dict[str, Uniform]):
    """The samplers that a buffer draws with where none is given: "sample", and "loader" of loaders."""

    def __init__(self, seed: int | None) -> None:
        seeds = seed_sequence(seed).generate_state(2, np.uint64).tolist()
        super().__init__(sample=Uniform(seeds[0]), loader=Uniform(seeds[1]))
        for sampler in self.values():
            sampler.seeded = seed is not None

    def state_dict(self) -> dict[str, Any]:
        """Return their states."""
        return {name: sampler.state_dict() for name, sampler in self.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from states that `state_dict` returned; where one does not fit, with those that they have."""
        if not isinstance(state, Mapping) or set(state) != set(self):
            raise InputError(f"a buffer's state must have {sorted(self)}, found {state!r}")
        loaded = {name: Uniform(0) for name in self}
        for name, sampler in loaded.items():
            sampler.load_state_dict(state[name])
        for name, sampler in self.items():
            sampler.load_state_dict(loaded[name].state_dict())


class Drawing:
    """Draw from one buffer. It does not keep the buffer open, and so neither do samplers that met it."""

    def __init__(self, own: OwnSamplers, derived: DerivedColumns, access: Access, limiter: Limiter | None) -> None:
        self.own, self._derived, self._reader, self._access, self._limiter = own, derived, derived.reader, access, limiter
        self._latest: tuple[int, Paths, Sampling] | None = None  # what was asked for last, of our own sampler

    def source(self, sampler: Sampler | None, size: int, paths: Paths = None) -> Sampling:
        """Return what draws batches of `size` samples, for `sample`."""
        if sampler is not None:
            return self.sampling(self.sampler(sampler, "sample"), size, paths)
        known = self._latest  # by another thread, this may be another the next moment
        if known is None or known[0] != size or known[1] != paths:  # most ask for the same again and again
            known = self._latest = size, paths, self.sampling(self.own["sample"], size, paths)
        return known[2]

    def sampling(
        self, sampler: Sampler, size: int, paths: Paths = None, ranks: Ranks = ALONE, refresh_every: float = math.inf
    ) -> Sampling:
        """Return what draws batches with a sampler that has met the buffer, `size` samples for each rank."""
        source, sizes = SampleSource(self._reader, sampler, self._limiter), [size * ranks.world_size]
        how: dict[str, Any] = {"paths": paths, "ranks": ranks, "refresh_every": refresh_every}
        return Sampling([source], lambda: sizes, self._reader.pool, self._access.check_open, **how)

    def sampler(self, requested: Sampler | None, own: str, ranks: Ranks = ALONE) -> Sampler:
        """Return the sampler that was given, which meets the buffer, or our own; an InputError where it is none."""
        if requested is not None and not isinstance(requested, Sampler):
            raise InputError(f"sampler must be a sampler, such as diskbuffer.Uniform(), found {requested!r}")
        sampler = self.own[own] if requested is None else requested
        ranks.check(sampler)
        if requested is not None:
            self.attach(requested)
        return sampler

    def attach(self, sampler: Sampler) -> BatchReader:
        """Connect a sampler to the buffer; return where to read what it draws."""
        self._access.check_open()
        with self._reader.lock:
            sampler.attach(self._reader.index, self._open_column)
        return self._reader

    def _open_column(self, name: str, column: Column | None) -> Any:
        """Return a column for a sampler to read, or, where it says which, to write."""
        if name == TAG and column is None:
            return self._reader
        if column is None:
            return RecordedColumn(self._derived.store, self._reader, name, self._access.check_open)
        self._access.write_columns()
        return self._derived.open(name, column, self._access.write_columns)
