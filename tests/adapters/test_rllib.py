"""RLlib's episodes in a store: what its own buffer returns for the same steps."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

import diskbuffer as db
from tests.amounts import examples

pytest.importorskip("ray.rllib.env.single_agent_episode", reason="needs RLlib: see docs/adapters.md")

from ray.rllib.algorithms.algorithm import Algorithm
from ray.rllib.algorithms.dqn import DQNConfig
from ray.rllib.env.single_agent_episode import SingleAgentEpisode
from ray.rllib.utils.replay_buffers.episode_replay_buffer import EpisodeReplayBuffer

from diskbuffer.adapters.rllib import DiskEpisodeReplayBuffer, DiskPrioritizedEpisodeReplayBuffer, DiskSACConfig

pytestmark = pytest.mark.filterwarnings("ignore")  # RLlib's own
SPACES = {"observation_space": spaces.Box(-1e6, 1e6, (3,), np.float32), "action_space": spaces.Discrete(1000)}


class Environments:
    """Episodes of several environments, in parts of any length, as an EnvRunner returns them."""

    def __init__(self, random: np.random.Generator, count: int) -> None:
        self._random, self._number = random, 0
        self._running = [self._new() for _ in range(count)]

    def _new(self) -> SingleAgentEpisode:
        self._number += 1
        episode = SingleAgentEpisode(**SPACES)
        episode.add_env_reset(np.array([self._number, 0, 0], np.float32))
        return episode

    def parts(self, length: int) -> list[SingleAgentEpisode]:
        """Act in each environment for so many steps; return what that gave."""
        found = []
        for n, episode in enumerate(self._running):
            for _ in range(length):
                t, ends = episode.t, self._random.random(2) < 0.1
                number = episode.get_observations(-1)[0]
                obs = np.array([number, t + 1, 0], np.float32)
                episode.add_env_step(obs, t % 1000, float(t), terminated=bool(ends[0]), truncated=bool(ends[1] and not ends[0]))
                if episode.is_done:
                    found.append(episode)
                    episode = self._new()
            if len(episode):
                found.append(episode)
                episode = episode.cut()
            self._running[n] = episode
        return found


def told(episode: SingleAgentEpisode) -> tuple[Any, ...]:
    """Return what a learner gets of a sampled step, but for its end."""
    obs = [tuple(map(float, one)) for one in episode.get_observations()]
    return (*obs, int(episode.get_actions(0)), round(float(episode.get_rewards(0)), 3), episode.t_started)


def ends(episodes: list[SingleAgentEpisode]) -> set[tuple[Any, ...]]:
    """Return the observations after which episodes ended, and how they did."""
    found = [(tuple(map(float, one.get_observations(-1))), one.is_terminated, one.is_truncated) for one in episodes]
    return {one for one in found if one[1] or one[2]}


@given(seed=st.integers(0, 10**6), n_step=st.sampled_from([1, 3, (2, 3)]))
@examples(1, 30)
def test_samples_are_those_of_rllibs_own_buffer(
    seed: int, n_step: int | tuple[int, int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    random = np.random.default_rng(seed)
    path = tmp_path_factory.mktemp("rllib")
    theirs, ours = EpisodeReplayBuffer(10_000), DiskEpisodeReplayBuffer(10_000, path=path / "store", streams=3, seed=seed)
    environments = Environments(random, int(random.integers(1, 3)))
    for _ in range(3):
        parts = environments.parts(int(random.integers(1, 6)))
        theirs.add(parts)
        ours.add(parts)
        assert len(ours) == len(theirs)
        assert ours.get_num_episodes() == theirs.get_num_episodes()
        assert ours.get_added_timesteps() == theirs.get_added_timesteps()
    how: dict[str, Any] = {"n_step": n_step, "gamma": 0.5, "sample_episodes": True}
    drawn = [buffer.sample(400, **how) for buffer in (theirs, ours)]
    assert set(map(told, drawn[0])) == set(map(told, drawn[1]))  # so many draws have every step
    # Theirs forgets how an episode ended where n steps would reach further.
    assert ends(drawn[1]) == ends(theirs.sample(400, **{**how, "n_step": 1}))
    both = [set(buffer.sample(8, **how)[0].extra_model_outputs) for buffer in (theirs, ours)]
    assert both[0] == both[1]
    long = ours.sample(64, n_step=1, batch_length_T=5, lookback=1, sample_episodes=True)
    for episode in long:
        obs = np.array(episode.get_observations())
        assert 1 <= len(episode) <= 5
        assert (np.diff(obs[:, 1]) == 1).all()
        assert (obs[:, 0] == obs[0, 0]).all()
        assert int(obs[0, 1]) == episode.t_started == int(episode.get_actions(0))
    assert ours.get_metrics().keys() == theirs.get_metrics().keys()
    if ours.buffer.episodes.length.max() > 2:
        few = ours.sample(16, n_step=1, batch_length_T=5, min_batch_length_T=2, sample_episodes=True)
        assert min(map(len, few)) > 2
    with pytest.raises(db.errors.EmptyBufferError, match="longest"):
        ours.sample(16, n_step=1, batch_length_T=100, min_batch_length_T=90, sample_episodes=True)
    ours.close()


def test_priorities_and_steps_are_there_when_it_is_made_again(tmp_path: Path) -> None:
    def make() -> DiskPrioritizedEpisodeReplayBuffer:
        return DiskPrioritizedEpisodeReplayBuffer(1_000, path=tmp_path / "store", alpha=1.0, seed=0)

    buffer, parts = make(), Environments(np.random.default_rng(0), 2).parts(25)
    with pytest.raises(db.errors.EmptyBufferError):
        buffer.sample(4, sample_episodes=True)
    buffer.add(parts)
    found = buffer.sample(500, n_step=1, beta=1.0, sample_episodes=True)
    with pytest.raises(db.InputError, match="sequences have no priorities"):
        buffer.sample(8, n_step=1, batch_length_T=5, sample_episodes=True)
    with pytest.raises(db.InputError, match="has 500 steps, found 3"):
        buffer.update_priorities(np.ones(3))
    buffer.update_priorities(np.array([1.0 if told(one)[2] == 7 else 0.0 for one in found]))
    assert {told(one)[2] for one in buffer.sample(50, n_step=1, beta=0.5, sample_episodes=True)} == {7}
    state = buffer.get_state()
    buffer.close()
    again = make()
    again.set_state(state)
    assert len(again) == again.get_num_timesteps() == again.get_added_timesteps() == 50
    assert again.get_num_episodes() == len(parts)
    assert {told(one)[2] for one in again.sample(50, n_step=1, beta=0.5, sample_episodes=True)} == {7}
    again.add(Environments(np.random.default_rng(1), 1).parts(1))
    assert len(again) == 51
    assert sum(told(one)[2] == 7 for one in again.sample(50, n_step=1, sample_episodes=True)) > 10
    with pytest.raises(db.InputError, match="path"):
        again.set_state({**state, "path": "/elsewhere"})
    again.close()


def test_a_buffer_that_is_made_again_is_sampled_at_once(tmp_path: Path) -> None:
    parts, how = Environments(np.random.default_rng(0), 2).parts(25), dict[str, Any](n_step=1, sample_episodes=True)
    values: dict[str, Any] = {"observations": [{"a b": np.zeros(2)}] * 3, "actions": [0, 1], "rewards": [0.0, 1.0]}
    with_keys = [SingleAgentEpisode(**values, len_lookback_buffer=0)]
    for number, episodes in enumerate((parts, with_keys)):
        path, steps = tmp_path / str(number), sum(map(len, episodes))
        writer = DiskEpisodeReplayBuffer(1_000, path=path, seed=0)
        writer.add(episodes)
        reader, drawn = DiskEpisodeReplayBuffer(1_000, path=path, seed=0), writer.sample(400, **how)
        assert len(reader) == len(writer) == steps  # while the other writes
        writer.close()
        found = reader.sample(400, to_numpy=number == 1, **how)
        assert {one.t_started for one in found} == {one.t_started for one in drawn}
        if number == 0:
            assert set(map(told, found)) == set(map(told, drawn))
        reader.add(episodes)
        assert len(reader) == 2 * steps
        reader.close()
        assert len(reader) == 2 * steps
        reader.close()
        with pytest.raises(db.InputError, match="capacity=1000, found 2000"):
            DiskEpisodeReplayBuffer(2_000, path=path)


@pytest.mark.parametrize("how", [{"n_step": (1, 4)}, {"batch_length_T": 4}])
def test_a_state_has_all_that_draws_depend_on(how: dict[str, Any], tmp_path: Path) -> None:
    def drawn(buffer: DiskEpisodeReplayBuffer) -> list[tuple[int, int]]:
        sampled = buffer.sample(60, sample_episodes=True, **how)
        return [(one.t_started, int(one.extra_model_outputs["n_step"][0])) for one in sampled]

    buffer = DiskEpisodeReplayBuffer(1_000, path=tmp_path / "store", seed=3)
    buffer.add(Environments(np.random.default_rng(0), 2).parts(25))
    drawn(buffer)
    state = buffer.get_state()
    came = [drawn(buffer) for _ in range(3)]
    buffer.set_state(state)
    assert [drawn(buffer) for _ in range(3)] == came
    with pytest.raises(db.InputError, match="slices"):
        buffer.set_state({"path": state["path"]})
    every: list[Any] = [[1, 3], (1, 1), (1, 2, 3), (1.5, 3), (2,), 0]
    for wrong in every:
        with pytest.raises(db.InputError, match="n_step must be"):
            buffer.sample(5, sample_episodes=True, n_step=wrong)
    buffer.close()


class Model:
    """What was added, in plain Python: of each environment's episodes, the rewards, and how they ended."""

    def __init__(self, random: np.random.Generator, envs: int) -> None:
        self._random, self._number = random, 0
        self.episodes: dict[int, tuple[list[float], bool, bool]] = {}  # rewards, terminated, truncated; by number
        self._running = [self._new(env) for env in range(envs)]

    def _new(self, env: int) -> SingleAgentEpisode:
        self._number += 1
        episode = SingleAgentEpisode(**SPACES)
        episode.add_env_reset(np.array([self._number, 0, env], np.float32))
        return episode

    def parts(self) -> list[SingleAgentEpisode]:
        """Act in some environments for some steps; return what that gave, in any order."""
        found = []
        for env in self._random.permutation(len(self._running))[: self._random.integers(1, len(self._running) + 1)].tolist():
            episode, ends = self._running[env], self._random.random() < 0.15
            for n in range(steps := int(self._random.integers(1, 6))):
                number, t = int(episode.get_observations(-1)[0]), episode.t
                reward, last = float(self._random.integers(-8, 9)), ends and n == steps - 1
                flags = dict(zip(("terminated", "truncated"), self._random.permutation([last, False]).tolist(), strict=True))
                episode.add_env_step(np.array([number, t + 1, env], np.float32), t % 1000, reward, **flags)
                rewards, *_ = self.episodes.setdefault(number, ([], False, False))
                rewards.append(reward)
                self.episodes[number] = rewards, flags["terminated"], flags["truncated"]
            found.append(episode)
            self._running[env] = self._new(env) if ends else episode.cut()
        return found

    def row(self, sampled: SingleAgentEpisode, n_step: int, gamma: float) -> tuple[Any, ...]:
        """Return what a sampled row must be, by the observation that it begins with."""
        number, first, env = sampled.get_observations(0).astype(int).tolist()
        rewards, terminated, truncated = self.episodes[number]
        n = min(n_step, len(rewards) - first)
        summed, at_end = sum(gamma**k * rewards[first + k] for k in range(n)), first + n == len(rewards)
        return [number, first + n, env], first % 1000, round(summed, 4), n, terminated and at_end, truncated and at_end


