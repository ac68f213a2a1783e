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


KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "nested": {},
    "stack": {"stack_num": 4, "sample_avail": True},
    "stack without next": {"stack_num": 4, "ignore_obs_next": True},
    "without next": {"ignore_obs_next": True},
    "only last": {"stack_num": 2, "save_only_last_obs": True},
    "priorities": {"alpha": 0.6, "beta": 0.4},
}


def in_stacks(step: Batch) -> Batch:
    return Batch(step, obs=np.stack([step.obs] * 2), obs_next=np.stack([step.obs_next] * 2))


def same_steps(theirs: Any, one: Any, other: Any, indices: Any) -> None:
    """Require equal batches of Tianshou's and ours, but for what docs/adapters.md names."""
    first, starts = indices, np.zeros(len(indices), bool)
    for _ in range(theirs.stack_num - 1):
        before = theirs.prev(first)
        first, starts = before, starts | (before == first)
    if theirs.stack_num > 1:
        rings = list(getattr(theirs, "buffers", [theirs]))
        oldest = [n * ring.maxsize + ring._insertion_idx % max(len(ring), 1) for n, ring in enumerate(rings)]
        at_the_edge = starts & np.isin(first, oldest)  # the store has more frames than Tianshou
        one.info, starts = one.info.apply_values_transform(lambda values: values[:, -1]), starts | at_the_edge
    else:
        at_the_edge = starts
    unknown = at_the_edge | one.done | np.isin(indices, theirs.last_index) if not theirs._save_obs_next else starts
    other.obs_next = other.obs_next if isinstance(other.obs_next, Batch) else other.obs_next.copy()  # shared with obs
    for batch in (one, other):
        if at_the_edge.any():
            batch.obs[at_the_edge] = 0
        if unknown.any():
            batch.obs_next[unknown] = 0
    same(one, other)


@pytest.mark.some(2)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("lanes", [0, 3])
def test_batches_are_those_of_tianshou(kind: str, lanes: int, tmp_path: Path) -> None:
    worlds, rng = [Environment(10 + n, nested=kind == "nested") for n in range(lanes or 1)], np.random.default_rng(0)
    classes: dict[tuple[bool, bool], tuple[Any, Any]] = {
        (False, False): (ReplayBuffer, DiskReplayBuffer),
        (True, False): (VectorReplayBuffer, DiskVectorReplayBuffer),
        (False, True): (PrioritizedReplayBuffer, DiskPrioritizedReplayBuffer),
        (True, True): (PrioritizedVectorReplayBuffer, DiskPrioritizedVectorReplayBuffer),
    }
    own, on_disk = classes[lanes > 0, kind == "priorities"]
    size = (150, lanes) if lanes else (70,)
    theirs, ours = own(*size, **KINDS[kind]), on_disk(*size, path=tmp_path / "store", segment_rows=16, **KINDS[kind])
    for t in range(200):
        ids = None if t < 30 or not lanes or rng.random() < 0.5 else np.flatnonzero(rng.random(lanes) < [0.9, 0.5, 0.1])
        if ids is not None and not len(ids):
            continue
        some = [worlds[n].step() for n in (range(len(worlds)) if ids is None else ids)]
        if kind == "only last":
            some = [in_stacks(step) for step in some]
        step = Batch.stack(some) if lanes else some[0]
        same(Batch(told=theirs.add(step, ids)), Batch(told=ours.add(step, ids)))
        assert len(theirs) == len(ours)
        if t % 9 == 8:
            drawn = []
            for buffer in (theirs, ours):
                np.random.seed(t)  # noqa: NPY002  which Tianshou draws priorities with
                drawn.append(buffer.sample(16))
                if kind == "priorities":
                    buffer.update_weight(drawn[-1][1], np.abs(np.random.default_rng(t).normal(size=16)))
            assert np.array_equal(drawn[0][1], drawn[1][1])
            same_steps(theirs, drawn[0][0], drawn[1][0], drawn[0][1])
            places = theirs.sample_indices(0)
            assert np.array_equal(theirs.unfinished_index(), ours.unfinished_index())
            assert np.array_equal(theirs.prev(places), ours.prev(places))
            assert np.array_equal(theirs.next(places), ours.next(places))
            for key in ("rew", "done", "act"):
                same(theirs.get(places[::3], key, stack_num=1), ours.get(places[::3], key))
            same(theirs.get(places[::3], "obs", stack_num=1), ours.get(places[::3], "obs", stack_num=1))
    if kind in ("plain", "nested"):
        for index in (slice(None), 3, slice(5, 30), [4, 2], np.array([[1, 2], [3, 4]])):
            same(theirs[index], ours[index])
    same(theirs.rew[:10], ours.rew[:10])
    ours.close()
    again = on_disk(*size, path=tmp_path / "store", **KINDS[kind])  # which is full
    assert np.array_equal(theirs.unfinished_index(), again.unfinished_index())
    again.close()


