"""RLlib's episode replay buffers, with their steps in a store on disk, for ``replay_buffer_config={"type": ..., "path": ...}``.

RLlib makes them in the process of the algorithm. Where it tells kinds of buffers apart, it looks for "EpisodeReplayBuffer" in the
name, so give the whole name as a string: ``"diskbuffer.adapters.rllib.DiskEpisodeReplayBuffer"``.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from ray.rllib.core import DEFAULT_AGENT_ID, DEFAULT_MODULE_ID
from ray.rllib.env.single_agent_episode import SingleAgentEpisode
from ray.rllib.env.utils.infinite_lookback_buffer import InfiniteLookbackBuffer
from ray.rllib.utils.replay_buffers.episode_replay_buffer import EpisodeReplayBuffer
from ray.rllib.utils.replay_buffers.prioritized_episode_buffer import PrioritizedEpisodeReplayBuffer
from torch.utils._pytree import tree_map

from diskbuffer import Column, Prioritized, ReplayBuffer, Sampler, Slices, Uniform
from diskbuffer.errors import EmptyBufferError, InputError, SchemaError
from diskbuffer.plugin import Batch, SharedStore, escape_key, integer, integer_or_none, one_of

Int64 = npt.NDArray[np.int64]


class DiskEpisodeReplayBuffer(EpisodeReplayBuffer):  # type: ignore[misc]
    """Stand in for RLlib's `EpisodeReplayBuffer`, of single agents: DQN, SAC, CQL.

    Parameters
    ----------
    capacity : int
        Steps to keep.
    path : path-like
        Of the store. A buffer that is made with the same path goes on with what is there.
    streams : int
        Episodes that may be under way at the same time, one in each environment.
    batch_size_B, batch_length_T, metrics_num_episodes_for_smoothing
        As RLlib has them.
    seed : int, optional
        For the draws; RLlib's own have none.

    Notes
    -----
    Infos and outputs of the model are not kept. What leaves first is not the oldest episode but the oldest steps, a segment at a
    time. A checkpoint has the path, and not the steps.
    """

    def __init__(
        self,
        capacity: int = 10_000,
        *,
        path: str | os.PathLike[str],
        streams: int = 16,
        batch_size_B: int = 16,
        batch_length_T: int = 64,
        metrics_num_episodes_for_smoothing: int = 100,
        seed: int | None = None,
        **_: Any,
    ) -> None:
        capacity, seed = integer("capacity", capacity), integer_or_none("seed", seed, 0, None)
        EpisodeReplayBuffer.__init__(
            self,
            capacity,
            batch_size_B=integer("batch_size_B", batch_size_B),
            batch_length_T=integer("batch_length_T", batch_length_T),
            metrics_num_episodes_for_smoothing=metrics_num_episodes_for_smoothing,
        )
        self._recording = _Recording(path, capacity, integer("streams", streams))
        self._random, self._seed = np.random.default_rng(seed), seed
        self._sampler: Sampler | None = None
        self._slices: dict[tuple[int, int], Slices] = {}  # by length and lookback
        self._evicted = (0, 0)  # episodes and steps, as far as the metrics have them

    @property
    def buffer(self) -> Any:
        """The `ReplayBuffer`; None before the first step, and open for reading until the first that is added here."""
        return self._recording.open_to_read()

    # Writing

    def add(self, episodes: SingleAgentEpisode | Sequence[SingleAgentEpisode], weight: float | None = None) -> None:
        """Add episodes, or the next parts of episodes that are under way; in the store when this returns."""
        if weight is not None:
            raise InputError("steps enter with the largest priority there is; leave weight= out")
        added = episodes if isinstance(episodes, list | tuple) else [episodes]
        steps = sum(len(episode) for episode in added)
        begun = sum(self._recording.add(episode) for episode in added)
        gone = self._recording.evicted()
        lost_episodes, lost_steps = (max(0, now - before) for now, before in zip(gone, self._evicted, strict=True))
        self._evicted = gone
        numbers = {"num_episodes_added": begun, "num_steps_added": steps}
        numbers |= {"num_episodes_evicted": lost_episodes, "num_steps_evicted": lost_steps}
        self._update_add_metrics(**_of_agents(numbers))

    # Reading

    def sample(
        self,
        num_items: int | None = None,
        *,
        batch_size_B: int | None = None,
        batch_length_T: int | None = None,
        n_step: int | tuple[int, int] | None = None,
        beta: float | None = None,
        gamma: float = 0.99,
        sample_episodes: bool | None = False,
        include_infos: bool = False,
        include_extra_model_outputs: bool = False,
        to_numpy: bool = False,
        lookback: int = 0,
        min_batch_length_T: int = 0,
        **_: Any,
    ) -> list[SingleAgentEpisode]:
        """Draw episodes of one step, or of n steps made one, or of `batch_length_T` steps, as RLlib's buffer does."""
        if not sample_episodes:
            raise InputError("only sample_episodes=True is offered, which DQN, SAC and CQL ask for; DreamerV3's batches are not")
        if include_infos or include_extra_model_outputs:
            raise InputError("infos and outputs of the model are not kept; leave include_infos= and include_extra_model_outputs=")
        if self.buffer is None:
            raise EmptyBufferError("the buffer holds no complete step yet; add some before sampling")
        size = integer("num_items", num_items or batch_size_B or self.batch_size_B)
        length = integer_or_none("batch_length_T", batch_length_T, 0)
        if length:
            sampled = self._sequences(size, length, lookback, min_batch_length_T)
        else:
            sampled = self._single(size, 1 if n_step is None else n_step, gamma, beta)
        if to_numpy:
            for episode in sampled:
                episode.to_numpy()
        self._count(size, sampled)
        return sampled

    def _draw(self, size: int, beta: float | None) -> tuple[Int64, npt.NDArray[np.float32]]:
        """Return the ids of steps, and their weights."""
        if self._sampler is None:
            self._sampler = self._new_sampler()
        if isinstance(self._sampler, Prioritized) and beta is not None:
            self._sampler.beta = float(beta)
        drawn = self.buffer.draw(size, self._sampler)
        return drawn["steps"], drawn.get("weights", np.ones(size, np.float32))

    def _new_sampler(self) -> Sampler:
        return Uniform(self._seed)

    def _single(self, size: int, n_step: int | tuple[int, int], gamma: float, beta: float | None) -> list[SingleAgentEpisode]:
        steps, weights = self._draw(size, beta)
        self._drawn = steps
        each = self._random.integers(*n_step, size) if isinstance(n_step, tuple) else np.full(size, integer("n_step", n_step))
        episodes: list[Any] = [None] * size
        for n in np.unique(each).tolist():
            which = np.flatnonzero(each == n)
            batch = self.buffer.at(steps[which], n_step=n, gamma=gamma, numpy=True)
            for place, episode in zip(which.tolist(), self._made(batch, weights[which], n), strict=True):
                episodes[place] = episode
        return episodes

    def _made(self, batch: Batch, weights: npt.NDArray[np.float32], n_step: int) -> list[SingleAgentEpisode]:
        """Return an episode of one step for each row."""
        spaces, starts = self._recording.spaces, self.buffer.episodes.elapsed(batch["steps"]).tolist()
        ends = zip(batch["terminated"].tolist(), batch["truncated"].tolist(), strict=True)
        return [
            SingleAgentEpisode(
                observations=[one_of(batch["obs"], n), one_of(batch["next_obs"], n)],
                actions=[one_of(batch["action"], n)],
                rewards=[batch["reward"][n]],
                infos=[{}, {}],
                terminated=terminated,
                truncated=truncated,
                extra_model_outputs={"n_step": [n_step], "weights": [weights[n]]},
                t_started=starts[n],
                len_lookback_buffer=0,
                **spaces,
            )
            for n, (terminated, truncated) in enumerate(ends)
        ]

    def _sequences(self, size: int, length: int, lookback: int, least: int) -> list[SingleAgentEpisode]:
        """Return parts of episodes, each of so many steps or up to the episode's end, until they have enough together."""
        self.buffer.draw(1, Slices(least + 1))  # an EmptyBufferError where no episode is that long
        sampler = self._slices.get((length, lookback))
        if sampler is None:
            sampler = Slices(length, int(self._random.integers(2**63)), strict=False, burn_in=lookback)
            self._slices[length, lookback] = sampler
        sequences: list[SingleAgentEpisode] = []
        left, least = size, min(least, length - 1)
        while left > 0:
            batch = tree_map(torch.Tensor.numpy, self.buffer.sample(-(-left // (length + 1)), sampler))
            for n in range(len(batch["steps"])):
                present = batch["mask"][n]
                count = int(present[lookback:].sum())
                if count > least and left > 0:
                    sequences.append(self._part(one_of(batch, n), present, int(present[:lookback].sum())))
                    left -= count + 1
        return sequences

    def _part(self, rows: Any, present: npt.NDArray[np.bool_], before: int) -> SingleAgentEpisode:
        """Return the rows that are present, of which some are before the part, as an episode."""
        rows = one_of(rows, present)
        steps, n = rows["steps"], len(rows["steps"])
        observations = [one_of(rows["obs"], t) for t in range(n)] + [one_of(rows["next_obs"], n - 1)]
        ones = {"n_step": np.ones(n, np.int64), "weights": np.ones(n)}
        return SingleAgentEpisode(
            observations=observations,
            actions=[one_of(rows["action"], t) for t in range(n)],
            rewards=rows["reward"].tolist(),
            infos=[{} for _ in observations],
            terminated=bool(rows["terminated"][-1]),
            truncated=bool(rows["truncated"][-1]),
            extra_model_outputs={name: InfiniteLookbackBuffer(values, lookback=before) for name, values in ones.items()},
            t_started=int(self.buffer.episodes.elapsed(steps[:1])[0]) + before,
            len_lookback_buffer=before,
            **self._recording.spaces,
        )

    def _count(self, size: int, sampled: list[SingleAgentEpisode]) -> None:
        """Tell RLlib's metrics of a batch. Which rows are of one episode is not looked up: each counts as one."""
        self.sampled_timesteps += size
        n_step = sum(episode.extra_model_outputs["n_step"][0] for episode in sampled) / max(len(sampled), 1)
        numbers = {"num_steps_sampled": size, "num_episodes_per_sample": len(sampled), "num_steps_per_sample": size}
        self._update_sample_metrics(**_of_agents({**numbers, "sampled_n_step": n_step, "num_resamples": 0}))

    # Looking

    def __len__(self) -> int:
        """Return how many steps can be sampled."""
        return 0 if self.buffer is None else len(self.buffer)

    def get_num_timesteps(self, module_id: Any = None) -> int:
        """Return how many steps can be sampled."""
        return len(self)

    def get_num_episodes(self, module_id: Any = None) -> int:
        """Return how many episodes there are steps of."""
        return self._recording.episodes()

    def get_num_episodes_evicted(self, module_id: Any = None) -> int:
        """Return how many episodes were evicted since this buffer was made."""
        return self._recording.evicted()[0]

    def get_added_timesteps(self, module_id: Any = None) -> int:
        """Return how many steps were ever added."""
        return self._recording.added()

    # State

    def get_state(self) -> dict[str, Any]:
        """Return the path, and how many steps were sampled; the steps are in the store."""
        self._recording.flush()
        sampler = None if self._sampler is None else self._sampler.state_dict()
        return {"path": str(self._recording.path), "sampled_timesteps": self.sampled_timesteps, "sampler": sampler}

    def set_state(self, state: dict[str, Any]) -> None:
        """Go on from a state; the store at its path must be this buffer's."""
        if str(state.get("path")) != str(self._recording.path):
            raise InputError(
                f"this state is of the store at {state.get('path')}, and this buffer's is at {self._recording.path}; "
                "make the buffer with that path"
            )
        self.sampled_timesteps = state["sampled_timesteps"]
        if state["sampler"] is not None:
            self._sampler = self._new_sampler()
            self._sampler.load_state_dict(state["sampler"])

    def close(self) -> None:
        """Close the store."""
        self._recording.close()


class DiskPrioritizedEpisodeReplayBuffer(DiskEpisodeReplayBuffer, PrioritizedEpisodeReplayBuffer):  # type: ignore[misc]
    """Stand in for RLlib's `PrioritizedEpisodeReplayBuffer`. Priorities are a column of the store, and outlive this process.

    Parameters
    ----------
    alpha : float
        As of `Prioritized`; ``beta`` comes from ``replay_buffer_config``.
    """

    def __init__(self, capacity: int = 10_000, *, alpha: float = 1.0, **options: Any) -> None:
        super().__init__(capacity, **options)
        self._alpha = alpha

    def _draw(self, size: int, beta: float | None) -> tuple[Int64, npt.NDArray[np.float32]]:
        self._recording.open_to_write()  # as priorities are a column of the store
        return super()._draw(size, beta)

    def _new_sampler(self) -> Sampler:
        return Prioritized(alpha=self._alpha, seed=self._seed)

    def _sequences(self, *_: Any) -> list[SingleAgentEpisode]:
        raise InputError("sequences have no priorities, in RLlib as here; take DiskEpisodeReplayBuffer, or no batch_length_T")

    def update_priorities(self, priorities: npt.NDArray[Any], module_id: Any = None) -> None:
        """Set the priorities of the steps of the last batch."""
        assert isinstance(self._sampler, Prioritized)
        self._sampler.update(self._drawn, np.abs(priorities))


class _Recording(SharedStore):
    """Record parts of episodes as they come. The first one tells what the columns are.

    Attributes
    ----------
    spaces : dict
        ``observation_space`` and ``action_space`` of the episodes, once one was added.
    """

    def __init__(self, path: str | os.PathLike[str], capacity: int, streams: int) -> None:
        super().__init__(path, n_envs=streams, autoreset="disabled")
        self._capacity, self._streams = capacity, streams
        self.spaces: dict[str, Any] = {}
        self._under_way: dict[str, int] = {}  # the stream of each episode, the one that was added to longest ago first
        self._begun, self._steps_gone = 0, 0  # episodes there were or began, and steps evicted when the store was opened
        self._evicted = (0, 0)  # episodes and steps since then, when it was asked last
        self.open_to_read()

    def accept(self, opened: ReplayBuffer) -> None:
        """Note what is there; a SchemaError where it is of another size."""
        if opened.capacity != self._capacity:
            raise SchemaError(
                f"{self.path} keeps {opened.capacity} steps, and {self._capacity} are asked for; give "
                f"capacity={opened.capacity}, or another path"
            )
        self._begun, self._steps_gone, self._evicted = len(opened.episodes), _gone(opened), (0, 0)

    def open_to_write(self, **how: Any) -> ReplayBuffer:
        """Open it for writing, as a store of this capacity."""
        return super().open_to_write(capacity=self._capacity, **how)

    def add(self, episode: Any) -> bool:
        """Record an episode, or the next part of one; return whether it is a new one."""
        if not self.spaces or not self.writes:
            self._open(episode)
        is_new, ends = episode.id_ not in self._under_way, (episode.is_terminated, episode.is_truncated)
        if not len(episode):
            return False
        stream = self._stream(episode.id_)
        flags = [np.arange(len(episode)) == (len(episode) - 1 if end else -1) for end in ends]
        self.opened.extend(
            obs=_stacked(episode.get_observations()),
            action=_stacked(episode.get_actions()),
            reward=np.asarray(episode.get_rewards(), np.float32),
            terminated=flags[0],
            truncated=flags[1],
            env=stream,
            new_episode=is_new,
        )
        self._begun += is_new
        if any(ends):
            del self._under_way[episode.id_]
        return is_new

    def _stream(self, episode: str) -> int:
        """Return the stream of an episode; of the one that is silent for longest, where there is none left."""
        stream = self._under_way.pop(episode, None)
        if stream is None:
            free = set(range(self._streams)) - set(self._under_way.values())
            stream = min(free) if free else self._under_way.pop(next(iter(self._under_way)))
        self._under_way[episode] = stream
        return stream

    def _open(self, episode: Any) -> None:
        self.spaces = {"observation_space": episode.observation_space, "action_space": episode.action_space}
        columns: dict[str, Any] = {}
        if None in self.spaces.values():
            obs, action = _stacked(episode.get_observations()), _stacked(episode.get_actions())
            columns = {"columns": {**_columns("obs", obs), **_columns("action", action)}}
        self.open_to_write(**(columns or self.spaces))

    def episodes(self) -> int:
        """Return how many episodes there are steps of."""
        return self._begun - self.evicted()[0]

    def added(self) -> int:
        """Return how many steps were ever added."""
        buffer = self.open_to_read()
        return 0 if buffer is None else int(buffer.counts()[1].sum())

    def evicted(self) -> tuple[int, int]:
        """Return how many episodes and steps were evicted since the store was opened."""
        buffer = self.open_to_read()
        steps = 0 if buffer is None else _gone(buffer) - self._steps_gone
        if buffer is not None and steps != self._evicted[1]:  # if not, no episode went either, and counting them takes long
            self._evicted = self._begun - len(buffer.episodes), steps
        return self._evicted


def _of_agents(numbers: dict[str, Any]) -> dict[str, Any]:
    """Return figures under RLlib's names, which tell them once more for each agent, and for each module."""
    whole = {name.replace("num_steps", "num_env_steps"): number for name, number in numbers.items()}
    agents = {f"agent_to_{name}": {DEFAULT_AGENT_ID: number} for name, number in numbers.items()}
    return whole | agents | {f"module_to_{name}": {DEFAULT_MODULE_ID: number} for name, number in numbers.items()}


def _gone(buffer: ReplayBuffer) -> int:
    """Return how many steps were evicted."""
    stored, ever = buffer.counts()
    return int((ever - stored).sum())


def _stacked(values: Any) -> Any:
    """Return an array, or a dict of them, of a list of values or of what is one already."""
    if isinstance(values, dict):
        return {name: _stacked(part) for name, part in values.items()}
    if isinstance(values, list | tuple) and values and isinstance(values[0], dict):
        return {name: _stacked([value[name] for value in values]) for name in values[0]}
    return np.asarray(values)


def _columns(path: str, values: Any) -> dict[str, Column]:
    if isinstance(values, dict):
        columns: dict[str, Column] = {}
        for name, part in values.items():
            columns |= _columns(f"{path}/{escape_key(str(name))}", part)
        return columns
    return {path: Column(values.shape[1:], values.dtype.name)}
