"""Rollouts: adding one and clearing it, against a copy of the same into numpy's arrays in RAM.

    python -m bench.rollouts --json FILE

Of 8 environments with 2,048 steps each, 64 with 128 and 256 with 24: 48 floats of observation and 12 of action. Steps come one
by one from all environments, or as a block; then all are cleared. The store has a capacity of one rollout, and has seen enough of
them that a file is made now and then, as it would be in a long run.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

import diskbuffer as db
from bench.measure import Part, Report, in_turn, parser, ratio, run

SHAPES = ((8, 2048), (64, 128), (256, 24))
OBS, ACTION = 48, 12
Rollout = tuple[np.ndarray, ...]


def rollout_of(seed: int, steps: int, environments: int) -> Rollout:
    """Return a rollout: obs, action, reward, next_obs, terminated and truncated, each (steps, environments, ...)."""
    rng = np.random.default_rng(seed)
    shape = (steps, environments)
    obs = rng.normal(size=(steps + 1, environments, OBS)).astype(np.float32)
    action, reward = rng.normal(size=(*shape, ACTION)).astype(np.float32), rng.normal(size=shape).astype(np.float32)
    return obs[:-1], action, reward, obs[1:], np.zeros(shape, np.bool_), np.zeros(shape, np.bool_)


class InRam:
    """Arrays of a rollout, for as many copies of each."""

    def __init__(self, like: Rollout) -> None:
        self._arrays = [np.empty_like(array) for array in like]

    def add(self, rollout: Rollout) -> None:
        """Copy it, a step at a time."""
        for t in range(len(rollout[0])):
            for array, values in zip(self._arrays, rollout, strict=True):
                array[t] = values[t]

    def extend(self, rollout: Rollout) -> None:
        """Copy it as a block."""
        for array, values in zip(self._arrays, rollout, strict=True):
            array[:] = values


class OnDisk:
    """A buffer of the capacity of a rollout."""

    def __init__(self, path: Path, steps: int, environments: int) -> None:
        obs, action = (gym.spaces.Box(-1e9, 1e9, (n,), np.float32) for n in (OBS, ACTION))
        how: dict[str, Any] = {"observation_space": obs, "action_space": action, "n_envs": environments, "autoreset": "disabled"}
        self.buffer = db.ReplayBuffer(path, steps * environments, **how)

    def add(self, rollout: Rollout) -> None:
        """Add it, a step of all environments at a time, and clear it."""
        for step in zip(*rollout, strict=True):
            self.buffer.add(*step)
        self.buffer.clear()

    def extend(self, rollout: Rollout) -> None:
        """Add it as a block, and clear it."""
        self.buffer.extend(*rollout)
        self.buffer.clear()


def vectors(report: Report, directory: Path) -> None:
    """Compare the speed of whole rollouts."""
    for environments, steps in SHAPES:
        given = rollout_of(report.seed, steps, environments)
        ours, ram = OnDisk(directory / f"{environments}", steps, environments), InRam(given)
        for way, target in (("add", 0.15), ("extend", 0.3)):
            competitors: dict[str, Callable[[Any], Any]] = {"ours": getattr(ours, way), "RAM": getattr(ram, way)}
            rounds = 10 if report.quick else 50
            in_turn(max(2, rounds // 5), competitors, lambda given=given: given)  # type: ignore[misc]
            seconds = in_turn(rounds, competitors, lambda given=given: given)  # type: ignore[misc]
            for name, times in seconds.items():
                report.times(f"{way} of {environments} x {steps}, {name}", times)
            what = f"{way} of {environments} x {steps} and clear, speed of a copy in RAM"
            report.row(what, ratio(seconds["RAM"], seconds["ours"]), "x", at_least=target)
            mean = np.sum(seconds["RAM"]) / np.sum(seconds["ours"])
            report.row(f"{what}, over all rounds", float(mean), "x", at_least=target)
        ours.buffer.close()


PARTS: dict[str, Part] = {part.__name__: part for part in (vectors,)}

if __name__ == "__main__":
    run("rollouts", PARTS, parser(__doc__))
