"""Every step with the same probability (Mnih et al., 2015, "Human-level control through deep reinforcement learning")."""

from __future__ import annotations

import numpy as np

from diskbuffer.errors import InputError
from diskbuffer.form import Draw, Form
from diskbuffer.index import Index
from diskbuffer.samplers.sampler import Sampler, at_least_one, count_steps


class Uniform(Sampler):
    """Draw transitions uniformly, with replacement. A step costs one binary search over the episodes' starts.

    With `n_step` above one, ``reward`` is the sum of the next n rewards, discounted by `gamma` (Sutton, 1988, "Learning to
    predict by the methods of temporal differences"; for replay: Hessel et al., 2018, "Rainbow"), ``next_obs`` the observation n
    steps on, ``terminated`` and ``truncated`` those of the last step, and ``discount``, float32, what to multiply the value of
    ``next_obs`` with: gamma to the number of steps, or zero where the episode terminated. Where the episode ends before, or has
    not come further, there are fewer steps in the sum.

    Parameters
    ----------
    seed : int, optional
        For reproducible draws; from the operating system where it is missing.
    n_step : int
    gamma : float
        From 0 to 1.

    Examples
    --------
    >>> import diskbuffer as db, numpy as np, tempfile
    >>> columns = {"obs": db.Column((), "int64"), "action": db.Column((), "int64")}
    >>> with db.ReplayBuffer(tempfile.mkdtemp() + "/store", columns=columns) as buffer:
    ...     _ = buffer.extend(obs=np.arange(101), action=np.zeros(100, int), reward=np.ones(100))
    ...     batch = buffer.sample(32, db.Uniform(n_step=3, gamma=0.5))
    >>> float(batch["reward"].max()), float(batch["discount"].min())
    (1.75, 0.125)
    """

    def __init__(self, seed: int | None = None, *, n_step: int = 1, gamma: float = 0.99) -> None:
        super().__init__(seed)
        if not isinstance(gamma, int | float | np.floating) or not 0 <= gamma <= 1:
            raise InputError(f"gamma must be a number from 0 to 1, found {gamma!r}")
        n_step = at_least_one("n_step", n_step)
        self.form = Form(n_step=n_step, gamma=float(gamma)) if n_step > 1 else Form()

    def draw(self, index: Index, size: int, rng: np.random.Generator) -> Draw:
        """Draw `size` steps among all that are there."""
        return Draw(*index.locate(rng.integers(0, count_steps(index), size)))
