"""Scripts may give another stack after a terminal step than its own, moved on, such as the next episode's first one.

CleanRL's `dqn_atari.py` does. Nothing is learned of it: batches of ours have the step's own stack, moved on, there. After any
other step such a stack is an error, which says what to do.
"""

from __future__ import annotations

import pickle
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import example, given
from hypothesis import strategies as st

from diskbuffer.errors import StackError
from tests.amounts import examples

pytest.importorskip("stable_baselines3")

from stable_baselines3.common.buffers import DictReplayBuffer, NStepReplayBuffer, ReplayBuffer

from diskbuffer.adapters.sb3 import DiskDictReplayBuffer, DiskReplayBuffer

ACTIONS = spaces.Discrete(3)


class Environments:
    """Stacks of frames, channels first or last, of environments that reset where an episode ends."""

    def __init__(self, rng: np.random.Generator, n_envs: int, *, last: bool, zeros: bool, stack: int = 4) -> None:
        self.rng, self.n_envs, self._last, self._zeros, self._stack = rng, n_envs, last, zeros, stack
        self._frames = [self._first() for _ in range(n_envs)]

    def frame(self) -> Any:
        return self.rng.integers(0, 256, (12, 11), np.uint8)

    def _first(self) -> list[Any]:
        frame = self.frame()
        return [np.zeros_like(frame) if self._zeros else frame] * (self._stack - 1) + [frame]

    def _obs(self, frames: list[Any]) -> Any:
        return np.stack(frames, -1 if self._last else 0)

    def step(self) -> tuple[Any, ...]:
        """Return what `add` is given; any observation comes after a step that is terminal."""
        obs, following, done, infos = [], [], self.rng.random(self.n_envs) < 0.15, []
        for env, frames in enumerate(self._frames):
            obs.append(self._obs(frames))
            moved, first = [*frames[1:], self.frame()], self._first()
            anything = [first, [self.frame() for _ in frames], [0 * moved[0]] * len(frames), [self.frame()] * len(frames), moved]
            timeout = bool(done[env] and self.rng.random() < 0.3)
            infos.append({"TimeLimit.truncated": timeout})
            is_odd = done[env] and not timeout
            following.append(self._obs(anything[self.rng.integers(len(anything))] if is_odd else moved))
            self._frames[env] = first if done[env] else moved
        step = np.stack(obs), np.stack(following), self.rng.integers(0, 3, (self.n_envs, 1))
        return *step, self.rng.normal(size=self.n_envs), done, infos


def same(one: Any, other: Any) -> None:
    """Compare batches, bit for bit."""
    assert one._fields == other._fields
    goes_on = one.dones.reshape(-1) == 0
    for field in one._fields:
        part, of = getattr(one, field), getattr(other, field)
        for values, others in [(part[name], of[name]) for name in part] if isinstance(part, dict) else [(part, of)]:
            if values is None:
                assert others is None
            else:
                assert values.dtype == others.dtype, field
                values, others = (each[goes_on] if field == "next_observations" else each for each in (values, others))
                assert np.array_equal(values, others), (field, np.flatnonzero((values != others).reshape(len(values), -1).any(1)))


def draw(buffer: Any, seed: int, size: int) -> Any:
    np.random.seed(seed)  # noqa: NPY002  as the library draws
    return buffer.sample(size)


