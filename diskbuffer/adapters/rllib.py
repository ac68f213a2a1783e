"""RLlib's episode replay buffers, with their steps on disk, for ``replay_buffer_config={"type": ..., "path": ...}``.

RLlib makes them in the process of the algorithm. Where it tells kinds of buffers apart, it looks for "EpisodeReplayBuffer" in the
name, so give the whole name as a string: ``"diskbuffer.adapters.rllib.DiskEpisodeReplayBuffer"``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
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
from diskbuffer.adapters.ray import ClusterBuffer
from diskbuffer.errors import EmptyBufferError, InputError
from diskbuffer.plugin import Batch, SharedStore, flatten, integer, integer_or_none, one_of

Int64 = npt.NDArray[np.int64]


class DiskEpisodeReplayBuffer(EpisodeReplayBuffer):  # type: ignore[misc]
    """Stand in for RLlib's `EpisodeReplayBuffer`, of single agents: DQN, SAC, CQL.

    Parameters
    ----------
    capacity : int
        Steps to keep; a `ClusterBuffer` keeps its own.
    path : path-like or ClusterBuffer
        Of the store, or what has steps on the nodes of a cluster. A buffer that is made with the same goes on with what is there.
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

    Over a cluster, ``t_started`` of sampled episodes is 0, as ids of steps are known within their node only. Metrics count no
    evictions there, and the episodes that this buffer began.
    """

    def __init__(
        self,
        capacity: int = 10_000,
        *,
        path: str | os.PathLike[str] | ClusterBuffer,
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
        self._streams = set(range(integer("streams", streams)))
        self._in_cluster = isinstance(path, ClusterBuffer)
        self._store: _Cluster | _Store
        self._store = _Cluster(path, streams) if isinstance(path, ClusterBuffer) else _Store(path, capacity, streams)
        self._spaces: dict[str, Any] = {}  # of the episodes, once one was added
        self._under_way: dict[str, int] = {}  # the stream of each episode, the one that was added to longest ago first
        self._random, self._seed = np.random.default_rng(seed), seed
        self._samplers: dict[tuple[Any, ...], Sampler] = {}  # by their form
        self._slices: dict[tuple[int, int], Slices] = {}  # by length and lookback
        self._updates: list[tuple[Int64, Callable[[Any], Any]]] = []  # what takes priorities of the last batch, for its rows

    @property
    def buffer(self) -> Any:
        """The `ClusterBuffer`, or the `ReplayBuffer`: None before the first step, and for reading until one is added here."""
        return self._store.open_to_read()

    # Writing

    def add(self, episodes: SingleAgentEpisode | Sequence[SingleAgentEpisode], weight: float | None = None) -> None:
        """Add episodes, or the next parts of episodes that are under way; in the store when this returns."""
        if weight is not None:
            raise InputError("steps enter with the largest priority there is; leave weight= out")
        added = episodes if isinstance(episodes, list | tuple) else [episodes]
        before = self._store.evicted()
        begun = sum(self._record(episode) for episode in added)
        lost_episodes, lost_steps = (max(0, now - then) for now, then in zip(self._store.evicted(), before, strict=True))
        numbers = {"num_episodes_added": begun, "num_steps_added": sum(map(len, added))}
        numbers |= {"num_episodes_evicted": lost_episodes, "num_steps_evicted": lost_steps}
        self._update_add_metrics(**_of_agents(numbers))

    def _record(self, episode: Any) -> bool:
        """Record an episode, or the next part of one; return whether it is a new one."""
        how: dict[str, Any] = {"observation_space": episode.observation_space, "action_space": episode.action_space}
        self._spaces = how
        is_new, last = episode.id_ not in self._under_way, np.arange(len(episode)) == len(episode) - 1
        if not len(episode):
            return False
        obs, action = _stacked(episode.get_observations()), _stacked(episode.get_actions())
        if None in how.values():
            values = flatten({"obs": obs, "action": action})
            how = {"columns": {name: Column(value.shape[1:], value.dtype.name) for name, value in values.items()}}
        stream, writer = self._stream(episode.id_), self._store.open_to_write(**how)
        writer.extend(
            obs=obs,
            action=action,
            reward=np.asarray(episode.get_rewards(), np.float32),
            terminated=last & episode.is_terminated,
            truncated=last & episode.is_truncated,
            env=stream,
            new_episode=is_new,
        )
        self._store.begun += is_new
        self._under_way.pop(episode.id_, None)
        if not episode.is_done:
            self._under_way[episode.id_] = stream  # those that are silent for longest come first
        return is_new

    def _stream(self, episode: str) -> int:
        """Return the stream of an episode; of the one that is silent for longest, where there is none left."""
        if episode in self._under_way:
            return self._under_way[episode]
        free = self._streams - set(self._under_way.values())
        return min(free) if free else self._under_way.pop(next(iter(self._under_way)))

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

    def _new_sampler(self, n_step: int = 1, gamma: float = 0.99) -> Sampler:
        seed = None if self._seed is None else self._seed + n_step - 1  # or batches of other n_step would have the same steps
        return Uniform(seed, n_step=n_step, gamma=gamma)

    def _single(self, size: int, n_step: int | tuple[int, int], gamma: float, beta: float | None) -> list[SingleAgentEpisode]:
        each = self._random.integers(*n_step, size) if isinstance(n_step, tuple) else np.full(size, integer("n_step", n_step))
        episodes: list[Any] = [None] * size
        self._updates = []
        for n in np.unique(each).tolist():
            which = np.flatnonzero(each == n)
            batch = self._draw(which, n, gamma, beta)
            for place, episode in zip(which.tolist(), self._made(batch, n), strict=True):
                episodes[place] = episode
        return episodes

    def _draw(self, which: Int64, n_step: int, gamma: float, beta: float | None) -> Batch:
        """Return steps, as arrays, for these rows of a batch, and note what takes their priorities."""
        form = (n_step, gamma) if self._in_cluster else ()  # of a store, one sampler draws for any n_step
        sampler: Any = self._samplers.get(form) or self._new_sampler(*form)
        self._samplers[form] = sampler
        if isinstance(sampler, Prioritized) and beta is not None:
            sampler.beta = float(beta)
        if self._in_cluster:
            batch: Batch = tree_map(torch.Tensor.numpy, self.buffer.sample(len(which), sampler))
            self._updates.append((which, partial(self.buffer.update, sampler, batch)))
        else:  # priorities are a column of the store
            buffer = self._store.open_to_write() if isinstance(sampler, Prioritized) else self.buffer
            drawn = buffer.draw(len(which), sampler)
            batch = {**buffer.at(drawn["steps"], n_step=n_step, gamma=gamma, numpy=True), **drawn}
            self._updates.append((which, partial(Prioritized.update, sampler, batch["steps"])))
        return batch

    def _elapsed(self, steps: Int64) -> Any:
        """Return how many steps of their episodes came before these; in a cluster that is not known."""
        return np.zeros_like(steps) if self._in_cluster else self.buffer.episodes.elapsed(steps)

    def _made(self, batch: Batch, n_step: int) -> list[SingleAgentEpisode]:
        """Return an episode of one step for each row."""
        spaces, starts = self._spaces, self._elapsed(batch["steps"]).tolist()
        weights = batch.get("weights", np.ones(len(starts), np.float32))
        return [
            SingleAgentEpisode(
                observations=[one_of(batch["obs"], n), one_of(batch["next_obs"], n)],
                actions=[one_of(batch["action"], n)],
                rewards=[batch["reward"][n]],
                infos=[{}, {}],
                terminated=bool(batch["terminated"][n]),
                truncated=bool(batch["truncated"][n]),
                extra_model_outputs={"n_step": [n_step], "weights": [weights[n]]},
                t_started=starts[n],
                len_lookback_buffer=0,
                **spaces,
            )
            for n in range(len(starts))
        ]

    def _sequences(self, size: int, length: int, lookback: int, least: int) -> list[SingleAgentEpisode]:
        """Return parts of episodes, each of so many steps or up to the episode's end, until they have enough together."""
        if least:
            self.buffer.sample(1, Slices(least + 1))  # an EmptyBufferError where no episode is that long
        sampler = self._slices.get((length, lookback))
        if sampler is None:
            sampler = Slices(length, int(self._random.integers(2**63)), strict=False, burn_in=lookback)
            self._slices[length, lookback] = sampler
        sequences: list[SingleAgentEpisode] = []
        left, least = size, min(least, length - 1)
        while left > 0:
            batch = tree_map(torch.Tensor.numpy, self.buffer.sample(-(-left // (length + 1)), sampler))
            batch.pop("node", None)  # one for each sequence, and not for its steps
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
        n = len(rows["steps"])
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
            t_started=int(self._elapsed(rows["steps"][before:])[0]),
            len_lookback_buffer=before,
            **self._spaces,
        )

    def _count(self, size: int, sampled: list[SingleAgentEpisode]) -> None:
        """Tell RLlib's metrics of a batch. Which rows are of one episode is not looked up: each counts as one."""
        self.sampled_timesteps += size
        n_step = sum(episode.extra_model_outputs["n_step"][0] for episode in sampled) / max(len(sampled), 1)
        numbers = {"num_steps_sampled": size, "num_episodes_per_sample": len(sampled), "num_steps_per_sample": size}
        self._update_sample_metrics(**_of_agents({**numbers, "sampled_n_step": n_step, "num_resamples": 0}))

    # Looking

    def get_num_timesteps(self, module_id: Any = None) -> int:
        """Return how many steps can be sampled, as `len` does."""
        return 0 if self.buffer is None else len(self.buffer)

    def get_num_episodes(self, module_id: Any = None) -> int:
        """Return how many episodes there are steps of; over a cluster, how many began here."""
        return self._store.begun - self._store.evicted()[0]

    def get_num_episodes_evicted(self, module_id: Any = None) -> int:
        """Return how many episodes were evicted since this buffer was made; 0 over a cluster."""
        return self._store.evicted()[0]

    def get_added_timesteps(self, module_id: Any = None) -> int:
        """Return how many steps were ever added."""
        return self._store.added()

    # State

    def get_state(self) -> dict[str, Any]:
        """Return the path, and how many steps were sampled; the steps are in the store."""
        self._store.flush()
        sampler = self._samplers[()].state_dict() if () in self._samplers else None  # those of nodes have no state here
        return {"path": str(self._store.path), "sampled_timesteps": self.sampled_timesteps, "sampler": sampler}

    def set_state(self, state: dict[str, Any]) -> None:
        """Go on from a state; the store at its path must be this buffer's."""
        of, here = str(state.get("path")), str(self._store.path)
        if of != here:
            raise InputError(f"this state is of the store at {of}, this buffer's is at {here}; make the buffer with that path")
        self.sampled_timesteps = state["sampled_timesteps"]
        if state["sampler"] is not None:
            self._samplers[()] = self._new_sampler()
            self._samplers[()].load_state_dict(state["sampler"])

    def close(self) -> None:
        """Close the store; of a cluster, what this process adds with."""
        self._store.close()


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

    def _new_sampler(self, n_step: int = 1, gamma: float = 0.99) -> Sampler:
        return Prioritized(alpha=self._alpha, seed=self._seed, n_step=n_step, gamma=gamma)

    def _single(self, size: int, n_step: int | tuple[int, int], *form: Any) -> list[SingleAgentEpisode]:
        if isinstance(n_step, tuple) and self._in_cluster:
            raise InputError(f"by priority, a cluster draws with one n_step; give a number in place of {n_step}, or a path")
        return super()._single(size, n_step, *form)

    def _sequences(self, *_: Any) -> list[SingleAgentEpisode]:
        raise InputError("sequences have no priorities, in RLlib as here; take DiskEpisodeReplayBuffer, or no batch_length_T")

    def update_priorities(self, priorities: npt.NDArray[Any], module_id: Any = None) -> None:
        """Set the priorities of the steps of the last batch."""
        if len(priorities) != (count := sum(len(which) for which, _ in self._updates)):
            raise InputError(f"the last batch has {count} steps, found {len(priorities)} priorities")
        for which, update in self._updates:
            update(np.abs(priorities)[which])


class _Store(SharedStore):
    """A store, and how many episodes there were or began, and were evicted since it was opened."""

    def __init__(self, path: str | os.PathLike[str], capacity: int, streams: int) -> None:
        super().__init__(path, capacity=capacity, n_envs=streams, autoreset="disabled")
        self.begun, self._steps_gone, self._evicted = 0, 0, (0, 0)  # when it was opened, and when it was asked last
        self.open_to_read()

    def accept(self, opened: ReplayBuffer) -> None:
        """Note what is there."""
        stored, ever = opened.counts()
        self.begun, self._steps_gone, self._evicted = len(opened.episodes), int((ever - stored).sum()), (0, 0)

    def added(self) -> int:
        """Return how many steps were ever added."""
        buffer = self.open_to_read()
        return 0 if buffer is None else int(buffer.counts()[1].sum())

    def evicted(self) -> tuple[int, int]:
        """Return how many episodes and steps were evicted since the store was opened."""
        buffer = self.open_to_read()
        if buffer is not None:
            stored, ever = buffer.counts()
            steps = int((ever - stored).sum()) - self._steps_gone
            if steps != self._evicted[1]:  # if not, no episode went either, and counting them takes long
                self._evicted = self.begun - len(buffer.episodes), steps
        return self._evicted


class _Cluster:
    """A cluster's buffer, and what adds to it in this process, with the methods of a `_Store` that are used here."""

    def __init__(self, buffer: ClusterBuffer, streams: int) -> None:
        if buffer.limiter is not None:
            raise InputError("RLlib adds and samples in turns, so a limiter would wait for itself; take a ClusterBuffer without")
        writer: Any = buffer.writer(n_envs=streams, autoreset="disabled")
        self.path, self.begun, self._buffer, self._writer = buffer.path, 0, buffer, writer
        self.flush, self.close = writer.flush, writer.close

    def open_to_read(self) -> ClusterBuffer:
        return self._buffer

    def open_to_write(self, **_: Any) -> Any:
        return self._writer

    def added(self) -> int:
        return int(self._buffer.stats()["added"])

    def evicted(self) -> tuple[int, int]:
        return 0, 0


def _of_agents(numbers: dict[str, Any]) -> dict[str, Any]:
    """Return figures under RLlib's names, which tell them once more for each agent, and for each module."""
    whole = {name.replace("num_steps", "num_env_steps"): number for name, number in numbers.items()}
    agents = {f"agent_to_{name}": {DEFAULT_AGENT_ID: number} for name, number in numbers.items()}
    return whole | agents | {f"module_to_{name}": {DEFAULT_MODULE_ID: number} for name, number in numbers.items()}


def _stacked(values: Any) -> Any:
    """Return an array, or a dict of them, of a list of values or of what is one already."""
    if isinstance(values, dict):
        return {name: _stacked(part) for name, part in values.items()}
    if isinstance(values, list | tuple) and values and isinstance(values[0], dict):
        return {name: _stacked([value[name] for value in values]) for name in values[0]}
    return np.asarray(values)
