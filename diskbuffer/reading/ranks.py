"""Several learners that read the same steps: each batch is drawn for all, by each in the same way, and each takes its own.

So nothing is sent from one to the other. What one takes is every `world_size`-th sample: where they have an order, such as the
newest first, each gets an even share.
"""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from diskbuffer.arguments.integers import integer
from diskbuffer.errors import InputError
from diskbuffer.samplers.draws import Draw
from diskbuffer.samplers.sampler import Sampler


class Ranks(NamedTuple):
    """How many learners there are, and which of them this is.

    Every batch is drawn for all of them, ``world_size * batch_size`` samples, and each reads its own: number `rank`, and every
    `world_size`-th after it; a draw is cheap, and nothing is sent between ranks. So all must draw with the same seed, the
    sampler's or else the buffer's, and see the same steps: those of a store that nobody writes to, or of readers that all call
    `refresh` between the same two batches, while the writer waits. (Otherwise each still draws as the sampler says from what it
    sees, and their shares are of different draws.) The sampler's state is the same in all ranks; a run may be resumed with
    another number of them, if all together have as large a batch.
    """

    rank: int = 0
    world_size: int = 1

    @classmethod
    def of(cls, rank: int | None, world_size: int | None) -> Ranks:
        """Return those that were given, else those of torch.distributed's default process group, else a learner alone."""
        if rank is None and world_size is None:
            distributed: Any = sys.modules.get("torch.distributed")  # who has a process group has imported it
            if distributed is None or not distributed.is_available() or not distributed.is_initialized():
                return ALONE
            return cls(distributed.get_rank(), distributed.get_world_size())
        if rank is None or world_size is None:
            raise InputError(f"rank and world_size are two integers, found {rank!r} and {world_size!r}; give both, or none")
        learners = integer("world_size", world_size)
        return cls(integer("rank", rank, 0, learners - 1), learners)

    def own(self, drawn: Draw) -> Draw:
        """Return this one's share of what was drawn for all."""
        if self.world_size == 1:
            return drawn
        streams, positions, starts, ends = (self.own_of(array) for array in drawn[:4])
        return Draw(streams, positions, starts, ends, {name: self.own_of(note) for name, note in drawn.notes.items()})

    def own_of(self, samples: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return this one's share of an array, along its first axis."""
        return np.ascontiguousarray(samples[self.rank :: self.world_size])

    def share(self, size: int) -> int:
        """Return how many of so many samples are this one's."""
        return len(range(self.rank, size, self.world_size))

    def check(self, sampler: Sampler) -> None:
        """Refuse a sampler that may draw other steps in each of several learners."""
        if self.world_size == 1:
            return
        if not sampler.draws_alike:
            raise InputError(
                f"{type(sampler).__name__} cannot draw for {self.world_size} ranks: each would know its own updates only, and "
                "draw other steps. Give every rank a store of its own, with rank=0, world_size=1; or draw with another sampler"
            )
        if not sampler.seeded:
            raise InputError(
                f"with {self.world_size} ranks all must draw with the same seed, and {type(sampler).__name__} has none; give "
                "one, as in Uniform(seed=0) or ReplayBuffer(seed=0). For a rank that draws for itself: rank=0, world_size=1"
            )


ALONE = Ranks()