@example(seed=2147483644, n_envs=1, last=True, zeros=False, n_steps=3)  # the first two steps end episodes
@given(
    seed=st.integers(0, 2**32),
    n_envs=st.integers(1, 3),
    last=st.booleans(),
    zeros=st.booleans(),
    n_steps=st.sampled_from([1, 1, 3]),
)
@examples(2, 75)
def test_batches_are_the_librarys_but_for_what_came_after_terminal_steps(
    seed: int, n_envs: int, last: bool, zeros: bool, n_steps: int
) -> None:
    rng = np.random.default_rng(seed)
    world, size = Environments(rng, n_envs, last=last, zeros=zeros), int(rng.integers(20, 90))
    space = spaces.Box(0, 255, (12, 11, 4) if last else (4, 12, 11), np.uint8)
    of: Any = ReplayBuffer if n_steps == 1 else NStepReplayBuffer
    options: dict[str, Any] = {} if n_steps == 1 else {"n_steps": n_steps, "gamma": 0.99}
    theirs = of(size * n_envs, space, ACTIONS, "cpu", n_envs, **options)
    with tempfile.TemporaryDirectory() as directory:

        def make() -> DiskReplayBuffer:
            how: dict[str, Any] = {"n_steps": n_steps, "gamma": 0.99, "frame_stack": 4, "segment_rows": 32}
            return DiskReplayBuffer(size * n_envs, space, ACTIONS, "cpu", n_envs, path=Path(directory) / "store", **how)

        ours, steps = make(), int(rng.integers(30, 200))
        for t in range(steps):
            step = world.step()
            theirs.add(*step)
            ours.add(*step)
            if rng.random() < 0.05:
                same(draw(theirs, t, 32), draw(ours, t, 32))
            if rng.random() < 0.02:
                ours.close()
                ours = make() if rng.random() < 0.5 else pickle.loads(pickle.dumps(ours))
        for _ in range(2):
            for t in range(3):
                same(draw(theirs, t, 64), draw(ours, t, 64))
                same(draw(theirs, t, 1), draw(ours, t, 1))
            places = np.divmod(np.arange(theirs.size() * n_envs), n_envs)
            batch, on = ours._batch(*places), theirs.dones[places] == 0
            assert np.array_equal(batch["obs"], theirs.observations[places])
            assert np.array_equal(batch["next_obs"][on], theirs.next_observations[places][on])
            assert (batch["terminated"] | batch["truncated"])[~on].all()
            assert ours.stored.buffer is not None
            if ours.stored.writes:
                assert ours.stored.buffer.check().ok
            ours.close()
            ours = make()
        ours.close()


def test_dict_observations_have_them_too(tmp_path: Path) -> None:
    world = Environments(np.random.default_rng(1), 2, last=False, zeros=False)
    space = spaces.Dict({name: spaces.Box(0, 255, (4, 12, 11), np.uint8) for name in ("left", "right")})
    theirs = DictReplayBuffer(100, space, ACTIONS, "cpu", 2)
    ours = DiskDictReplayBuffer(100, space, ACTIONS, "cpu", 2, path=tmp_path / "store", frame_stack=4)
    for _ in range(80):
        obs, after, *others = world.step()
        for buffer in (theirs, ours):
            buffer.add({"left": obs, "right": 255 - obs}, {"left": after, "right": 255 - after}, *others)
    assert ours.stored.buffer is not None
    assert ours.stored.buffer.frame_stack == 4
    for t in range(5):
        same(draw(theirs, t, 64), draw(ours, t, 64))
    ours.close()


def test_another_stack_after_a_step_that_is_not_terminal_is_an_error(tmp_path: Path) -> None:
    world = Environments(np.random.default_rng(0), 1, last=False, zeros=False)
    ours = DiskReplayBuffer(
        200, spaces.Box(0, 255, (4, 12, 11), np.uint8), ACTIONS, "cpu", path=tmp_path / "store", frame_stack=4
    )
    for _ in range(20):
        ours.add(*world.step())
    obs, _, action, reward, _, infos = world.step()
    with pytest.raises(StackError, match="frame_stack=1"):
        ours.add(obs, np.roll(obs, 1), action, reward, np.zeros(1, bool), infos)
    assert ours.size() == 20
    ours.close()


def test_the_reset_row_of_a_script_in_next_step_mode_is_to_be_left_out(tmp_path: Path) -> None:
    world = Environments(np.random.default_rng(0), 1, last=False, zeros=False)
    space = spaces.Box(0, 255, (4, 12, 11), np.uint8)
    ours = DiskReplayBuffer(200, space, ACTIONS, "cpu", path=tmp_path / "store", frame_stack=4)
    obs, after, action, reward, _, infos = world.step()
    ours.add(obs, after, action, reward, np.ones(1, bool), infos)
    with pytest.raises(StackError, match=r"reset of an environment in next-step mode.*leave it out"):
        ours.add(after, np.roll(after, 1), action, reward, np.zeros(1, bool), infos)
    ours.close()
