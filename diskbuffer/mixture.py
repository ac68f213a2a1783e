"""Batches from several buffers, or from several parts of one: half online, half from demonstrations.

Ball et al., 2023, "Efficient online reinforcement learning with offline data" (RLPD).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from diskbuffer.errors import InputError
from diskbuffer.form import Draw
from diskbuffer.gather.arrays import Arrays, Batch, Request
from diskbuffer.gather.batch import ArraysPool, allocate
from diskbuffer.gather.memory import Columns
from diskbuffer.loader import Loader
from diskbuffer.reader import Planned, Reader, Share
from diskbuffer.samplers import Sampler, Uniform
from diskbuffer.samplers.sampler import Ahead, at_least_one

if TYPE_CHECKING:
    from diskbuffer.buffer import ReplayBuffer

Int64 = npt.NDArray[np.int64]


class Mixture:
    """Sample from several buffers at once, so many of each batch from each.

    Every batch has the parts behind each other, in the order in which they were given, and ``part``, (batch_size,) int64, which
    tells where each sample is from. A part's share of the batch is rounded so that the sizes add up. Columns are those that all
    buffers have.

    Parameters
    ----------
    parts : sequence of (ReplayBuffer, weight) or (ReplayBuffer, weight, Sampler)
        Weights above zero, in any unit. The samplers are `Uniform` where they are missing, and must agree in what a sample is
        (n-step, sequences of which length). The same buffer may come several times, with samplers of different ``episodes=``.

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
            if not isinstance(sampler, Sampler) or not hasattr(buffer, "_attach"):
                raise InputError("parts must be a list of (buffer, weight) or (buffer, weight, sampler)")
        if len({id(sampler) for sampler in samplers}) < len(samplers):
            raise InputError("every part needs a sampler of its own")
        if any(sampler.form != samplers[0].form for sampler in samplers):
            raise InputError("the samplers of a mixture must agree in what a sample is: n_step, gamma, length, burn_in, ...")
        self.samplers = samplers
        weights = np.array([part[1] for part in parts], object)
        if not all(isinstance(w, int | float | np.number) and 0 < w < float("inf") for w in weights):
            raise InputError(f"weights must be numbers above 0, found {[part[1] for part in parts]}")
        self._weights = weights.astype(np.float64) / float(weights.sum())
        self._pool = ArraysPool()

    def sample(self, batch_size: int) -> Batch:
        """Draw steps and return them, as `ReplayBuffer.sample` does."""
        return self._source(batch_size).sample(self._pool)

    def loader(
        self,
        batch_size: int,
        *,
        device: torch.device | str | None = None,
        prefetch: int = 3,
        threads: int | None = None,
    ) -> Loader[Mixed]:
        """Return an endless iterable of batches that threads fill ahead, as `ReplayBuffer.loader` does."""
        ahead = at_least_one("prefetch", prefetch)
        threads = self._source(batch_size).threads if threads is None else at_least_one("threads", threads)
        return Loader(lambda: self._source(batch_size), device, ahead, threads)

    def _source(self, batch_size: int) -> Mixing:
        size = at_least_one("batch_size", batch_size)
        ends = np.floor(np.cumsum(self._weights) * size + 0.5).astype(np.int64)
        sizes = np.diff(ends, prepend=0).tolist()
        if min(sizes) < 1:
            raise InputError(f"the weights leave a part without a sample in a batch of {size}: {sizes}; give a larger batch_size")
        readers = [buffer._attach(sampler) for buffer, sampler in zip(self._buffers, self.samplers, strict=True)]
        return Mixing(readers, self.samplers, sizes, self._check_open)

    def _check_open(self) -> None:
        for buffer in self._buffers:
            buffer._check_open()

    def state_dict(self) -> dict[str, Any]:
        """Return the state of all samplers, as theirs."""
        return {str(n): sampler.state_dict() for n, sampler in enumerate(self.samplers)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state that `state_dict` returned."""
        if not isinstance(state, Mapping) or set(state) != {str(n) for n in range(len(self.samplers))}:
            raise InputError(
                f"a mixture's state must have one of each of {len(self.samplers)} samplers, found {str(state)[:200]}"
            )
        for n, sampler in enumerate(self.samplers):
            sampler.load_state_dict(state[str(n)])


@dataclass(frozen=True)
class Mixed:
    """A batch that all parts' samplers drew; `planned` is None where steps of it were evicted since."""

    aheads: list[Ahead]
    planned: Planned | None

    @property
    def request(self) -> Request | None:
        """What it is to be; None where that is not settled before its turn."""
        return None if self.planned is None else self.planned.request


class Mixing:
    """Batches that several samplers draw, each from its own store; a loader's source."""

    def __init__(
        self, readers: Sequence[Reader], samplers: Sequence[Sampler], sizes: list[int], check: Callable[[], None]
    ) -> None:
        self._readers, self._samplers, self._sizes, self._check = readers, samplers, sizes, check
        self.threads = readers[0].gatherer.threads
        if len({reader.frame_stack for reader in self._readers}) > 1:
            raise InputError("the buffers of a mixture must have the same frame_stack")
        self._columns = self._common()

    def _common(self) -> Columns:
        """Return the columns that all have, as the first has them."""
        first: Columns = self._readers[0].columns
        others = [reader.columns for reader in self._readers[1:]]
        for other in others:
            difference = first.schema.recorded.difference(other.schema.recorded)
            if difference:
                raise InputError(f"the buffers of a mixture must have the same columns:\n{difference}")
        return first.select(tuple(path for path in first.paths if all(path in other.paths for other in others)))

    def _locked(self) -> ExitStack:
        """Hold the locks of all stores, always in the same order."""
        stack = ExitStack()
        for lock in sorted({id(reader.lock): reader.lock for reader in self._readers}.items()):
            stack.enter_context(lock[1])
        return stack

    def begin(self) -> Mixed:
        """Draw the next batch, or take up one that was drawn and left."""
        self._check()
        with self._locked():
            found, whole = [], True
            for reader, sampler, size in zip(self._readers, self._samplers, self._sizes, strict=True):
                left = sampler.left(size)
                whole &= left is None or sampler.is_whole(reader.index, left)
                found.append(left or sampler.next(reader.index, size))
            planned = self._plan(found) if whole else None
            for sampler, ahead in zip(self._samplers, found, strict=True):
                sampler.keep(ahead)
            return Mixed(found, planned)

    def _plan(self, aheads: list[Ahead]) -> Planned:
        """Plan a batch of what was drawn, with the streams of all parts numbered through."""
        offsets = np.cumsum([0, *(reader.streams for reader in self._readers)]).tolist()
        drawn = [ahead.drawn for ahead in aheads]
        arrays = [np.concatenate(each) for each in zip(*(draw[:4] for draw in drawn), strict=True)]
        arrays[0] = np.concatenate([draw.streams + offset for draw, offset in zip(drawn, offsets, strict=False)])
        notes = {
            name: np.concatenate([draw.notes.get(name, np.ones(draw.size, np.float32)) for draw in drawn])
            for name in {name: None for draw in drawn for name in draw.notes}
        }
        notes["part"] = np.repeat(np.arange(len(drawn)), self._sizes)
        together = Draw(arrays[0], arrays[1], arrays[2], arrays[3], notes)
        request = Request(self._columns, self._readers[0].frame_stack, self._samplers[0].form, together.size)
        shares: list[Share] = [
            reader.share(request, together, offset) for reader, offset in zip(self._readers, offsets, strict=False)
        ]
        steps = [reader.names(draw) for reader, draw in zip(self._readers, drawn, strict=True)]
        return Planned(request, together, np.concatenate(steps), shares)

    def settle(self, begun: Mixed) -> Mixed:
        """Return a batch whose turn has come, or another where steps of it were evicted since it was drawn."""
        if begun.planned is not None and begun.planned.is_fresh:
            return begun
        with self._locked():
            mended = False
            for reader, sampler, ahead in zip(self._readers, self._samplers, begun.aheads, strict=True):
                if not sampler.is_whole(reader.index, ahead):
                    sampler.mend(reader.index, ahead)
                    mended = True
            if begun.planned is not None and not mended:
                return begun
            return Mixed(begun.aheads, self._plan(begun.aheads))

    def allocate(self, request: Request, pinned: bool) -> Arrays:
        """Return memory for a batch."""
        return allocate(request, pinned)

    def fill(self, begun: Mixed, arrays: Arrays) -> None:
        """Gather a batch."""
        assert begun.planned is not None
        begun.planned.gather(arrays, threads=1)

    def deliver(self, begun: Mixed) -> None:
        """Count a batch."""
        with self._locked():
            for sampler, ahead in zip(self._samplers, begun.aheads, strict=True):
                sampler.deliver(ahead)

    def leave(self, begun: Mixed) -> None:
        """Leave a batch to who asks next."""
        with self._locked():
            for sampler, ahead in zip(self._samplers, begun.aheads, strict=True):
                sampler.leave(ahead)

    def sample(self, pool: ArraysPool) -> Batch:
        """Return the next batch."""
        begun = self.begin()
        try:
            planned = self.settle(begun).planned
            assert planned is not None
            arrays = pool.take(planned.request)
            planned.gather(arrays)
            batch = arrays.deliver(arrays.tensors())
            pool.give(arrays)
            return batch
        finally:
            self.deliver(begun)
