"""Batches from several buffers, or from several parts of one: half online, half from demonstrations.

Ball et al., 2023, "Efficient online reinforcement learning with offline data" (RLPD).
"""

from __future__ import annotations

import contextlib
import copy
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from diskbuffer.arguments.inputs import as_array, column_paths, seconds_of
from diskbuffer.arguments.integers import integer, shown
from diskbuffer.errors import InputError
from diskbuffer.loading.loader import Loader
from diskbuffer.reading.batch_source import DrawnBatch, SampleSource, Sampling
from diskbuffer.reading.batches.base import Batch
from diskbuffer.reading.batches.pool import ArraysPool
from diskbuffer.reading.delivery import Transform
from diskbuffer.reading.ranks import ALONE, Ranks
from diskbuffer.reading.wanted import Wanted
from diskbuffer.runtime.signals import Uninterrupted
from diskbuffer.samplers import Sampler, Uniform

if TYPE_CHECKING:
    import torch

    from diskbuffer.buffer import ReplayBuffer


class Mixture:
    """Sample from several buffers at once, so many of each batch from each.

    Every batch has the parts one after the other, in the order in which they were given, and ``part``, (batch_size,) int64, which
    tells where each sample is from. A part's share of the batch is rounded so that the sizes add up. What the buffers recorded
    must be the same columns; of columns that were written later, batches have those that all buffers have.

    Parameters
    ----------
    parts : sequence of (ReplayBuffer, weight) or (ReplayBuffer, weight, Sampler)
        Weights of 0 and more, in any unit. The samplers are `Uniform` where they are missing, and must agree in what a sample is
        (n-step, sequences of which length). The same buffer may come several times, with samplers of different ``episodes=``.

    Attributes
    ----------
    weights : list of float
        Shares of a batch. They may be set while loops run, and count for batches that are drawn from then on; a part of weight 0
        has no samples. In the state, too.

    Examples
    --------
    >>> import diskbuffer as db, numpy as np, tempfile
    >>> columns = {"obs": db.Column((), "int64"), "action": db.Column((), "int64")}
    >>> directory = tempfile.mkdtemp()
    >>> online = db.ReplayBuffer(directory + "/online", columns=columns)
    >>> demonstrations = db.ReplayBuffer(directory + "/demonstrations", columns=columns)
    >>> for buffer in (online, demonstrations):
    ...     _ = buffer.extend(obs=np.arange(101), action=np.zeros(100, int), reward=np.ones(100))
    >>> batch = db.Mixture([(online, 0.5), (demonstrations, 0.5)]).sample(32)
    >>> batch["part"].bincount().tolist()
    [16, 16]
    """

    def __init__(self, parts: Sequence[tuple[ReplayBuffer, float] | tuple[ReplayBuffer, float, Sampler]]) -> None:
        if not parts or not all(isinstance(part, tuple | list) and len(part) in (2, 3) for part in parts):
            raise InputError("parts must be a list of (buffer, weight) or (buffer, weight, sampler)")
        self._buffers = [part[0] for part in parts]
        samplers = [part[2] if len(part) == 3 else Uniform() for part in parts]
        for buffer, sampler in zip(self._buffers, samplers, strict=True):
            if not isinstance(sampler, Sampler) or not hasattr(buffer, "_drawing"):
                raise InputError("parts must be a list of (buffer, weight) or (buffer, weight, sampler)")
        if len({id(sampler) for sampler in samplers}) < len(samplers):
            raise InputError("every part needs a sampler of its own")
        if any(sampler.form != samplers[0].form for sampler in samplers):
            raise InputError(
                "the samplers of a mixture must agree in what a sample is: n_step, gamma, length, burn_in, offsets, ..."
            )
        self.samplers = samplers
        self.weights = [part[1] for part in parts]
        self._pool = ArraysPool()

    @property
    def weights(self) -> list[float]:
        """Shares of a batch, of the parts in their order."""
        return [float(weight) for weight in self._weights]

    @weights.setter
    def weights(self, weights: Sequence[float]) -> None:
        self._weights = self._shares(weights)

    def _shares(self, weights: Any) -> npt.NDArray[np.float64]:
        """Return the shares that weights are, whose sum is 1; an InputError where they are none."""
        given: npt.NDArray[np.float64] = np.zeros(0)
        if isinstance(weights, Iterable) and not isinstance(weights, Mapping | str | bytes):
            with contextlib.suppress(TypeError, ValueError, OverflowError):
                array = as_array("weights", weights if hasattr(weights, "dtype") else list(weights))
                given = array.astype(np.float64) if array.dtype.kind in "iuf" else given
        if given.shape != (len(self.samplers),) or not (np.isfinite(given) & (given >= 0)).all() or not given.any():
            raise InputError(f"weights must be {len(self.samplers)} numbers, not negative and not all 0, found {shown(weights)}")
        shares: npt.NDArray[np.float64] = given / given.max()
        return np.asarray(shares / shares.sum())

    def sample(
        self,
        batch_size: int,
        *,
        columns: Sequence[str] | None = None,
        device: torch.device | str | None = None,
        transform: Transform | None = None,
        numpy: bool = False,
    ) -> Batch:
        """Draw steps and return them, as `ReplayBuffer.sample` does."""
        return self._sampling(batch_size, column_paths(columns)).sample(Wanted.of(device, transform, numpy))

    def loader(
        self,
        batch_size: int,
        *,
        columns: Sequence[str] | None = None,
        device: torch.device | str | None = None,
        transform: Transform | None = None,
        numpy: bool = False,
        prefetch: int = 3,
        threads: int | None = None,
        transform_threads: int = 0,
        rank: int | None = None,
        world_size: int | None = None,
        refresh_every: float | None = None,
    ) -> Loader[DrawnBatch]:
        """Return an endless iterable of batches that threads fill ahead, as `ReplayBuffer.loader` does.

        With several ranks, every sampler needs a seed, and each rank's batch has as many samples of each part as one of
        `batch_size` has without ranks. With `refresh_every`, every buffer that is open for reading is refreshed; the others know.
        """
        ranks, every = Ranks.of(rank, world_size), seconds_of("refresh_every", refresh_every)
        for sampler in self.samplers:
            ranks.check(sampler)
        wanted, ahead = Wanted.of(device, transform, numpy), integer("prefetch", prefetch)
        gathering = self._buffers[0]._threads(threads)
        paths = column_paths(columns)
        self._sampling(batch_size, paths, ranks)  # which raises now what would be wrong in the loop
        return Loader(lambda: self._sampling(batch_size, paths, ranks, every), wanted, ahead, gathering, transform_threads)

    def _sampling(
        self, batch_size: int, paths: tuple[str, ...] | None, ranks: Ranks = ALONE, refresh_every: float = math.inf
    ) -> Sampling:
        size = integer("batch_size", batch_size)

        def sizes() -> list[int]:
            weights = self._weights  # once: another thread may set others
            ends = np.floor(np.cumsum(weights) * size + 0.5).astype(np.int64)
            found: list[int] = np.diff(ends, prepend=0).tolist()
            if not all(found[n] for n in np.flatnonzero(weights)):
                raise InputError(
                    f"the weights leave a part without a sample in a batch of {size}: {found}; give a larger batch_size, or 0"
                )
            return [n * ranks.world_size for n in found]

        sources = [
            SampleSource(buffer._drawing.attach(sampler), sampler, buffer.limiter)
            for buffer, sampler in zip(self._buffers, self.samplers, strict=True)
        ]
        if any(sampler.form != self.samplers[0].form for sampler in self.samplers):  # as the buffers have other rates
            raise InputError("the buffers of a mixture must have the same steps a second, where samplers count in seconds")
        how: dict[str, Any] = {"numbered": True, "paths": paths, "ranks": ranks, "refresh_every": refresh_every}
        return Sampling(sources, sizes, self._pool, self._check_open, **how)

    def _check_open(self) -> None:
        for buffer in self._buffers:
            buffer._access.check_open()

    def state_dict(self) -> dict[str, Any]:
        """Return the state of all samplers, as theirs, and the weights."""
        return {str(n): sampler.state_dict() for n, sampler in enumerate(self.samplers)} | {"weights": self.weights}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state that `state_dict` returned."""
        if not isinstance(state, Mapping) or set(state) != {*map(str, range(len(self.samplers))), "weights"}:
            raise InputError(
                f"a mixture's state must have one of each of {len(self.samplers)} samplers, and weights, found {str(state)[:200]}"
            )
        weights = self._shares(state["weights"])
        for n, sampler in enumerate(self.samplers):  # which raises before anything is changed
            copy.deepcopy(sampler).load_state_dict(state[str(n)])
        with Uninterrupted():
            for n, sampler in enumerate(self.samplers):
                sampler.load_state_dict(state[str(n)])
            self._weights = weights
