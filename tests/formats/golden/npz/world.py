"""A world whose every value follows from the environment, the episode and the step: what the golden files should hold."""

from __future__ import annotations

import numpy as np


def length(env: int, episode: int) -> int:
    """Return how many steps an episode has."""
    return 3 + (5 * env + 7 * episode) % 9


def terminates(episode: int) -> bool:
    """Tell whether an episode ends by termination; otherwise it is truncated."""
    return episode % 2 == 0


def image(env: int, episode: int, step: int) -> np.ndarray:
    """Return the picture before a step."""
    return (np.arange(6 * 6 * 3).reshape(6, 6, 3) + 31 * env + 7 * episode + step).astype(np.uint8)


def vector(env: int, episode: int, step: int) -> np.ndarray:
    """Return the vector before a step."""
    return np.array([env, episode, step], np.float32)


def action(vector: np.ndarray) -> np.ndarray:
    """Return the action that is taken at an observation."""
    return np.array([vector[2] + 1, vector[1] + 0.5], np.float32)


def reward(step: int) -> np.float32:
    """Return the reward of a step."""
    return np.float32(step * 0.5 + 1)
