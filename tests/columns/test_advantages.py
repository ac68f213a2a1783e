"""Returns and advantages of blocks of steps: against an obvious loop, other splits, each other, and Stable-Baselines3."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from diskbuffer.native.returns import advantages, returns_to_go
from tests.amounts import examples

Array = np.ndarray[Any, Any]
ENDINGS = ["", "", "", "terminated", "truncated"]
factors = st.sampled_from([0.0, 0.5, 0.95, 1.0])


@st.composite
def streams(draw: st.DrawFn) -> dict[str, Array]:
    """Draw the steps of a stream, as a buffer hands them over: the newest is the last that is known of its episode."""
    endings = np.array(draw(st.lists(st.sampled_from(ENDINGS), min_size=1, max_size=50)))
    rng, n = np.random.default_rng(draw(st.integers(0, 99))), len(endings)
    ended = endings != ""
    ended[-1] = True
    values, final = rng.normal(size=(2, n))
    return {
        "rewards": rng.normal(size=n),
        "values": values,
        "next_values": np.where(ended, final, np.append(values[1:], final[-1:])),
        "terminated": endings == "terminated",
        "ended": ended,
    }


def backwards(steps: dict[str, Array], cuts: list[int], gamma: float, lam: float) -> tuple[Array, Array]:
    """Compute advantages and returns block by block, from the newest on."""
    n = len(steps["ended"])
    bounds = sorted({0, n, *(cut % (n + 1) for cut in cuts)})
    gained, returns, carry, total = [np.empty(0)], [np.empty(0)], 0.0, 0.0
    for first, until in reversed(list(itertools.pairwise(bounds))):
        block = {name: array[first:until] for name, array in steps.items()}
        some, carry = advantages(**block, gamma=gamma, gae_lambda=lam, carry=carry)
        gained.insert(0, some)
        del block["values"]
        some, total = returns_to_go(**block, gamma=gamma, carry=total)
        returns.insert(0, some)
    return np.concatenate(gained), np.concatenate(returns)


def by_hand(steps: dict[str, Array], gamma: float, lam: float) -> tuple[list[float], list[float]]:
    """Sum up each step's own series, to the end of its episode."""
    reward, value, following = (steps[name].astype(float).tolist() for name in ("rewards", "values", "next_values"))
    gained, returns = [], []
    for first in range(len(reward)):
        last = first + int(np.argmax(steps["ended"][first:]))
        after = [0.0 if steps["terminated"][t] else following[t] for t in range(len(reward))]
        errors = [reward[t] + gamma * after[t] - value[t] for t in range(len(reward))]
        gained.append(math.fsum((gamma * lam) ** (t - first) * errors[t] for t in range(first, last + 1)))
        rewards = [gamma ** (t - first) * reward[t] for t in range(first, last + 1)]
        returns.append(math.fsum([*rewards, gamma ** (last + 1 - first) * after[last]]))
    return gained, returns


@examples(50, 1000)
@given(steps=streams(), gamma=factors, lam=factors)
def test_they_are_the_sums_that_define_them(steps: dict[str, Array], gamma: float, lam: float) -> None:
    for found, expected in zip(backwards(steps, [], gamma, lam), by_hand(steps, gamma, lam), strict=True):
        assert found.dtype == np.float64
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


@examples(50, 1000)
@given(steps=streams(), cuts=st.lists(st.integers(0, 50)), gamma=factors, lam=factors)
def test_where_blocks_are_cut_changes_no_bit(steps: dict[str, Array], cuts: list[int], gamma: float, lam: float) -> None:
    for array in steps.values():
        array.flags.writeable = False  # as those of a store that is only read
    for whole, in_blocks in zip(backwards(steps, [], gamma, lam), backwards(steps, cuts, gamma, lam), strict=True):
        assert whole.tobytes() == in_blocks.tobytes()


def test_what_a_terminated_step_led_to_does_not_count() -> None:
    one, yes = np.ones(1), np.ones(1, np.bool_)
    nan = np.array([np.nan])
    assert advantages(one, one, nan, yes, yes, 0.9, 0.9, 5.0)[0].tolist() == [0.0]
    assert returns_to_go(one, nan, yes, yes, 0.9, 5.0)[0].tolist() == [1.0]


def test_a_block_without_steps_hands_the_carry_on() -> None:
    none, no = np.empty(0), np.empty(0, np.bool_)
    assert advantages(none, none, none, no, no, 0.9, 0.9, 2.5)[1] == 2.5
    assert returns_to_go(none, none, no, no, 0.9, 2.5)[1] == 2.5


def test_arrays_of_other_dtypes_and_lengths_are_refused() -> None:
    one, yes = np.ones(1), np.ones(1, np.bool_)
    with pytest.raises(TypeError, match="float32"):
        returns_to_go(one.astype(np.float32), one, yes, yes, 0.9, 0.0)
    with pytest.raises(ValueError, match="one length, found 1 and 2"):
        advantages(one, one, np.ones(2), yes, yes, 0.9, 0.9, 0.0)


def test_an_episode_of_a_million_rewards_is_summed_up_precisely() -> None:
    n = 1_000_000
    rewards, nothing, no = np.full(n, 0.1), np.zeros(n), np.zeros(n, np.bool_)
    total = 0.0
    for first in range(n - 4096, -4096, -4096):
        block = slice(max(first, 0), first + 4096)
        _, total = returns_to_go(rewards[block], nothing[block], no[block], no[block], 1.0, total)
    assert total == pytest.approx(n * 0.1, rel=1e-10)


@pytest.mark.parametrize("n_envs", [1, 4])
@pytest.mark.parametrize("ending", ["terminated", "truncated"])
@pytest.mark.parametrize("lam", [0.0, 0.95, 1.0])
def test_stable_baselines3_agrees(ending: str, n_envs: int, lam: float) -> None:
    buffers = pytest.importorskip("stable_baselines3.common.buffers")
    import torch
    from gymnasium import spaces

    rng, n, gamma = np.random.default_rng(n_envs), 200, 0.97
    rewards, values, final = rng.normal(size=(3, n, n_envs)).astype(np.float32)
    newest = rng.normal(size=n_envs).astype(np.float32)
    ended = rng.random((n, n_envs)) < 0.1
    rollout = buffers.RolloutBuffer(n, spaces.Box(-1, 1, (1,)), spaces.Discrete(2), "cpu", lam, gamma, n_envs)
    started = np.ones(n_envs)
    for t in range(n):
        # At a time limit its algorithms add the value of the last observation to the reward: it knows no truncation.
        given_ = rewards[t] + gamma * final[t] * ended[t] if ending == "truncated" else rewards[t]
        nothing = np.zeros((n_envs, 1))
        rollout.add(nothing, nothing, given_, started, torch.from_numpy(values[t]), torch.zeros(n_envs))
        started = ended[t].astype(float)
    rollout.compute_returns_and_advantage(torch.from_numpy(newest), ended[-1])
    for env in range(n_envs):
        following = np.append(values[1:, env], newest[env])
        steps = {
            "rewards": rewards[:, env].astype(float),
            "values": values[:, env].astype(float),
            "next_values": (np.where(ended[:, env], final[:, env], following) if ending == "truncated" else following).astype(
                float
            ),
            "terminated": ended[:, env] & (ending == "terminated"),
            "ended": np.append(ended[:-1, env], True),
        }
        gained, _ = backwards(steps, [17, 60, 61, 150], gamma, lam)
        np.testing.assert_allclose(gained, rollout.advantages[:, env], rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(gained + steps["values"], rollout.returns[:, env], rtol=1e-5, atol=1e-5)
