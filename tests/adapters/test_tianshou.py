"""Tianshou's buffers on disk draw and return what its own do, bit for bit."""

from __future__ import annotations

import contextlib
import copy
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import diskbuffer as db

tianshou = pytest.importorskip("tianshou")

from tianshou.data import (  # noqa: E402
    Batch,
    PrioritizedReplayBuffer,
    PrioritizedVectorReplayBuffer,
    ReplayBuffer,
    VectorReplayBuffer,
)

from diskbuffer.adapters.tianshou import (  # noqa: E402
    DiskPrioritizedReplayBuffer,
    DiskPrioritizedVectorReplayBuffer,
    DiskReplayBuffer,
    DiskVectorReplayBuffer,
)
from diskbuffer.adapters.tianshou.stored import Stored  # noqa: E402
from tests.bools import bytes_of_bools, disguised  # noqa: E402


class Environment:
    """Steps of an environment whose episodes end in every way."""

    def __init__(self, seed: int, *, nested: bool = False) -> None:
        self.rng, self._nested, self._t = np.random.default_rng(seed), nested, 0
        self._obs = self._observe()

    def _observe(self) -> Any:
        frame = self.rng.integers(0, 256, (36, 40), np.uint8)
        return {"frame": frame, "place": self.rng.normal(size=3)} if self._nested else frame

    def step(self) -> Batch:
        following, terminated, truncated = self._observe(), self.rng.random() < 0.06, self.rng.random() < 0.04
        self._t += 1
        step = Batch(
            obs=self._obs,
            act=int(self.rng.integers(5)),
            rew=float(self.rng.normal()),
            terminated=bool(terminated),
            truncated=bool(truncated),
            obs_next=following,
            info={"lives": self._t % 3, "more": {"time": self._t * 0.5}},
            policy=Batch(),
        )
        self._obs = self._observe() if terminated or truncated else following
        return step


def same(one: Any, other: Any, where: str = "batch") -> None:
    """Require equal batches, in dtypes and shapes, too."""
    if isinstance(one, Batch):
        assert isinstance(other, Batch), where
        assert set(one.get_keys()) == set(other.get_keys()), where
        for key in one.get_keys():
            same(one[key], other[key], f"{where}.{key}")
        return
    one, other = np.asarray(one), np.asarray(other)
    assert (one.dtype, one.shape) == (other.dtype, other.shape), where
    assert np.array_equal(one, other), where


KINDS = ["plain", "nested", "stack", "stack without next", "without next", "only last"]


def options(kind: str) -> dict[str, Any]:
    found: dict[str, dict[str, Any]] = {
        "plain": {},
        "nested": {},
        "stack": {"stack_num": 4, "sample_avail": True},
        "stack without next": {"stack_num": 4, "ignore_obs_next": True},
        "without next": {"ignore_obs_next": True},
        "only last": {"stack_num": 2, "save_only_last_obs": True},
    }
    return found[kind]


def in_stacks(step: Batch) -> Batch:
    return Batch(step, obs=np.stack([step.obs] * 2), obs_next=np.stack([step.obs_next] * 2))


def compare(theirs: Any, ours: Any, *, real_next: bool) -> None:
    """Draw, and compare everything; where `real_next`, Tianshou does not know what came after an episode's end."""
    drawn, indices = theirs.sample(16)
    mine, mine_at = ours.sample(16)
    assert np.array_equal(indices, mine_at)
    if real_next:
        ends = drawn.done | np.isin(indices, theirs.last_index)
        mine.obs_next = mine.obs_next.copy()  # it may share its memory with obs
        drawn.obs_next[ends], mine.obs_next[ends] = 0, 0
    same(drawn, mine)


