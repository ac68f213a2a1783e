"""n-step returns, against an obvious loop over single steps and against Stable-Baselines3's buffer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

import diskbuffer as db
from tests.amounts import examples
from tests.support.experience import Experience, Feeder


def by_hand(buffer: db.ReplayBuffer, step: int, n_step: int, gamma: float) -> dict[str, Any]:
    """Follow the episode from a step on, step by step."""
    total, discount, n = 0.0, 1.0, buffer.n_envs
    first = now = buffer.at([step])
    for k in range(n_step):
        now = buffer.at([step + n * k])
        total += discount * float(now["reward"][0])
        discount *= gamma
        if now["terminated"][0] or now["truncated"][0]:
            break
        try:
            following = buffer.at([step + n * (k + 1)])
        except db.InputError:  # cut off, or the newest
            break
        if not (following["obs"][0] == now["next_obs"][0]).all():
            break
    return {
        "obs": first["obs"][0].numpy(),
        "action": first["action"][0].numpy(),
        "next_obs": now["next_obs"][0].numpy(),
        "terminated": bool(now["terminated"][0]),
        "truncated": bool(now["truncated"][0]),
        "reward": total,
        "discount": 0.0 if now["terminated"][0] else discount,
    }


def check(buffer: db.ReplayBuffer, batch: dict[str, Any], n_step: int, gamma: float) -> None:
    for i, step in enumerate(batch["steps"].tolist()):
        expected = by_hand(buffer, step, n_step, gamma)
        for name in ("obs", "next_obs", "action", "terminated", "truncated"):
            np.testing.assert_array_equal(batch[name][i].numpy(), expected[name], err_msg=f"{name} of step {step}")
        for name in ("reward", "discount"):
            assert float(batch[name][i]) == pytest.approx(expected[name], rel=1e-5, abs=1e-5), f"{name} of step {step}"


@pytest.mark.some(2)
@pytest.mark.parametrize("stack", [1, 4])
@pytest.mark.parametrize(("n_step", "gamma"), [(2, 0.9), (5, 0.99), (5, 1.0), (5, 0.0), (40, 0.9)])
def test_n_step_returns_are_those_of_a_loop(n_step: int, gamma: float, stack: int, tmp_path: Path) -> None:
    world, sampler = Experience(2, 6), db.Uniform(seed=1, n_step=n_step, gamma=gamma)
    with world.open(tmp_path / "store", 100, segment_rows=16, frame_stack=stack) as buffer:
        feed = Feeder(world, buffer)
        feed.add(10)
        buffer.cut_off(0)
        check(buffer, buffer.sample(100, sampler), n_step, gamma)
        with pytest.raises(db.errors.EmptyBufferError), world.open(tmp_path / "empty") as empty:
            empty.sample(2, sampler)


@examples(3, 50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    episodes=st.lists(
        st.tuples(st.integers(1, 9), st.sampled_from(["terminated", "truncated", "cut off"])), min_size=1, max_size=9
    ),
    n_step=st.integers(2, 12),
    stack=st.integers(1, 3),
)
def test_n_step_returns_at_every_kind_of_ending(
    episodes: list[tuple[int, str]], n_step: int, stack: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    columns = {"obs": db.Column((), "int64"), "action": db.Column((), "int64")}
    path = tmp_path_factory.mktemp("n-step") / "store"
    with db.ReplayBuffer(path, columns=columns, frame_stack=stack, segment_rows=8) as buffer:
        frame = 0
        for length, ending in episodes:
            for k in range(length):
                over = k == length - 1
                buffer.add(
                    frame, frame, np.sin(frame), frame + 1, over and ending == "terminated", over and ending == "truncated"
                )
                frame += 1
            frame += 1
        check(buffer, buffer.sample(64, db.Uniform(seed=2, n_step=n_step, gamma=0.9)), n_step, 0.9)


def test_a_loader_brings_n_steps_too_and_they_may_be_kept(tmp_path: Path) -> None:
    world = Experience(2, 6)
    with world.open(tmp_path / "store", frame_stack=2) as buffer:
        Feeder(world, buffer).add(60)
        kept = []
        for batch in buffer.loader(16, db.Uniform(seed=1, n_step=3)):
            kept.append(batch)
            if len(kept) == 20:
                break
        by_hand = db.Uniform(seed=1, n_step=3)
        for batch in kept:
            again = buffer.sample(16, by_hand)
            assert all((batch[name] == again[name]).all() for name in again)


def test_one_step_is_what_uniform_is_without(tmp_path: Path) -> None:
    world = Experience(1, 6)
    with world.open(tmp_path / "store") as buffer:
        Feeder(world, buffer).add(30)
        a, b = buffer.sample(16, db.Uniform(1)), buffer.sample(16, db.Uniform(1, n_step=1))
        assert a.keys() == b.keys()
        assert all((a[name] == b[name]).all() for name in a)


@pytest.mark.parametrize("wrong", [{"n_step": 0}, {"n_step": 1.5}, {"gamma": 1.1}, {"gamma": float("nan")}, {"gamma": "0.9"}])
def test_what_is_no_n_step_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(db.InputError, match=next(iter(wrong))):
        db.Uniform(**wrong)


def test_stable_baselines3_agrees(tmp_path: Path) -> None:
    sb3 = pytest.importorskip("stable_baselines3.common.buffers")
    from gymnasium import spaces

    rng, n, gamma = np.random.default_rng(0), 300, 0.97
    theirs = sb3.NStepReplayBuffer(
        n, spaces.Box(-1e9, 1e9, (1,), np.float32), spaces.Discrete(5), device="cpu", n_steps=4, gamma=gamma
    )
    columns = {"obs": db.Column((1,), "float32"), "action": db.Column((), "int64")}
    with db.ReplayBuffer(tmp_path / "store", columns=columns) as ours:
        frame, steps = 0, []
        for _ in range(n):
            obs, following = np.array([frame], np.float32), np.array([frame + 1], np.float32)
            action, reward, chance = int(rng.integers(5)), float(rng.normal()), rng.random()
            terminated, truncated = chance < 0.1, 0.1 <= chance < 0.2
            ours.add(obs, action, reward, following, terminated, truncated)
            theirs.add(
                obs[None], following[None], np.array([[action]]), np.array([reward]), np.array([terminated or truncated]),
                [{"TimeLimit.truncated": truncated}],
            )  # fmt: skip
            steps.append(frame)
            frame += 2 if terminated or truncated else 1
        every = theirs._get_samples(np.arange(n))
        batch = ours.sample(2000, db.Uniform(seed=0, n_step=4, gamma=gamma))
        at = np.searchsorted(steps, batch["obs"].numpy()[:, 0])
        np.testing.assert_allclose(batch["reward"], every.rewards.numpy()[at, 0], rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(batch["next_obs"], every.next_observations.numpy()[at])
        np.testing.assert_array_equal(batch["terminated"], every.dones.numpy()[at, 0] != 0)
        np.testing.assert_allclose(
            batch["discount"], (every.discounts.numpy() * (1 - every.dones.numpy()))[at, 0], rtol=1e-5, atol=1e-6
        )