def test_a_buffer_goes_on_where_it_ended(tmp_path: Path) -> None:
    worlds = [Environment(30 + n) for n in range(2)]
    theirs = VectorReplayBuffer(80, 2)
    for _turn in range(4):
        ours = DiskVectorReplayBuffer(80, 2, path=tmp_path / "store")
        if len(theirs):
            assert np.array_equal(theirs.unfinished_index(), ours.unfinished_index())
            same(theirs[:], ours[:])
        for _ in range(27):
            steps = Batch.stack([world.step() for world in worlds])
            same(Batch(told=theirs.add(steps)), Batch(told=ours.add(steps)))
        same(ours[:], pickle.loads(pickle.dumps(ours))[:])
        ours.close()


def test_what_is_on_disk_says_where_it_is(tmp_path: Path) -> None:
    world, ours = Environment(1), DiskReplayBuffer(20, path=tmp_path / "store")
    with pytest.raises(IndexError, match="0 steps were added"):
        ours[:]
    ours.add(world.step())
    where = r"read them through buffer\.stored\.buffer"
    for attribute in ("obs", "obs_next", "act", "info", "adv"):
        with pytest.raises(AttributeError, match=where):
            getattr(ours, attribute)
        with pytest.raises(AttributeError, match=where):
            getattr(ours._meta, attribute)
    for key in ("obs", np.arange(3)):
        with pytest.raises(KeyError, match=where):
            ours._meta[key]
    with pytest.raises(KeyError, match=where):
        ours.get(0, "adv")
    assert ours.get(0, "adv", 7) == 7
    with pytest.raises(IndexError, match="1 steps were added"):
        ours[1]
    with pytest.raises(db.InputError, match="has no longer stacks"):
        ours.get(0, "obs", stack_num=2)
    with pytest.raises(db.InputError, match="needs no saving"):
        ours.save_hdf5(str(tmp_path / "saved.hdf5"))
    for make in (DiskReplayBuffer.load_hdf5, DiskReplayBuffer.from_data):
        with pytest.raises(db.InputError, match="added with `update`"):
            make(str(tmp_path / "saved.hdf5"))
    for change in (ours.set_batch, ours.dropnull):
        with pytest.raises(db.InputError, match="nothing is changed or taken out"):
            change()
    assert len(ours) == 1


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
        ReplayBuffer(40),
        DiskReplayBuffer(40, path=tmp_path / "store"),
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
    same(theirs[:], DiskReplayBuffer(40, path=tmp_path / "store")[:])


@pytest.mark.parametrize("last", [False, True])  # whether the newest frame of observations alone is kept, once
def test_another_buffer_is_taken_over(last: bool, tmp_path: Path) -> None:
    world, source = Environment(60), ReplayBuffer(20, save_only_last_obs=last)
    for _ in range(30):
        source.add(in_stacks(world.step()) if last else world.step())
    theirs = ReplayBuffer(50, save_only_last_obs=last)
    ours = DiskReplayBuffer(50, path=tmp_path / "store", save_only_last_obs=last)
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


