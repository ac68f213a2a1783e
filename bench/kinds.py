"""The kinds of observations that are measured: real frames of three sources, vectors, and noise, which nothing compresses."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bench.frames import CACHE, frames
from bench.transitions import Transitions

Make = Callable[[int, int], npt.NDArray[Any]]  # of so many frames, with a seed


@dataclass(frozen=True)
class Kind:
    """One kind of observation: single frames, and how many of them are stacked."""

    title: str
    make: Make
    steps: int
    stack: int = 1
    missing: Callable[[], str] = lambda: ""  # why it cannot be made here; nothing, if it can

    def transitions(self, directory: Path, seed: int, steps: int | None = None) -> Transitions:
        """Make the frames, and write them to a file of the directory."""
        return Transitions.save(self.make((steps or self.steps) + 1, seed), directory / "frames.npy", self.stack)


def _played(name: str, environment: Callable[[], Any], act: Callable[[np.random.Generator], Any], n: int) -> npt.NDArray[Any]:
    """Return frames of a gymnasium environment; made once, kept in bench/.cache. An action is taken four times."""
    path = CACHE / f"{name}-{n}.npy"
    if not path.exists():
        CACHE.mkdir(exist_ok=True)
        env, rng = environment(), np.random.default_rng(0)
        found = _frames_of(env, act, rng)
        np.save(path, np.stack([next(found) for _ in range(n)]))
        found.close()  # type: ignore[attr-defined]
        env.close()
    return np.asarray(np.load(path))


def _frames_of(env: Any, act: Callable[[np.random.Generator], Any], rng: np.random.Generator) -> Iterator[npt.NDArray[Any]]:
    def picture(obs: Any) -> Any:
        return obs if env.render_mode is None else env.render()

    obs, over = env.reset(seed=0)[0], False
    yield picture(obs)
    while True:
        action = act(rng)
        for _ in range(4):
            obs, _, terminated, truncated, _ = env.step(action)
            over |= terminated or truncated
            yield picture(obs)
        if over:
            obs, over = env.reset()[0], False
            yield picture(obs)


def racing(n: int, seed: int) -> npt.NDArray[Any]:
    """Return frames of CarRacing, (n, 96, 96, 3), driven at random."""

    def environment() -> Any:
        import gymnasium

        return gymnasium.make("CarRacing-v3")

    def act(rng: np.random.Generator) -> Any:
        return rng.uniform([-0.6, 0.2, 0.0], [0.6, 0.8, 0.1]).astype(np.float32)

    return _played("racing", environment, act, n)


def mujoco(n: int, seed: int) -> npt.NDArray[Any]:
    """Return pictures of MuJoCo's half cheetah, (n, 84, 84, 3), moved at random."""
    os.environ.setdefault("MUJOCO_GL", "osmesa")  # by the CPU: most machines that measure have no display

    def environment() -> Any:
        import gymnasium

        return gymnasium.make("HalfCheetah-v5", render_mode="rgb_array", width=84, height=84)

    return _played("mujoco", environment, lambda rng: rng.uniform(-1, 1, 6), n)


def _no_mujoco() -> str:
    if list(CACHE.glob("mujoco-*.npy")):
        return ""
    if find_spec("mujoco") is None:
        return "mujoco is not installed"
    if os.environ.get("MUJOCO_GL", "osmesa") == "osmesa" and not any(Path("/usr/lib").glob("**/libOSMesa.so*")):
        return "libOSMesa is not installed: Debian's libosmesa6"
    return ""


def _vectors(size: int) -> Make:
    return lambda n, seed: np.random.default_rng(seed).normal(size=(n, size)).astype(np.float32)


def noise(n: int, seed: int) -> npt.NDArray[Any]:
    """Return frames of random bytes, (n, 96, 96, 3)."""
    return np.random.default_rng(seed).integers(0, 256, (n, 96, 96, 3), np.uint8)


KINDS = {
    "ale": Kind("Atari, 84x84, stacks of 4", lambda n, _: frames(n), 12_000, 4),
    "racing": Kind("CarRacing, 96x96x3, stacks of 3", racing, 4_000, 3),
    "mujoco": Kind("MuJoCo, 84x84x3, stacks of 3", mujoco, 4_000, 3, _no_mujoco),
    "vectors of 4": Kind("vectors of 4 floats", _vectors(4), 100_000),
    "vectors of 376": Kind("vectors of 376 floats", _vectors(376), 100_000),
    "noise": Kind("noise, 96x96x3", noise, 4_000),
}
