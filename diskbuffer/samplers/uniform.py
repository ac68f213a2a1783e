"""Every step with the same probability (Mnih et al., 2015, "Human-level control through deep reinforcement learning")."""

from __future__ import annotations

import numpy as np

from diskbuffer.errors import EmptyBufferError
from diskbuffer.index import Index
from diskbuffer.samplers.sampler import Draw, Sampler


class Uniform(Sampler):
    """Draw transitions uniformly, with replacement. A step costs one binary search over the episodes' starts."""

    def draw(self, index: Index, size: int, rng: np.random.Generator) -> Draw:
        """Draw `size` steps among all that are there."""
        total = len(index)
        if total == 0:
            raise EmptyBufferError("the buffer holds no complete step yet; add some before sampling")
        return Draw(*index.locate(rng.integers(0, total, size)))