@pytest.mark.some(1)
@pytest.mark.parametrize("kind", KINDS)
def test_one_environment(kind: str, tmp_path: Path) -> None:
    world = Environment(1, nested=kind == "nested")
    theirs = ReplayBuffer(70, **options(kind))
    ours = DiskReplayBuffer(70, path=tmp_path / "store", segment_rows=16, **options(kind))
    for t in range(200):
        step = in_stacks(world.step()) if kind == "only last" else world.step()
        same(Batch(told=theirs.add(step)), Batch(told=ours.add(step)))
        assert len(theirs) == len(ours)
        assert np.array_equal(theirs.unfinished_index(), ours.unfinished_index())
        if t % 9 == 8:
            compare(theirs, ours, real_next="without" in kind)
            places = np.arange(len(theirs))
            assert np.array_equal(theirs.prev(places), ours.prev(places))
            assert np.array_equal(theirs.next(places), ours.next(places))
            same(theirs.get(places[::3], "obs", stack_num=3), ours.get(places[::3], "obs", stack_num=3))
    if "without" not in kind:
        same(theirs[:], ours[:])
        same(theirs[3], ours[3])
        same(theirs[5:30], ours[5:30])
    same(theirs.rew[:10], ours.rew[:10])


@pytest.mark.some(1)
@pytest.mark.parametrize("kind", ["plain", "nested", "stack", "without next"])
def test_environments_side_by_side_that_step_unevenly(kind: str, tmp_path: Path) -> None:
    worlds, rng = [Environment(10 + n, nested=kind == "nested") for n in range(3)], np.random.default_rng(0)
    theirs = VectorReplayBuffer(150, 3, **options(kind))
    ours = DiskVectorReplayBuffer(150, 3, path=tmp_path / "store", segment_rows=16, **options(kind))
    for t in range(200):
        ids = None if t < 30 or rng.random() < 0.5 else np.flatnonzero(rng.random(3) < [0.9, 0.5, 0.1])
        if ids is not None and not len(ids):
            continue
        steps = Batch.stack([worlds[n].step() for n in (range(3) if ids is None else ids)])
        same(Batch(told=theirs.add(steps, ids)), Batch(told=ours.add(steps, ids)))
        assert len(theirs) == len(ours)
        if t % 9 == 8:
            compare(theirs, ours, real_next="without" in kind)
            assert np.array_equal(theirs.unfinished_index(), ours.unfinished_index())
            places = theirs.sample_indices(0)
            assert np.array_equal(theirs.prev(places), ours.prev(places))
            assert np.array_equal(theirs.next(places), ours.next(places))


@pytest.mark.some(1)
@pytest.mark.parametrize("lanes", [1, 3])
def test_priorities(lanes: int, tmp_path: Path) -> None:
    worlds = [Environment(20 + n) for n in range(lanes)]
    how: dict[str, Any] = {"alpha": 0.6, "beta": 0.4}
    path = tmp_path / "store"
    theirs: Any = PrioritizedReplayBuffer(60, **how) if lanes == 1 else PrioritizedVectorReplayBuffer(60, lanes, **how)
    ours: Any = (
        DiskPrioritizedReplayBuffer(60, path=path, **how)
        if lanes == 1
        else DiskPrioritizedVectorReplayBuffer(60, lanes, path=path, **how)
    )
    for t in range(100):
        steps = Batch.stack([world.step() for world in worlds])
        for buffer in (theirs, ours):
            buffer.add(steps, np.arange(lanes))
        if t % 5 == 0:
            found = []
            for buffer in (theirs, ours):
                np.random.seed(t)  # noqa: NPY002  which Tianshou draws from
                batch, indices = buffer.sample(16)
                buffer.update_weight(indices, np.abs(np.random.default_rng(t).normal(size=16)))
                found.append(batch)
            same(*found)


def test_a_buffer_goes_on_where_it_ended(tmp_path: Path) -> None:
    worlds = [Environment(30 + n) for n in range(2)]
    theirs = VectorReplayBuffer(80, 2, stack_num=3)
    for _turn in range(4):
        ours = DiskVectorReplayBuffer(80, 2, path=tmp_path / "store", stack_num=3)
        if len(theirs):
            assert np.array_equal(theirs.unfinished_index(), ours.unfinished_index())
            same(theirs[:], ours[:])
        for _ in range(27):
            steps = Batch.stack([world.step() for world in worlds])
            same(Batch(told=theirs.add(steps)), Batch(told=ours.add(steps)))
        ours.save_hdf5(str(tmp_path / "saved.hdf5"), compression="gzip")
        for copied in (pickle.loads(pickle.dumps(ours)), DiskVectorReplayBuffer.load_hdf5(str(tmp_path / "saved.hdf5"))):
            same(ours[:], copied[:])
        ours.close()


