"""Real frames for the benchmarks: six Atari games, played at random, 84x84 greyscale. Made once, kept in bench/.cache."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
from tqdm import tqdm

import diskbuffer as db

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