@pytest.mark.some(3)
@pytest.mark.parametrize("n_step", [1, 3, (2, 5)])
@pytest.mark.parametrize("envs", [1, 7, 16, 17, 40, 64])
@pytest.mark.parametrize("kind", [DiskEpisodeReplayBuffer, DiskPrioritizedEpisodeReplayBuffer])
def test_rows_of_any_number_of_environments_are_those_of_a_plain_model(
    kind: type[DiskEpisodeReplayBuffer], envs: int, n_step: int | tuple[int, int], tmp_path: Path, amount: Any
) -> None:
    model, buffer, gamma = Model(np.random.default_rng(envs), envs), kind(100_000, path=tmp_path / "store", seed=0), 0.5
    drawn = 0
    while drawn < amount(500, 5_000):
        for _ in range(5):
            buffer.add(model.parts())
        assert buffer.get_num_episodes() == len(model.episodes)
        assert len(buffer) == sum(len(rewards) for rewards, *_ in model.episodes.values())
        rows = buffer.sample(100, n_step=n_step, gamma=gamma, beta=0.4, sample_episodes=True)
        for row in rows:
            n, last = row.extra_model_outputs["n_step"][0], row.get_observations(-1).astype(int).tolist()
            found = last, int(row.get_actions(0)), round(float(row.get_rewards(0)), 4), n, row.is_terminated, row.is_truncated
            assert found in [model.row(row, at_most, gamma) for at_most in ([n_step] if isinstance(n_step, int) else [2, 3, 4])]
        if kind is DiskPrioritizedEpisodeReplayBuffer:
            buffer.update_priorities(np.random.default_rng(drawn).random(len(rows)))
        drawn += len(rows)
    buffer.close()
    again = kind(100_000, path=tmp_path / "store", seed=0)
    again.add(model.parts())
    assert len(again) == sum(len(rewards) for rewards, *_ in model.episodes.values())
    again.close()