def test_a_file_of_other_steps_is_not_loaded(tmp_path: Path) -> None:
    theirs, file = ReplayBuffer(20), str(tmp_path / "theirs.hdf5")
    theirs.add(Environment(1).step())
    theirs.save_hdf5(file)
    with pytest.raises(db.InputError, match="are loaded by these, and added with `update`"):
        DiskReplayBuffer.load_hdf5(file)
    ours = DiskReplayBuffer(20, path=tmp_path / "store")
    ours.update(ReplayBuffer.load_hdf5(file))
    same(theirs[:], ours[:])
    ours.save_hdf5(file)
    with pytest.raises(db.InputError, match="found DiskReplayBuffer"):
        DiskVectorReplayBuffer.load_hdf5(file)


def test_keys_that_are_written_later(tmp_path: Path) -> None:
    world, theirs, ours = Environment(40), ReplayBuffer(50), DiskReplayBuffer(50, path=tmp_path / "store")
    for _ in range(50):
        step = world.step()
        theirs.add(step)
        ours.add(step)
    values = np.random.default_rng(0).normal(size=50).astype(np.float32)
    for buffer in (theirs, ours):
        buffer.set_array_at_key(values.copy(), "adv")
        buffer.set_array_at_key(values[:7] * 2, "adv", np.arange(7))
        buffer.set_array_at_key(values[:5], "logp_old", np.arange(10, 15), 0.0)
    same(theirs[:], ours[:])
    ours.close()
    again = DiskReplayBuffer(50, path=tmp_path / "store")
    same(theirs[:], again[:])
    with pytest.raises(ValueError, match="7 values for 50"):
        ours.set_array_at_key(values[:7], "adv")
    with pytest.raises(db.InputError, match="was recorded"):
        again.set_array_at_key(values, "rew")


def test_an_empty_buffer_again(tmp_path: Path) -> None:
    world, theirs, ours = (
        Environment(50),
        ReplayBuffer(40, stack_num=2),
        DiskReplayBuffer(40, path=tmp_path / "store", stack_num=2),
    )
    for _turn in range(3):
        for _ in range(25):
            step = world.step()
            theirs.add(step)
            ours.add(step)
        same(theirs[:], ours[:])
        theirs.reset(keep_statistics=True)
        ours.reset(keep_statistics=True)
        assert len(ours) == 0
    for _ in range(5):
        step = world.step()
        theirs.add(step)
        ours.add(step)
    ours.close()
    same(theirs[:], DiskReplayBuffer(40, path=tmp_path / "store", stack_num=2)[:])


def test_another_buffer_is_taken_over(tmp_path: Path) -> None:
    world, source = Environment(60), ReplayBuffer(20)
    for _ in range(30):
        source.add(world.step())
    theirs, ours = ReplayBuffer(50), DiskReplayBuffer(50, path=tmp_path / "store")
    for _turn in range(3):
        assert np.array_equal(theirs.update(source), ours.update(source))
    same(theirs[:], ours[:])


def test_an_episode_that_runs_is_not_changed_by_another_buffer(tmp_path: Path) -> None:
    def step(t: int) -> Batch:
        return Batch(numbered(t), rew=np.array([t, -t], np.float64))

    source = ReplayBuffer(5)
    for t in range(3):
        source.add(step(t))
    returns = []
    for buffer in (ReplayBuffer(20), DiskReplayBuffer(20, path=tmp_path / "store")):
        buffer.add(step(10))
        buffer.update(source)
        returns.append(buffer.add(Batch(step(11), terminated=True))[1])
    np.testing.assert_array_equal(returns[0], returns[1])


