"""Replay buffers that Stable-Baselines3 filled and saved."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st
from stable_baselines3.common.buffers import DictReplayBuffer, ReplayBuffer, RolloutBuffer
from stable_baselines3.common.envs import BitFlippingEnv
from stable_baselines3.common.save_util import save_to_pkl
from stable_baselines3.common.vec_env import DummyVecEnv
from stable_baselines3.her import HerReplayBuffer

import diskbuffer as db
from diskbuffer.formats import import_
from tests.amounts import examples
from tests.formats import episodes as made
from tests.formats import interrupted

PICTURE, VECTOR = spaces.Box(0, 255, (3, 8, 8), np.uint8), spaces.Box(-9, 9, (4,), np.float32)
OBSERVATIONS = [
    VECTOR,
    PICTURE,
    spaces.Discrete(9),
    spaces.Dict({"camera": PICTURE, "state": VECTOR, "number": spaces.Discrete(9)}),
]
ACTIONS = [spaces.Discrete(4), spaces.Box(-1, 1, (2, 3), np.float32), spaces.MultiDiscrete([3, 4]), spaces.MultiBinary(5)]


def fill(buffer: Any, steps: int, random: np.random.Generator, resets: bool) -> list[list[dict[str, Any]]]:
    """Fill a buffer, and return the steps of each environment."""
    space, n_envs = buffer.observation_space, buffer.n_envs
    space.seed(int(random.integers(1000)))
    buffer.action_space.seed(int(random.integers(1000)))

    def observed() -> Any:
        of = [space.sample() for _ in range(n_envs)]
        return {k: np.stack([o[k] for o in of]) for k in space.spaces} if isinstance(space, spaces.Dict) else np.stack(of)

    told: list[list[dict[str, Any]]] = [[] for _ in range(n_envs)]
    now = observed()
    for _ in range(steps):
        following, actions = observed(), np.stack([buffer.action_space.sample() for _ in range(n_envs)])
        reward = random.normal(size=n_envs).astype(np.float32)
        done = random.random(n_envs) < 0.15
        timeout = done & (random.random(n_envs) < 0.5)
        buffer.add(_copy(now), _copy(following), actions, reward, done, [{"TimeLimit.truncated": bool(t)} for t in timeout])
        fresh = done | (resets & (random.random(n_envs) < 0.1))
        for env in range(n_envs):
            step = {"obs": _of(now, env), "next": _of(following, env), "action": actions[env], "reward": reward[env]}
            told[env].append({**step, "done": done[env], "timeout": timeout[env], "cut": bool(fresh[env])})
        new = observed()
        now = _copy(following)
        for which in np.flatnonzero(fresh).tolist():
            for into, values in zip(_arrays(now), _arrays(new), strict=True):
                into[which] = values[which]
    return told


def _arrays(obs: Any) -> list[Any]:
    return list(obs.values()) if isinstance(obs, dict) else [obs]


def _copy(obs: Any) -> Any:
    return {k: v.copy() for k, v in obs.items()} if isinstance(obs, dict) else obs.copy()


def _of(obs: Any, env: int) -> Any:
    return {k: v[env].copy() for k, v in obs.items()} if isinstance(obs, dict) else obs[env].copy()


def _column(observations: list[Any], name: str) -> Any:
    return np.stack([o[name.removeprefix("obs/")] if isinstance(o, dict) else o for o in observations])


def assert_held(path: Path, told: list[list[dict[str, Any]]], kept: int, final: bool, timeouts: bool, exact: bool) -> None:
    """Assert that a store has the newest `kept` steps of each environment."""
    found = made.read(path)
    for env, all_steps in enumerate(told):
        steps, at = all_steps[-kept:], 0
        for one in (one for one in found if one["stream"] == env):
            mine = steps[at : at + one["steps"]]
            at += one["steps"]
            assert all(not step["cut"] for step in mine[:-1])
            for name in (name for name in one if name.startswith("obs")):
                rows = one[name]
                np.testing.assert_array_equal(rows[:-1], _column([step["obs"] for step in mine], name))
                if final or (at == len(steps)):
                    np.testing.assert_array_equal(rows[-1], _column([mine[-1]["next"]], name)[0])
            np.testing.assert_array_equal(one["action"], np.stack([step["action"] for step in mine]))
            np.testing.assert_array_equal(one["reward"], np.stack([step["reward"] for step in mine]))
            timeout = np.array([step["timeout"] and timeouts for step in mine])
            done = np.array([step["done"] for step in mine])
            np.testing.assert_array_equal(one["terminated"], done & ~timeout)
            np.testing.assert_array_equal(one["truncated"], done & timeout)
            assert mine[-1]["cut"] or at == len(steps) or not exact
        assert at == len(steps)


@given(
    seed=st.integers(0, 10**6),
    obs=st.sampled_from(range(4)),
    action=st.sampled_from(range(4)),
    n_envs=st.integers(1, 3),
    size=st.integers(2, 40),
    steps=st.integers(1, 90),
    compact=st.booleans(),
)
@examples(4, 40)
def test_every_step_of_a_ring_is_stored(
    tmp_path_factory: pytest.TempPathFactory, seed: int, obs: int, action: int, n_envs: int, size: int, steps: int, compact: bool
) -> None:
    path = tmp_path_factory.mktemp("sb3")
    random = np.random.default_rng(seed)
    space, compact = OBSERVATIONS[obs], compact and obs != 3
    kind = DictReplayBuffer if obs == 3 else ReplayBuffer
    of: Any = {"n_envs": n_envs, "optimize_memory_usage": compact, "handle_timeout_termination": not compact}
    buffer = kind(size * n_envs, space, ACTIONS[action], **of)  # type: ignore[arg-type]
    told = fill(buffer, steps, random, resets=not compact and obs != 2)
    save_to_pkl(path / "buffer", buffer)
    full = steps >= size
    kept = size - compact if full else steps
    if not kept:
        return
    import_("sb3", path / "buffer.pkl", path / "store", trust=True, progress=False)
    assert_held(path / "store", told, kept, not compact, not compact, obs != 2)
    with db.ReplayBuffer(path / "store", mode="r") as stored:
        assert stored.n_envs == n_envs
        assert stored.columns["action"].shape == ACTIONS[action].shape


def test_a_buffer_of_her(tmp_path: Path) -> None:
    env = DummyVecEnv([lambda: BitFlippingEnv(n_bits=4, max_steps=5, continuous=False)])
    buffer = HerReplayBuffer(100, env.observation_space, env.action_space, env)  # type: ignore[arg-type]
    now, wanted = env.reset(), []
    for _ in range(33):
        action = np.array([env.action_space.sample()])
        following, reward, done, infos = env.step(action)
        led_to = {k: v.copy() for k, v in following.items()}  # type: ignore[union-attr]
        if done[0]:
            led_to = {k: np.asarray(v)[None] for k, v in infos[0]["terminal_observation"].items()}
        buffer.add({k: v.copy() for k, v in now.items()}, led_to, action, reward, done, infos)  # type: ignore[union-attr]
        wanted.append((led_to["achieved_goal"][0], reward[0], done[0]))
        now = following
    save_to_pkl(tmp_path / "buffer", buffer)
    import_("sb3", tmp_path / "buffer.pkl", tmp_path / "store", trust=True, progress=False)
    found = made.read(tmp_path / "store")
    assert {name for name in found[0] if name.startswith("obs")} == {
        f"obs/{k}" for k in ("observation", "achieved_goal", "desired_goal")
    }
    goals = np.concatenate([one["obs/achieved_goal"][1:] for one in found])
    np.testing.assert_array_equal(goals, np.stack([goal for goal, _, _ in wanted]))
    np.testing.assert_array_equal(np.concatenate([one["reward"] for one in found]), [reward for _, reward, _ in wanted])
    ends = np.concatenate([one["terminated"] | one["truncated"] for one in found])
    np.testing.assert_array_equal(ends, [done for _, _, done in wanted])


def test_a_pickle_is_read_only_when_it_is_trusted(tmp_path: Path) -> None:
    save_to_pkl(tmp_path / "buffer", ReplayBuffer(5, VECTOR, ACTIONS[0]))
    with pytest.raises(db.InputError, match="trust"):
        import_("sb3", tmp_path / "buffer.pkl", tmp_path / "store", progress=False)
    with pytest.raises(db.errors.SourceError, match="no steps"):
        import_("sb3", tmp_path / "buffer.pkl", tmp_path / "store", trust=True, progress=False)


def test_what_is_no_replay_buffer_is_an_error(tmp_path: Path) -> None:
    good = ReplayBuffer(5, VECTOR, ACTIONS[0])
    fill(good, 3, np.random.default_rng(0), False)
    bad = ReplayBuffer(5, VECTOR, ACTIONS[0])
    fill(bad, 3, np.random.default_rng(0), False)
    bad.actions = bad.actions[:4]
    far = ReplayBuffer(5, VECTOR, ACTIONS[0])
    far.pos = 7
    contents = {
        "nothing": b"",
        "cut": pickle.dumps(good)[:-40],
        "a list": pickle.dumps([1]),
        "rollouts": pickle.dumps(RolloutBuffer(5, VECTOR, ACTIONS[0])),
        "wrong shapes": pickle.dumps(bad),
        "a position beyond": pickle.dumps(far),
    }
    for name, data in contents.items():
        (tmp_path / name).write_bytes(data)
        with pytest.raises(db.errors.SourceError):
            import_("sb3", tmp_path / name, tmp_path / "store", trust=True, progress=False)
    with pytest.raises(db.errors.SourceError, match="no file"):
        import_("sb3", tmp_path / "missing", tmp_path / "store", trust=True, progress=False)


@pytest.mark.nightly
def test_an_import_that_is_killed_goes_on(tmp_path: Path, any_seed: int) -> None:
    buffer = ReplayBuffer(200, OBSERVATIONS[0], ACTIONS[0], n_envs=2)  # type: ignore[arg-type]
    told = fill(buffer, 130, np.random.default_rng(0), resets=False)
    save_to_pkl(tmp_path / "buffer", buffer)
    for _ in interrupted.killed_and_finished("import", "sb3", tmp_path / "buffer.pkl", tmp_path / "store", any_seed, trust=True):
        assert_held(tmp_path / "store", told, 100, final=True, timeouts=True, exact=True)