def test_as_many_streams_as_were_asked_for_and_no_more(tmp_path: Path) -> None:
    buffer = DiskEpisodeReplayBuffer(500, path=tmp_path / "store", streams=2)
    parts = Environments(np.random.default_rng(1), 3).parts(1)
    assert not any(part.is_done for part in parts)
    buffer.add(parts[:2])
    with pytest.raises(db.InputError, match=r"3 episodes are under way at the same time, and streams=2"):
        buffer.add(parts[2:])
    assert len(buffer) == 2
    buffer.close()
    with pytest.raises(db.InputError, match="has streams=2, found 3; leave streams= out"):
        DiskEpisodeReplayBuffer(500, path=tmp_path / "store", streams=3)
    with pytest.raises(db.InputError, match="have capacity=500, found 10000; give that"):
        DiskEpisodeReplayBuffer(path=tmp_path / "store")


@pytest.mark.nightly
def test_episodes_that_were_evicted_are_told_from_those_that_are_there(tmp_path: Path) -> None:
    buffer, environments = DiskEpisodeReplayBuffer(500, path=tmp_path / "store"), Environments(np.random.default_rng(0), 2)
    begun = set[str]()
    for _ in range(15):
        parts = environments.parts(50)
        begun |= {episode.id_ for episode in parts}
        buffer.add(parts)
        assert buffer.get_num_episodes() == len(buffer.buffer.episodes)
    assert buffer.get_num_episodes_evicted() == len(begun) - buffer.get_num_episodes() > 0
    assert buffer.get_added_timesteps() == 1_500
    buffer.close()


