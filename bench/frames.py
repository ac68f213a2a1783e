"""What is stored: real frames of several sources, made once and kept in bench/.cache; vectors; and noise."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from tqdm import tqdm

import diskbuffer as db
from bench.transitions import Array, Transitions

CACHE = Path(__file__).parent / ".cache"
GAMES = ("pong", "breakout", "ms_pacman", "seaquest", "space_invaders", "beam_rider")
N_ENVS = 8
EPISODE = 500  # frames of an episode, one more than it has steps
COLUMNS = {"obs": db.Column((84, 84), "uint8"), "action": db.Column((), "int64")}

Frames = npt.NDArray[np.uint8]


def _kept(name: str, make: Callable[[], Array]) -> Array:
    """Return an array that is made once, and kept in bench/.cache."""
    path = CACHE / f"{name}.npy"
    if not path.exists():
        CACHE.mkdir(exist_ok=True)
        np.save(path, make())
    return np.asarray(np.load(path))


def _play(game: str, steps: int) -> Iterator[tuple[Array, ...]]:
    """Yield (action, frames, reward, terminated, truncated) of `N_ENVS` environments, the reset first, with action 0."""
    from ale_py.vector_env import AtariVectorEnv

    env = AtariVectorEnv(game, num_envs=N_ENVS, stack_num=1)
    rng, none = np.random.default_rng(0), np.zeros(N_ENVS, np.bool_)
    obs, _ = env.reset(seed=0)
    yield np.zeros(N_ENVS, np.int64), obs[:, 0], np.zeros(N_ENVS, np.int32), none, none
    n_actions = int(env.single_action_space.n)  # type: ignore[attr-defined]
    for _ in range(steps):
        action = rng.integers(0, n_actions, N_ENVS)
        obs, reward, terminated, truncated, _ = env.step(action)
        yield action, obs[:, 0], reward, terminated, truncated
    env.close()


def frames(n: int) -> Frames:
    """Return (n, 84, 84) consecutive frames, environment after environment, game after game."""

    def played() -> Frames:
        each, parts = -(-n // (len(GAMES) * N_ENVS)), []
        for game in tqdm(GAMES, desc=f"{n:,} real frames", leave=False, disable=None):
            of_each = np.stack([frame for _, frame, *_ in _play(game, each - 1)], axis=1)
            parts.append(of_each.reshape(-1, 84, 84))
        return np.concatenate(parts)[:n]

    return _kept(f"frames-{n}", played)


def million(steps: int = 1_000_000) -> Path:
    """Return the path of a store of a million real steps, added one by one as training would; a few minutes."""
    path = CACHE / f"store-{steps}"
    if not path.exists():
        building = CACHE / f"store-{steps}.building"
        shutil.rmtree(building, ignore_errors=True)
        each = -(-steps * 101 // (100 * len(GAMES) * N_ENVS))  # a hundredth more, for the resets
        with db.ReplayBuffer(building, steps, columns=COLUMNS, n_envs=N_ENVS, frame_stack=4, autoreset="next_step") as buffer:
            for game in tqdm(GAMES, desc=f"{steps:,} real steps", leave=False, disable=None):
                played = _play(game, each)
                last = next(played)[1].copy()
                for action, frame, reward, terminated, truncated in played:
                    buffer.add(last, action, reward, frame, terminated, truncated)
                    last = frame.copy()
            buffer.flush(recompress=True)
        building.rename(path)
    return path


def fill(buffer: db.ReplayBuffer, pixels: Frames, least: int) -> None:
    """Add episodes of 500 of the frames, until there are so many steps; seal them."""
    action, reward = np.arange(EPISODE - 1) % 6, np.ones(EPISODE - 1, np.float32)
    terminated, first = np.arange(EPISODE - 1) == EPISODE - 2, 0
    while len(buffer) < least:
        obs, first = pixels[first : first + EPISODE], (first + EPISODE) % (len(pixels) // EPISODE * EPISODE)
        buffer.extend(obs=obs, action=action, reward=reward, terminated=terminated)
    buffer.flush(recompress=True)


def _driven(name: str, n: int, low: Any, high: Any, **options: Any) -> Array:
    """Return pictures of a gymnasium environment whose actions are drawn between two; each is taken four times."""
    import gymnasium

    env, rng, found = gymnasium.make(name, **options), np.random.default_rng(0), list[Any]()
    obs, _ = env.reset(seed=0)
    for k in range(n):
        found.append(obs if env.render_mode is None else env.render())
        if k % 4 == 0:
            action = rng.uniform(low, high).astype(np.float32)
        obs, _, terminated, truncated, _ = env.step(action)
        if terminated or truncated:
            obs, _ = env.reset()
    env.close()
    return np.stack(found)


def _racing(n: int, seed: int) -> Array:
    return _kept(f"racing-{n}", lambda: _driven("CarRacing-v3", n, [-0.6, 0.2, 0.0], [0.6, 0.8, 0.1]))


def _mujoco(n: int, seed: int) -> Array:
    os.environ.setdefault("MUJOCO_GL", "osmesa")  # by the CPU: most machines that measure have no display
    options: dict[str, Any] = {"render_mode": "rgb_array", "width": 84, "height": 84}
    return _kept(f"mujoco-{n}", lambda: _driven("HalfCheetah-v5", n, [-1.0] * 6, [1.0] * 6, **options))


def _camera(size: int) -> Callable[[int, int], Array]:
    """Return what makes pictures of a camera that pans and zooms over scikit-learn's two photographs."""

    def make(n: int, seed: int) -> Array:
        from PIL import Image
        from sklearn.datasets import load_sample_images

        photographs, found = [Image.fromarray(one) for one in load_sample_images().images], []
        for k in range(n):
            photograph = photographs[k * len(photographs) // n]
            side = int(300 + 100 * np.sin(k / 60))
            x, y = ((np.sin([k / 97, k / 53]) + 1) / 2 * (np.array(photograph.size) - side)).tolist()
            found.append(np.asarray(photograph.resize((size, size), Image.Resampling.BICUBIC, (x, y, x + side, y + side))))
        return np.stack(found)

    return make


def _vectors(size: int) -> Callable[[int, int], Array]:
    return lambda n, seed: np.random.default_rng(seed).normal(size=(n, size)).astype(np.float32)


def _noise(n: int, seed: int) -> Array:
    return np.random.default_rng(seed).integers(0, 256, (n, 96, 96, 3), np.uint8)


@dataclass(frozen=True)
class Kind:
    """One kind of observation: single frames, made of a number and a seed, and how many of them are stacked."""

    title: str
    make: Callable[[int, int], Array]
    steps: int
    stack: int = 1
    module: str = "numpy"  # that makes it

    def missing(self) -> str:
        """Return why it cannot be made here; nothing, if it can."""
        if find_spec(self.module) is None:
            return f"{self.module} is not installed"
        software = self.module == "mujoco" and os.environ.get("MUJOCO_GL", "osmesa") == "osmesa"
        there = not software or any(Path("/usr/lib").glob("**/libOSMesa.so*"))
        return "" if there else "libOSMesa is not installed: Debian's libosmesa6"

    def transitions(self, directory: Path, seed: int, steps: int | None = None) -> Transitions:
        """Make the frames, and write them to a file of the directory."""
        return Transitions.save(self.make((steps or self.steps) + 1, seed), directory / "frames.npy", self.stack)


KINDS = {
    "ale": Kind("Atari, 84x84, stacks of 4", lambda n, _: frames(n), 12_000, 4),
    "racing": Kind("CarRacing, 96x96x3, stacks of 3", _racing, 4_000, 3, "Box2D"),
    "mujoco": Kind("MuJoCo, 84x84x3, stacks of 3", _mujoco, 4_000, 3, "mujoco"),
    "vectors of 4": Kind("vectors of 4 floats", _vectors(4), 100_000),
    "vectors of 376": Kind("vectors of 376 floats", _vectors(376), 100_000),
    "noise": Kind("noise, 96x96x3", _noise, 4_000),
}
CAMERAS = {size: Kind(f"camera, {size}x{size}", _camera(size), 1_500, module="sklearn") for size in (128, 224)}
