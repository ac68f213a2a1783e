"""Steps whose goals are replaced by ones that were reached (Andrychowicz et al., 2017, "Hindsight experience replay")."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np

from diskbuffer.errors import InputError
from diskbuffer.index.fields import LOW
from diskbuffer.index.index import Index
from diskbuffer.samplers.draws import Draw, Relabelled
from diskbuffer.samplers.sampler import Sampler, count_steps


class Hindsight(Sampler):
    """Draw transitions uniformly, and give a share of them a goal that was reached in their episode.

    Observations are dicts with ``achieved_goal`` and ``desired_goal``, as in Gymnasium-Robotics. In a step that is relabelled,
    ``desired_goal`` of ``obs`` and ``next_obs`` is the ``achieved_goal`` that a step of the episode led to, and ``reward`` what
    the reward function says. ``relabelled``, (batch_size,) bool, tells which those are.

    Parameters
    ----------
    reward : callable
        ``reward(batch)`` returns (batch_size,) numbers; `batch` is a dict of numpy arrays, its goals replaced. For most
        environments: ``env.unwrapped.compute_reward(batch["next_obs"]["achieved_goal"], batch["next_obs"]["desired_goal"], {})``.
        A loader calls it when a batch's turn has come, or in its threads (``transform_threads=``).
    strategy : {"future", "final", "episode"}
        Where the goal was reached: at this step or a later one of the episode, at its last (so far), or at any.
    ratio : float
        Share of steps that are relabelled, from 0 to 1; 0.8 is four for each that is not (k = 4).
    seed : int, optional
        For reproducible draws; from the operating system where it is missing.
    """

    def __init__(
        self,
        reward: Callable[[dict[str, Any]], Any],
        strategy: Literal["future", "final", "episode"] = "future",
        ratio: float = 0.8,
        seed: int | None = None,
    ) -> None:
        super().__init__(seed)
        if not callable(reward):
            raise InputError(f"reward must be a function of a batch, found {reward!r}")
        if strategy not in ("future", "final", "episode"):
            raise InputError(f"strategy must be 'future', 'final' or 'episode', found {strategy!r}")
        if not isinstance(ratio, int | float | np.number) or not 0 <= ratio <= 1:
            raise InputError(f"ratio must be a number from 0 to 1, found {ratio!r}")
        self.form = Relabelled(reward)
        self._strategy, self._ratio = strategy, float(ratio)

    def draw(self, index: Index, size: int, rng: np.random.Generator) -> Draw:
        """Draw `size` steps, and where the goals come from."""
        streams, positions, starts, ends = index.locate(rng.integers(0, count_steps(index), size))
        relabelled = rng.random(size) < self._ratio
        if self._strategy == "final":
            goals = ends.copy()
        else:
            first = positions if self._strategy == "future" else np.maximum(starts, index.table[streams, LOW])
            goals = rng.integers(first, ends) + 1
        return Draw(streams, positions, starts, ends, {"relabelled": relabelled, "_goals": goals})