def test_the_observation_after_an_end_is_the_real_one(tmp_path: Path) -> None:
    world, ours = Environment(70), DiskReplayBuffer(50, path=tmp_path / "store", ignore_obs_next=True)
    steps = [world.step() for _ in range(50)]
    for step in steps:
        ours.add(step)
    same(np.stack([step.obs_next for step in steps]), ours[np.arange(50)].obs_next)


def test_misuse_is_told(tmp_path: Path) -> None:
    world, ours = Environment(80), DiskReplayBuffer(50, path=tmp_path / "store")
    ours.add(world.step())
    with pytest.raises(db.InputError, match="Zarr holds no objects"):
        ours.add(Batch(world.step(), act=np.array("up", object)))
    with pytest.raises(ValueError, match="following keys"):
        ours.add(Batch(obs=1, terminated=False, truncated=False))
    with pytest.raises(db.InputError, match="obs"):
        ours.add(Batch(world.step(), obs=np.zeros((3, 3), np.uint8)))
    other = DiskReplayBuffer(50, path=tmp_path / "store")
    assert len(other) == 1
    with pytest.raises(db.LockedError):
        other.add(world.step())
    with pytest.raises(db.errors.SchemaError, match="50 steps"):
        DiskReplayBuffer(60, path=tmp_path / "store")
    assert len(ours) == 1
    for stack_num in (2.0, True):
        with pytest.raises(db.InputError, match="stack_num must be an integer"):
            DiskReplayBuffer(50, path=tmp_path / "other", stack_num=stack_num)


KILLED = """
import sys
import threading
sys.path.insert(0, {tests!r})
from test_tianshou import Batch, Environment, DiskVectorReplayBuffer
buffer = DiskVectorReplayBuffer(200, 2, path={path!r}, segment_rows=16)
worlds = [Environment(90), Environment(91)]
for t in range(10**9):
    buffer.add(Batch.stack([world.step() for world in worlds]))
    print(t, flush=True)
"""


@pytest.mark.nightly
def test_a_kill_loses_no_step(tmp_path: Path) -> None:
    script = KILLED.format(tests=str(Path(__file__).parent), path=str(tmp_path / "store"))
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        told = -1
        while told < 350:
            told = int(process.stdout.readline())
        os.kill(process.pid, signal.SIGKILL)
        told = max([told, *map(int, process.stdout.read().split())])
    worlds, theirs = [Environment(90), Environment(91)], VectorReplayBuffer(200, 2)
    ours = DiskVectorReplayBuffer(200, 2, path=tmp_path / "store")
    added = ours.stored.buffer.counts()[1]  # type: ignore[union-attr]
    assert ((added == told + 1) | (added == told + 2)).all()
    for t in range(int(added.max())):
        ids = np.flatnonzero(added > t)
        theirs.add(Batch.stack([worlds[n].step() for n in ids]), ids)
    same(theirs[:], ours[:])


# Algorithms


def learn(of: str, buffer: Any, updates: int) -> list[float]:
    """Have one of Tianshou's algorithms learn CartPole; return its losses."""
    import gymnasium as gym
    from tianshou.algorithm.modelfree.dqn import DQN, DiscreteQLearningPolicy
    from tianshou.algorithm.modelfree.ppo import PPO
    from tianshou.algorithm.modelfree.reinforce import ProbabilisticActorPolicy
    from tianshou.algorithm.optim import AdamOptimizerFactory
    from tianshou.data import Collector
    from tianshou.env import DummyVectorEnv
    from tianshou.utils.net.common import Net
    from tianshou.utils.net.discrete import DiscreteActor, DiscreteCritic
    from tianshou.utils.torch_utils import policy_within_training_step

    np.random.seed(0)  # noqa: NPY002
    torch.manual_seed(0)
    envs = DummyVectorEnv([lambda: gym.make("CartPole-v1") for _ in range(4)])
    envs.seed(0)
    space: Any = gym.make("CartPole-v1").action_space
    space.seed(0)
    net, optim = Net(state_shape=(4,), action_shape=2, hidden_sizes=[32]), AdamOptimizerFactory(lr=1e-3)
    algorithm: Any
    if of == "dqn":
        policy: Any = DiscreteQLearningPolicy(model=net, action_space=space, eps_training=0.2)
        algorithm = DQN(policy=policy, optim=optim, n_step_return_horizon=3, target_update_freq=50)
    else:
        body = Net(state_shape=(4,), hidden_sizes=[32])
        actor = DiscreteActor(preprocess_net=body, action_shape=2)
        policy = ProbabilisticActorPolicy(
            actor=actor,
            dist_fn=lambda logits: torch.distributions.Categorical(logits=logits),
            action_space=space,
            action_scaling=False,
        )
        algorithm = PPO(policy=policy, critic=DiscreteCritic(preprocess_net=body), optim=optim, max_batchsize=50)
    collector: Any = Collector(policy, envs, buffer)
    losses = []
    collector.reset()
    with policy_within_training_step(policy):
        for _ in range(updates):
            if of == "dqn":
                collector.collect(n_step=8)
                losses.append(algorithm.update(buffer, 32).loss)
            else:
                collector.collect(n_step=400)
                losses.append(algorithm.update(buffer, 64, 3).loss.mean)
                collector.reset_buffer(keep_statistics=True)
    return losses