def test_stacks_begin_with_their_episode(tmp_path: Path) -> None:
    ours = DiskReplayBuffer(20, path=tmp_path / "store", stack_num=3)
    for t in range(6):
        ours.add(Batch(numbered(t), terminated=t == 2))
    found = ours[np.arange(6)]
    assert found.obs[:, :, 0].tolist() == [[0, 0, 0], [0, 0, 1], [0, 1, 2], [3, 3, 3], [3, 3, 4], [3, 4, 5]]
    assert found.obs_next[:, :, 0].tolist() == [[0, 0, 1], [0, 1, 2], [1, 2, 3], [3, 3, 4], [3, 4, 5], [4, 5, 6]]
    assert ours.get(np.array([2, 5]), "obs", stack_num=2)[:, :, 0].tolist() == [[1, 2], [4, 5]]
    plain = DiskReplayBuffer(20, path=tmp_path / "plain")
    plain.update(ours)
    assert plain[:].obs.tolist() == ours.get(np.arange(6), "obs", stack_num=1).tolist()
    with pytest.raises(db.InputError, match="takes no other buffer over"):
        DiskVectorReplayBuffer(20, 2, path=tmp_path / "several").update(ours)


def test_misuse_is_told(tmp_path: Path) -> None:
    world, ours = Environment(80), DiskReplayBuffer(50, path=tmp_path / "store")
    ours.add(world.step())
    for buffer in (ours, DiskReplayBuffer(50, path=tmp_path / "none")):
        with pytest.raises(db.InputError, match="action: expected"):
            buffer.add(Batch(world.step(), act=np.array("up", object)))
    with pytest.raises(db.InputError, match=r"obs/agent_id: expected numbers.*env\.agents\.index\(agent_id\)"):
        DiskReplayBuffer(50, path=tmp_path / "none").add(Batch(world.step(), obs=Batch(agent_id="player_1", obs=np.zeros(3))))
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


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({}, "DiskVectorReplayBuffer needs path="),
        ({"path": "store", "stack_nun": 4}, "DiskVectorReplayBuffer takes no stack_nun=; it takes path, .*stack_num"),
        ({"path": "store", "total_size": 0}, "total_size must be an integer of at least 1, found 0"),
        ({"path": "store", "buffer_num": 0}, "buffer_num must be an integer of at least 1, found 0"),
    ],
)
def test_arguments_that_are_not_tianshous_are_refused(arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(db.InputError, match=says):
        DiskVectorReplayBuffer(**{"total_size": 40, "buffer_num": 2, **arguments})


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
def test_losses_are_identical(of: str, tmp_path: Path) -> None:
    updates, size = (250, 1000) if of == "dqn" else (6, 2000)
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


def test_an_episode_longer_than_the_ring_is_counted_on_after_a_reset(tmp_path: Path) -> None:
    with contextlib.closing(DiskReplayBuffer(5, path=tmp_path / "store")) as buffer:
        buffer.add(numbered(0))
    ours, theirs = DiskReplayBuffer(5, path=tmp_path / "store"), ReplayBuffer(5)
    ours.reset()
    for t in range(9):
        told = [buffer.add(numbered(t)) for buffer in (ours, theirs)]
        if t == 7:
            ours.sample(2)
        for mine, their in zip(*told, strict=True):
            assert mine.tolist() == their.tolist()


@pytest.mark.some(1)
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
    with pytest.raises(db.InputError, match="does not fit"):
        ours.add(Batch(step, obs=step.obs / 255))
    with pytest.raises(db.InputError, match="does not fit"):
        ours.add(Batch(step, act=0.5))
    assert len(ours) == 2


def test_keys_that_come_with_another_meta_are_written(tmp_path: Path) -> None:
    ours = DiskReplayBuffer(20, path=tmp_path / "store")
    for t in range(20):
        ours.add(numbered(t))
    ours._meta = Batch(**ours._meta.__dict__, calibration_returns=np.arange(20.0))  # as CQL does
    assert ours[np.array([3, 5])].calibration_returns.tolist() == [3, 5]
    assert len(ours) == 20


@pytest.mark.some(2)
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
