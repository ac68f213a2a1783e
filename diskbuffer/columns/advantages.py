"""Returns and advantages, backwards over the steps of one stream, block by block: an episode may be of any length.

Generalized advantage estimation: Schulman et al., 2016, "High-dimensional continuous control using generalized advantage
estimation". Blocks come from the newest to the oldest; a carry, 0.0 at first, goes from one to the next.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from diskbuffer.native.compiling import compiled

Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.floating[Any]]


def advantages(
    rewards: Floats,
    values: Floats,
    next_values: Floats,
    terminated: Bools,
    ended: Bools,
    gamma: float,
    gae_lambda: float,
    carry: float,
) -> tuple[npt.NDArray[np.float64], float]:
    """Estimate the advantages of consecutive steps, (n,) in ascending order.

    Parameters
    ----------
    rewards, values, next_values : (n,) floats
        `next_values` are those of the observations that the steps led to.
    terminated : (n,) bool
        Whether nothing comes after a step, so that its next value counts as zero.
    ended : (n,) bool
        Whether the episode does not go on after a step, or is not known to.
    gamma, gae_lambda : float
    carry : float
        What this returned for the following block.
    """
    found = np.empty(len(rewards))
    return found, _advantages(rewards, values, next_values, terminated, ended, gamma, gae_lambda, carry, found)


def returns_to_go(
    rewards: Floats, next_values: Floats, terminated: Bools, ended: Bools, gamma: float, carry: float
) -> tuple[npt.NDArray[np.float64], float]:
    """Sum up the discounted rewards to come; after an end that did not terminate comes its next value."""
    found = np.empty(len(rewards))
    return found, _returns(rewards, next_values, terminated, ended, gamma, carry, found)


@compiled
def _advantages(
    rewards: Any,
    values: Any,
    next_values: Any,
    terminated: Any,
    ended: Any,
    gamma: float,
    gae_lambda: float,
    carry: float,
    found: Any,
) -> float:
    for i in range(rewards.shape[0] - 1, -1, -1):
        following = 0.0 if terminated[i] else np.float64(next_values[i])
        error = np.float64(rewards[i]) + gamma * following - np.float64(values[i])
        carry = error + (0.0 if ended[i] else gamma * gae_lambda * carry)
        found[i] = carry
    return carry


@compiled
def _returns(rewards: Any, next_values: Any, terminated: Any, ended: Any, gamma: float, carry: float, found: Any) -> float:
    for i in range(rewards.shape[0] - 1, -1, -1):
        following = carry
        if terminated[i]:
            following = 0.0
        elif ended[i]:
            following = np.float64(next_values[i])
        carry = np.float64(rewards[i]) + gamma * following
        found[i] = carry
    return carry