def test_an_episode_that_was_refused_and_comes_again_is_one_of_its_own(tmp_path: Path) -> None:
    buffer, other = DiskEpisodeReplayBuffer(500, path=tmp_path / "store", streams=2), SingleAgentEpisode(**SPACES)
    buffer.add(Environments(np.random.default_rng(0), 1).parts(1))  # which goes on
    other.add_env_reset(np.array([2, 0, 0], np.float32))
    other.add_env_step(np.array([2, 1, 0], np.float32), 0, float("nan"))
    with pytest.raises(db.InputError, match="reward"):
        buffer.add(other)
    other.rewards[0] = 0.0
    buffer.add(other)
    assert [buffer.buffer.episode(n)["obs"][:, 0].tolist() for n in buffer.buffer.episodes] == [[1, 1], [2, 2]]
    buffer.close()


@pytest.mark.nightly
@pytest.mark.parametrize("kind", ["DQN", "SAC"])
def test_an_algorithm_that_is_restored_has_the_same_buffer(kind: str, cluster: None, tmp_path: Path) -> None:
    path, name = tmp_path / "store", "diskbuffer.adapters.rllib.DiskPrioritizedEpisodeReplayBuffer"
    config: Any = DQNConfig().environment("CartPole-v1") if kind == "DQN" else DiskSACConfig().environment("Pendulum-v1")
    config.env_runners(num_env_runners=0).debugging(seed=0)
    config.training(
        replay_buffer_config={"type": name, "path": str(path), "capacity": 10_000, "alpha": 1.0, "beta": 1.0},
        train_batch_size=16,
        num_steps_sampled_before_learning_starts=64,
    )
    algorithm = config.reporting(min_sample_timesteps_per_iteration=100).build_algo()
    algorithm.train()
    steps = len(algorithm.local_replay_buffer)
    algorithm.save_to_path(str(tmp_path / "checkpoint"))
    algorithm.stop()
    algorithm.local_replay_buffer.close()
    for there in (steps, 0):
        restored = Algorithm.from_checkpoint(str(tmp_path / "checkpoint"))
        buffer = restored.local_replay_buffer
        assert type(buffer) is DiskPrioritizedEpisodeReplayBuffer
        assert len(buffer) == there
        restored.train()
        assert len(buffer) >= there + 100
        restored.stop()
        buffer.close()
        shutil.rmtree(path)
    columns = {"obs": db.Column((2,)), "action": db.Column()}
    db.ReplayBuffer(path, 10_000, columns=columns, writer="0", n_envs=16, autoreset="disabled").close()  # of another environment
    restored = Algorithm.from_checkpoint(str(tmp_path / "checkpoint"))
    with pytest.raises(db.errors.SchemaError, match="obs: stored"):
        restored.train()
    restored.stop()
    restored.local_replay_buffer.close()
