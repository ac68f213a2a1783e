"""Our buffers for Stable-Baselines3 against the library's own, drawn at random; `make soak` draws 1,000 of each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

import diskbuffer as db

pytest.importorskip("stable_baselines3")

from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.her import HerReplayBuffer

from diskbuffer.adapters.sb3 import DiskHerReplayBuffer, DiskReplayBuffer, DiskRolloutBuffer
from soak import sb3_buffers

ACTIONS, VECTOR = spaces.Discrete(3), spaces.Box(-np.inf, np.inf, (3,), np.float32)


@pytest.fixture
def opened() -> Iterator[list[Any]]:
    """Buffers to close."""
    found: list[Any] = []
    yield found
    for buffer in found:
        buffer.close()


@pytest.mark.some(1)
@pytest.mark.parametrize("kind", sb3_buffers.KINDS)
def test_random_buffers_give_the_librarys_own_batches(kind: str, amount: Callable[[int, int], int]) -> None:
    for seed in range(amount(8, 20)):
        assert sb3_buffers.run(kind, seed, 2) == "", f"{kind}, seed {seed}"


def fill(buffers: list[Any], space: Any, steps: int, *, stack: int = 1, last: bool = False, n_envs: int = 1) -> None:
    world, rng = sb3_buffers.Worlds(space, n_envs, np.random.default_rng(0), stack, last), np.random.default_rng(1)
    for _ in range(steps):
        obs, after, reward, done, infos = world.step()
        action = rng.integers(0, 3, (n_envs, 1))
        for buffer in buffers:
            buffer.add(obs, after, action, reward, done, infos)


STACKS = {"first": (spaces.Box(0, 255, (4, 12, 11), np.uint8), False), "last": (spaces.Box(0, 255, (12, 11, 4), np.uint8), True)}


@pytest.mark.parametrize("size", [1, 16])
@pytest.mark.parametrize("n_steps", [1, 3])
@pytest.mark.parametrize("axis", STACKS)
def test_batches_of_stacks_may_be_changed_in_place(axis: str, n_steps: int, size: int, tmp_path: Path, opened: list[Any]) -> None:
    space, last = STACKS[axis]
    opened.append(
        DiskReplayBuffer(100, space, ACTIONS, "cpu", path=tmp_path / "store", n_steps=n_steps, gamma=0.9, frame_stack=4)
    )
    fill(opened, space, 60, stack=4, last=last)
    batch = opened[0].sample(size)
    obs, after = batch.observations.clone(), batch.next_observations.clone()
    batch.observations.fill_(7)
    assert (batch.next_observations == after).all()
    batch.next_observations.fill_(9)
    assert (batch.observations == 7).all()
    assert obs.shape == (size, *space.shape)


@pytest.mark.parametrize("axis", STACKS)
def test_batches_can_be_viewed_in_another_shape(axis: str, tmp_path: Path, opened: list[Any]) -> None:
    space, last = STACKS[axis]
    opened.append(DiskReplayBuffer(100, space, ACTIONS, "cpu", path=tmp_path / "replay", frame_stack=4))
    fill(opened, space, 60, stack=4, last=last)
    batch = opened[0].sample(16)
    assert batch.observations.view(16, -1).shape == batch.next_observations.view(16, -1).shape == (16, 4 * 12 * 11)
    rollout = DiskRolloutBuffer(20, space, ACTIONS, "cpu", path=tmp_path / "rollout", frame_stack=4)
    opened.append(rollout)
    world, starts = sb3_buffers.Worlds(space, 1, np.random.default_rng(0), 4, last), np.ones(1)
    for _ in range(20):
        obs, _, reward, done, _ = world.step()
        rollout.add(obs, np.zeros(1), reward, starts, torch.zeros(1), torch.zeros(1))
        starts = done
    assert next(rollout.get(16)).observations.view(16, -1).shape == (16, 4 * 12 * 11)


GIVEN: dict[str, tuple[Any, ...]] = {
    "as the library's models give it": (np.ones((1, 3), "f4"), np.array([[1]]), np.ones(1, "f4"), np.zeros(1, bool)),
    "without the axis of environments": (np.ones(3, "f4"), np.array([1]), np.float32(1), np.bool_(False)),
    "numbers": (np.ones(3, "f4"), np.array(1), 1.0, False),
    "lists": ([1.0, 1, 1], np.array([1]), [1.0], [False]),
    "in another dtype": (np.ones((1, 3), int), np.array([1.0]), np.ones(1, int), np.zeros(1, "f4")),
}


@pytest.mark.parametrize("how", GIVEN)
def test_a_step_may_be_given_as_the_library_takes_it(how: str, tmp_path: Path, opened: list[Any]) -> None:
    theirs = ReplayBuffer(10, VECTOR, ACTIONS, "cpu")
    opened.append(DiskReplayBuffer(10, VECTOR, ACTIONS, "cpu", path=tmp_path / "store"))
    obs, action, reward, done = GIVEN[how]
    for buffer in (opened[0], theirs):
        for _ in range(2):
            buffer.add(obs, obs, action, reward, done, [{}])
    sb3_buffers.same_steps(opened[0], theirs)


def test_a_step_that_does_not_fit_is_refused(tmp_path: Path, opened: list[Any]) -> None:
    opened.append(DiskReplayBuffer(10, VECTOR, ACTIONS, "cpu", 2, path=tmp_path / "store"))
    fitting = {"obs": np.ones((2, 3)), "action": np.zeros(2), "reward": np.zeros(2), "done": np.zeros(2), "infos": [{}, {}]}
    for name, value, found in (
        ("obs", np.ones((2, 4)), r"obs: expected shape \(2, 3\), with an axis of environments"),
        ("obs", [[1, 2, 3], [4]], "obs: expected shape.* inhomogeneous"),
        ("action", np.zeros(3), "action: expected"),
        ("reward", np.zeros(3), "reward: expected"),
        ("done", np.zeros(5), "done: expected"),
        ("infos", [{"TimeLimit.truncated": True}] * 3, "infos: expected"),
        ("action", np.array([0.5, 0]), "does not fit int64"),
    ):
        step = fitting | {name: value}
        with pytest.raises(db.InputError, match=found):
            opened[0].add(step["obs"], step["obs"], step["action"], step["reward"], step["done"], step["infos"])
    assert opened[0].size() == 0


GOALS = spaces.Dict(dict.fromkeys(("observation", "achieved_goal", "desired_goal"), VECTOR))


@pytest.mark.some(1)
@pytest.mark.parametrize("after", [0, 3])
@pytest.mark.parametrize("length", [9, 10, 11, 25, 40])
def test_an_episode_longer_than_the_ring_is_known_again(length: int, after: int, tmp_path: Path, opened: list[Any]) -> None:
    def make() -> Any:
        opened.append(DiskHerReplayBuffer(10, GOALS, ACTIONS, None, "cpu", path=tmp_path / "store", segment_rows=8))
        return opened[-1]

    env: Any = None
    ours, theirs = make(), HerReplayBuffer(10, GOALS, ACTIONS, env, "cpu")
    rng = np.random.default_rng(0)
    obs = sb3_buffers._values(GOALS, 1, rng)
    ends = np.cumsum([4, length, 2, 30, after + 4])
    for n in range(1, int(ends[-1]) + 1):
        following = sb3_buffers._values(GOALS, 1, rng)
        for buffer in (ours, theirs):
            buffer.add(obs, following, np.zeros((1, 1), int), np.ones(1), np.array([n in ends]), [{}])
        obs = following
        if n % 3 == 0 or n in ends or n - after in ends:
            ours.close()
            ours = make()
            assert (ours.pos, ours.full) == (theirs.pos, theirs.full)
            np.testing.assert_array_equal(ours.ep_length, theirs.ep_length)
            np.testing.assert_array_equal(ours._current_ep_start, theirs._current_ep_start)
            np.testing.assert_array_equal(ours.ep_start[ours.ep_length > 0], theirs.ep_start[theirs.ep_length > 0])


# What errors advise is there in the adapters


def jump(buffer: Any, steps: int) -> None:
    """Add steps each of which begins elsewhere than the one before ended."""
    rng = np.random.default_rng(0)
    for _ in range(steps):
        obs, after = (rng.normal(size=(1, 3)).astype("f4") for _ in range(2))
        buffer.add(obs, after, np.zeros((1, 1), int), np.ones(1), np.zeros(1, bool), [{}])


def test_a_second_writer_is_told_what_it_can_do(tmp_path: Path, opened: list[Any]) -> None:
    for _ in range(2):
        opened.append(DiskReplayBuffer(100, VECTOR, ACTIONS, "cpu", path=tmp_path / "store"))
    fill(opened[:1], VECTOR, 5)
    with pytest.raises(db.LockedError, match=r"give another path\. To read beside it, add nothing") as found:
        fill(opened[1:], VECTOR, 1)
    assert "mode=" not in str(found.value)


def test_another_number_of_environments_is_refused_with_advice_for_this_buffer(tmp_path: Path, opened: list[Any]) -> None:
    opened.append(DiskReplayBuffer(100, VECTOR, ACTIONS, "cpu", path=tmp_path / "store"))
    fill(opened, VECTOR, 5)
    opened[0].close()
    with pytest.raises(db.errors.SchemaError, match="n_envs: stored 1, asked for 2\nGive the environment and the sizes") as found:
        DiskReplayBuffer(100, VECTOR, ACTIONS, "cpu", 2, path=tmp_path / "store")
    assert "path alone" not in str(found.value)


def test_the_warning_of_episodes_that_are_cut_off_names_nothing_that_this_buffer_has_not(
    tmp_path: Path, opened: list[Any]
) -> None:
    opened.append(DiskReplayBuffer(100, VECTOR, ACTIONS, "cpu", path=tmp_path / "store"))
    with pytest.warns(UserWarning, match="cut off an episode") as found:
        jump(opened[0], 30)
    assert "new_episode" not in str(found[0].message)
    assert "give its obs as the next_obs of the step before" in str(found[0].message)
