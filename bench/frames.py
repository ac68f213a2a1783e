"""What is stored: real frames of three sources, played once at random and kept in bench/.cache; vectors; and noise."""

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
from bench.transitions import Transitions

CACHE = Path(__file__).parent / ".cache"
GAMES = ("pong", "breakout", "ms_pacman", "seaquest", "space_invaders", "beam_rider")
N_ENVS = 8
COLUMNS = {"obs": db.Column((84, 84), "uint8"), "action": db.Column((), "int64")}

Frames = npt.NDArray[np.uint8]
Played = tuple[npt.NDArray[np.int64], Frames, npt.NDArray[np.int32], npt.NDArray[np.bool_], npt.NDArray[np.bool_]]


def _play(game: str, steps: int) -> Iterator[Played]:
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
    path = CACHE / f"frames-{n}.npy"
    if not path.exists():
        CACHE.mkdir(exist_ok=True)
        each = -(-n // (len(GAMES) * N_ENVS))
        parts = []
        for game in tqdm(GAMES, desc=f"{n:,} real frames", leave=False, disable=None):
            played = np.stack([frame for _, frame, *_ in _play(game, each - 1)], axis=1)
            parts.append(played.reshape(-1, 84, 84))
        np.save(path, np.concatenate(parts)[:n])
    loaded: Frames = np.load(path)
    return loaded


def million(steps: int = 1_000_000) -> Path:
    """Return the path of a store of a million real steps, added one by one as training would; a few minutes."""
    path = CACHE / f"store-{steps}"
    if not path.exists():
        building = CACHE / f"store-{steps}.building"
        shutil.rmtree(building, ignore_errors=True)
        each = -(-steps * 101 // (100 * len(GAMES) * N_ENVS))  # a hundredth more, for the resets
        with (
            db.ReplayBuffer(building, steps, columns=COLUMNS, n_envs=N_ENVS, frame_stack=4, autoreset="next_step") as buffer,
            tqdm(total=each * len(GAMES), desc=f"{steps:,} real steps", leave=False, disable=None) as bar,
        ):
            for game in GAMES:
                last = None
                for action, frame, reward, terminated, truncated in _play(game, each):
                    if last is not None:
                        buffer.add(last, action, reward, frame, terminated, truncated)
                        bar.update()
                    last = frame.copy()
            buffer.flush(recompress=True)
        building.rename(path)
    return path


EPISODE = 500  # frames of an episode, one more than it has steps


def fill(buffer: db.ReplayBuffer, pixels: Frames, least: int) -> None:
    """Add episodes of 500 of the frames, until there are so many steps; seal them."""
    action, reward = np.arange(EPISODE - 1) % 6, np.ones(EPISODE - 1, np.float32)
    terminated, first = np.arange(EPISODE - 1) == EPISODE - 2, 0
    while len(buffer) < least:
        obs, first = pixels[first : first + EPISODE], (first + EPISODE) % (len(pixels) // EPISODE * EPISODE)
        buffer.extend(obs=obs, action=action, reward=reward, terminated=terminated)
    buffer.flush(recompress=True)


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
    """Return frames of random bytes, (n, 96, 96, 3), which nothing compresses."""
    return np.random.default_rng(seed).integers(0, 256, (n, 96, 96, 3), np.uint8)


def _no_box2d() -> str:
    return "" if find_spec("Box2D") or list(CACHE.glob("racing-*.npy")) else "box2d is not installed"


KINDS = {
    "ale": Kind("Atari, 84x84, stacks of 4", lambda n, _: frames(n), 12_000, 4),
    "racing": Kind("CarRacing, 96x96x3, stacks of 3", racing, 4_000, 3, _no_box2d),
    "mujoco": Kind("MuJoCo, 84x84x3, stacks of 3", mujoco, 4_000, 3, _no_mujoco),
    "vectors of 4": Kind("vectors of 4 floats", _vectors(4), 100_000),
    "vectors of 376": Kind("vectors of 376 floats", _vectors(376), 100_000),
    "noise": Kind("noise, 96x96x3", noise, 4_000),
}