@pytest.mark.nightly
@pytest.mark.parametrize("of", ["dqn", "ppo"])
def test_losses_are_identical(of: str, tmp_path: Path, amount: Callable[[int, int], int]) -> None:
    updates, size = (amount(80, 250), amount(400, 1000)) if of == "dqn" else (amount(2, 6), 2000)
    theirs = learn(of, VectorReplayBuffer(size, 4), updates)
    ours = learn(of, DiskVectorReplayBuffer(size, 4, path=tmp_path / "store"), updates)
    assert len(set(theirs)) > updates / 2
    assert theirs == ours


# What stays right when something goes wrong


def holds(buffer: Any, count: int) -> None:
    """Require that a buffer of `numbered` steps pairs every observation with its own reward."""
    found = buffer[:]
    assert len(found) == count
    assert np.array_equal(found.obs[:, 0], found.rew)
    assert np.array_equal(found.obs_next[:, 0], found.rew + 1)
    assert np.array_equal(found.rew, np.sort(found.rew))


def numbered(t: int) -> Batch:
    obs = np.full(3, t, np.int64)
    return Batch(obs=obs, act=t, rew=float(t), terminated=False, truncated=False, obs_next=obs + 1, info={})


@pytest.mark.parametrize("n_envs", [1, 3])
@pytest.mark.parametrize("stack_num", [1, 4])
def test_steps_of_collectors_are_handed_over_as_they_are(
    n_envs: int, stack_num: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options: dict[str, Any] = {"path": tmp_path / "store", "stack_num": stack_num}
    buffer: Any = DiskReplayBuffer(100, **options) if n_envs == 1 else DiskVectorReplayBuffer(300, n_envs, **options)
    buffer.add(numbered(0) if n_envs == 1 else Batch.stack([numbered(0)] * n_envs), None if n_envs == 1 else range(n_envs))

    def refuse(*_: Any) -> None:
        raise AssertionError

    monkeypatch.setattr(Stored, "add", refuse)
    for t in range(1, 20):
        buffer.add(numbered(t) if n_envs == 1 else Batch.stack([numbered(t)] * n_envs), None if n_envs == 1 else range(n_envs))
    assert len(buffer) == 20 * n_envs
    assert buffer.obs[19, 0] == 19
    buffer.close()


@pytest.mark.parametrize("where", ["before", "after"])
def test_an_interrupted_add_leaves_rows_together(where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    buffer, real = DiskReplayBuffer(50, path=tmp_path / "store"), db.ReplayBuffer.add
    for t in range(5):
        buffer.add(numbered(t))

    def interrupted(self: Any, *args: Any, **kwargs: Any) -> int:
        if where == "after":
            real(self, *args, **kwargs)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(db.ReplayBuffer, "add", interrupted)
        with pytest.raises(KeyboardInterrupt):
            buffer.add(numbered(5))
    first = 6 if where == "after" else 5
    for t in range(first, 20):
        buffer.add(numbered(t))
    holds(buffer, 20)
    buffer.close()
    holds(DiskReplayBuffer(50, path=tmp_path / "store"), 20)


def test_a_step_that_fails_for_one_environment_leaves_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    buffer, real = DiskVectorReplayBuffer(90, 3, path=tmp_path / "store"), db.ReplayBuffer.extend
    for t in range(5):
        buffer.add(Batch.stack([numbered(t)] * 3))

    def full(self: Any, *args: Any, env: int, **kwargs: Any) -> int:
        if env == 2:
            raise OSError(28, "No space left on device")
        return real(self, *args, env=env, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(db.ReplayBuffer, "extend", full)
        with pytest.raises(OSError, match="space"):
            buffer.add(Batch.stack([numbered(5)] * 2), [0, 2])
    for env, first in enumerate([6, 5, 5]):
        for t in range(first, 12):
            buffer.add(Batch.stack([numbered(t)]), [env])
    for env in range(3):
        found = buffer[np.arange(env * 30, env * 30 + 12)]
        assert found.rew.tolist() == found.obs[:, 0].tolist() == list(range(12))


def test_a_buffer_that_was_opened_again_is_reset(tmp_path: Path) -> None:
    buffer = DiskReplayBuffer(50, path=tmp_path / "store")
    for t in range(12):
        buffer.add(numbered(t))
    buffer.close()
    again = DiskReplayBuffer(50, path=tmp_path / "store")
    again.reset()
    assert len(again.stored.opened) == len(DiskReplayBuffer(50, path=tmp_path / "store")) == 0
    for t in range(50, 54):
        again.add(numbered(t))
    holds(again, 4)
    again.close()
    holds(DiskReplayBuffer(50, path=tmp_path / "store"), 4)


@pytest.mark.parametrize("lanes", [0, 2])
@pytest.mark.parametrize("prioritized", [False, True])
def test_a_buffer_whose_copy_went_on_is_where_that_is(prioritized: bool, lanes: int, tmp_path: Path) -> None:
    how: dict[str, Any] = {"path": tmp_path / "store"} | ({"alpha": 0.6, "beta": 0.4} if prioritized else {})
    alone: Any = DiskPrioritizedReplayBuffer if prioritized else DiskReplayBuffer
    vector: Any = DiskPrioritizedVectorReplayBuffer if prioritized else DiskVectorReplayBuffer
    buffer = vector(40, 2, **how) if lanes else alone(20, **how)

    def add(to: Any, t: int) -> None:
        to.add(Batch.stack([numbered(t)] * 2) if lanes else numbered(t))

    for t in range(8):
        add(buffer, t)
    copied = copy.deepcopy(buffer)
    copied.reset()
    for t in range(50, 53):
        add(copied, t)
    batch, _ = buffer.sample(100)
    assert set(batch.rew.tolist()) == {50.0, 51.0, 52.0}
    assert (batch.obs[:, 0] == batch.rew).all()
    add(buffer, 53)
    assert len(buffer) == 4 * max(lanes, 1)


def test_who_adds_after_another_goes_on_behind_him(tmp_path: Path) -> None:
    first = DiskReplayBuffer(50, path=tmp_path / "store")
    first.add(numbered(0))
    first.close()
    one, other = DiskReplayBuffer(50, path=tmp_path / "store"), DiskReplayBuffer(50, path=tmp_path / "store")
    for t in range(1, 5):
        other.add(numbered(t))
    other.close()
    one.add(numbered(5))
    holds(one, 6)


def test_a_pickled_vector_buffer_knows_its_unfinished_episodes(tmp_path: Path) -> None:
    buffer = DiskVectorReplayBuffer(40, 2, path=tmp_path / "store")
    buffer.add(Batch.stack([numbered(0)] * 2))
    copied = pickle.loads(pickle.dumps(buffer))
    last = numbered(1)
    last.terminated = True
    copied.add(Batch.stack([last] * 2))
    assert copied.unfinished_index().tolist() == []


def test_steps_that_others_wrote_are_drawn_by_their_priorities_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def make() -> Any:
        return DiskPrioritizedReplayBuffer(100, path=tmp_path / "store", alpha=0.6, beta=0.4)

    first = make()
    first.add(numbered(0))
    first.close()
    one, other = make(), make()
    for t in range(1, 30):
        other.add(numbered(t))
    copied = pickle.dumps(other)
    other.add(numbered(30))
    other.close()
    one.add(numbered(31))
    known = db.ReplayBuffer.add

    def interrupted(*args: Any, **kwargs: Any) -> None:
        known(*args, **kwargs)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(db.ReplayBuffer, "add", interrupted)
        with pytest.raises(KeyboardInterrupt):
            one.add(numbered(32))
    for buffer in (one, pickle.loads(copied)):
        assert len(buffer) == 33
        assert set(buffer.sample_indices(5_000).tolist()) == set(range(33))


@pytest.mark.some(1)
@pytest.mark.parametrize("given", [{}, {"ignore_obs_next": True}, {"ignore_obs_next": True, "stack_num": 4}], ids=str)
def test_what_came_after_a_step_need_not_be_known(given: dict[str, Any], tmp_path: Path) -> None:
    world = Environment(50)
    theirs, ours = ReplayBuffer(60, **given), DiskReplayBuffer(60, path=tmp_path / "store", **given)
    for count in (20, 70):
        for _ in range(count):
            step = world.step()
            del step.obs_next
            same(Batch(told=theirs.add(step)), Batch(told=ours.add(step)))
        for _ in range(2):
            same(theirs[np.arange(len(theirs))], ours[np.arange(len(ours))])
            ours.close()
            ours = DiskReplayBuffer(60, path=tmp_path / "store", **given)


def test_rewards_are_others_for_a_while_where_agents_are_several(tmp_path: Path) -> None:
    ours = DiskVectorReplayBuffer(20, 2, path=tmp_path / "store")
    for t in range(8):
        ours.add(Batch.stack([Batch(numbered(t), rew=np.array([t, -t], np.float64))] * 2))
    kept = ours.rew
    ours._meta.rew = kept[:, 1]
    assert ours[np.array([3, 12])].rew.tolist() == [-3, -2]
    ours._meta.rew = kept
    assert ours[np.array([3, 12])].rew.tolist() == [[3, -3], [2, -2]]
    with pytest.raises(db.InputError, match="on disk"):
        ours._meta.obs = kept


def test_other_values_than_the_store_can_hold_are_refused(tmp_path: Path) -> None:
    first = DiskReplayBuffer(20, path=tmp_path / "store")
    first.add(Environment(1).step())
    first.close()
    ours = DiskReplayBuffer(20, path=tmp_path / "store")
    step = Environment(1).step()
    ours.add(Batch(step, obs=step.obs.astype(np.int64), obs_next=step.obs_next.astype(np.float64)))  # the same numbers
    with pytest.raises(db.InputError, match="other values"):
        ours.add(Batch(step, obs=step.obs / 255))
    with pytest.raises(db.InputError, match="other values"):
        ours.add(Batch(step, act=0.5))
    assert len(ours) == 2


def test_keys_that_come_with_another_meta_are_written(tmp_path: Path) -> None:
    ours = DiskReplayBuffer(20, path=tmp_path / "store")
    for t in range(20):
        ours.add(numbered(t))
    ours._meta = Batch(**ours._meta.__dict__, calibration_returns=np.arange(20.0))  # as CQL does
    assert ours[np.array([3, 5])].calibration_returns.tolist() == [3, 5]
    assert len(ours) == 20


@pytest.mark.parametrize("then", ["add", "close", "reopen", "pickle"])
@pytest.mark.parametrize("lanes", [0, 2])
def test_priorities_of_steps_that_were_reset_are_forgotten(lanes: int, then: str, tmp_path: Path) -> None:
    how: dict[str, Any] = {"path": tmp_path / "store", "alpha": 0.6, "beta": 0.4}

    def make() -> Any:
        return DiskPrioritizedVectorReplayBuffer(40, 2, **how) if lanes else DiskPrioritizedReplayBuffer(20, **how)

    ours = make()
    for t in range(8):
        ours.add(Batch.stack([numbered(t)] * 2) if lanes else numbered(t))
    ours.reset(keep_statistics=True)
    if then == "close":
        ours.close()
    if then == "pickle":
        ours = pickle.loads(pickle.dumps(ours))
        assert len(ours) == 0
    for t in range(50, 53):
        ours.add(Batch.stack([numbered(t)] * 2) if lanes else numbered(t))
    if then == "reopen":
        ours.close()
        ours = make()
    assert set(ours.sample(200)[0].rew.tolist()) == {50.0, 51.0, 52.0}


@pytest.mark.parametrize("then", ["close", "pickle"])
def test_statistics_that_a_reset_kept_go_on(then: str, tmp_path: Path) -> None:
    theirs, ours = ReplayBuffer(6), DiskReplayBuffer(6, path=tmp_path / "store")
    for turn in range(3):
        for t in range(7):  # one more than there are places for
            last = Batch(numbered(t), terminated=turn == 2 and t == 6)
            same(Batch(told=theirs.add(last)), Batch(told=ours.add(last)))
            if then == "close":
                ours.close()
            else:
                ours = pickle.loads(pickle.dumps(ours))
        if turn < 2:
            theirs.reset(keep_statistics=True)
            ours.reset(keep_statistics=True)
    assert ours.sample(0)[0].done.tolist() == [False] * 5 + [True]


def test_all_steps_have_their_weights(tmp_path: Path) -> None:
    how: dict[str, Any] = {"alpha": 0.6, "beta": 0.4}
    theirs, ours = PrioritizedReplayBuffer(20, **how), DiskPrioritizedReplayBuffer(20, path=tmp_path / "store", **how)
    for buffer in (theirs, ours):
        for t in range(8):
            buffer.add(numbered(t))
        buffer.update_weight(np.arange(3), np.arange(1, 4))
    same(theirs.sample(0)[0].weight, ours.sample(0)[0].weight)
    same(theirs.sample(0)[0], ours.sample(0)[0])


def test_true_is_one_byte_only(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    ours = DiskReplayBuffer(60, path=tmp_path / "store", segment_rows=16)
    masks, flags = disguised(rng.random((41, 4)) < 0.3, rng), disguised(rng.random((40, 2, 1)) < 0.1, rng)
    for mask, following, (terminated, truncated) in zip(masks, masks[1:], flags, strict=False):
        flag = {"terminated": terminated.reshape(()), "truncated": truncated.reshape(())}
        ours.add(Batch(obs=mask, act=mask[:2], rew=1.0, obs_next=following, info={"seen": mask}, policy=Batch(), **flag))
    assert np.array_equal(ours.done[:40], flags.view(np.uint8).any(axis=(1, 2)))
    ours.close()
    assert bytes_of_bools(tmp_path / "store") == {0, 1}


def test_a_step_is_read_as_it_is_while_another_thread_adds_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rewards are in memory and observations on disk, and places are counted from the newest step."""
    with contextlib.closing(DiskReplayBuffer(64, path=tmp_path / "store")) as buffer:

        def add(n: int) -> None:
            step = {"obs": np.full(3, n), "act": n, "rew": float(n), "terminated": False, "truncated": False}
            buffer.add(Batch(step | {"obs_next": np.full(3, n + 1), "info": {}}))

        real, found = Stored._move_on, list[Any]()

        def moved_on_while_read(stored: Stored, envs: Any) -> None:
            other = threading.Thread(target=lambda: found.append(buffer[np.arange(10)]))
            other.start()
            other.join(0.2)  # where it must wait for the step, it goes on after it
            real(stored, envs)
            others.append(other)

        others = list[threading.Thread]()
        for n in range(10):
            add(n)
        monkeypatch.setattr(Stored, "_move_on", moved_on_while_read)
        add(10)
        others[0].join()
        assert found[0].rew.tolist() == found[0].obs[:, 0].tolist() == list(range(10))
