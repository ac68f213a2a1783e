"""RLlib's episode replay buffers, with their steps on disk, for ``replay_buffer_config={"type": ..., "path": ...}``.

RLlib makes them in the process of the algorithm. Where it tells kinds of buffers apart, it looks for "EpisodeReplayBuffer" in the
name, so give the whole name as a string: ``"diskbuffer.adapters.rllib.DiskEpisodeReplayBuffer"``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from ray.rllib.algorithms.sac import SACConfig
from ray.rllib.core import DEFAULT_AGENT_ID, DEFAULT_MODULE_ID
from ray.rllib.env.single_agent_episode import SingleAgentEpisode
from ray.rllib.env.utils.infinite_lookback_buffer import InfiniteLookbackBuffer
from ray.rllib.utils.replay_buffers.episode_replay_buffer import EpisodeReplayBuffer
from ray.rllib.utils.replay_buffers.prioritized_episode_buffer import PrioritizedEpisodeReplayBuffer
from torch.utils._pytree import tree_map

from diskbuffer import Column, Prioritized, ReplayBuffer, Sampler, Slices, Uniform
from diskbuffer.errors import EmptyBufferError, InputError
from diskbuffer.plugin import Batch, SharedStore, flatten, integer, integer_or_none, is_store, one_of, read_info, writers_of

Int64 = npt.NDArray[np.int64]
S = TypeVar("S", bound=Sampler)
_STREAMS = 16  # of a store, at least


class DiskEpisodeReplayBuffer(EpisodeReplayBuffer):  # type: ignore[misc]
    """Stand in for RLlib's `EpisodeReplayBuffer`, of single agents: DQN, SAC, CQL.

    Parameters
    ----------
    capacity : int
        Steps that each store keeps.
    path : path-like
        Of a directory of stores. A buffer that is made with the same goes on with what is there.
    streams : int, optional
        Episodes that may be under way at the same time, in one store: one more is an error. By default the first store is made
        for as many as the first call brings, 16 at least, and episodes beyond that open another store beside it, with a capacity
        of its own. An episode that never ends, as its worker died, keeps its place until this buffer is closed.
    batch_size_B, batch_length_T, metrics_num_episodes_for_smoothing
        As RLlib has them.
    seed : int, optional
        For the draws; RLlib's own have none.
    metadata
        Of `diskbuffer.ReplayBuffer`.

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
        streams: int | None = None,
        batch_size_B: int = 16,
        batch_length_T: int = 64,
        metrics_num_episodes_for_smoothing: int = 100,
        seed: int | None = None,
        metadata: Mapping[str, Any] | None = None,
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
        self._most = integer_or_none("streams", streams)
        self._stores = _Directory(path, capacity, self._most, metadata=metadata)
        self._spaces: dict[str, Any] = {}  # of the episodes, once one was added
        self._under_way: dict[str, tuple[int, int]] = {}  # the store of each episode, and its environment there
        self._free = set[tuple[int, int]]()
        self._random, self._seed = np.random.default_rng(seed), seed
        self._sampler: Sampler | None = None
        self._slices: dict[tuple[int, int], Slices] = {}  # by length and lookback
        self._drawn: Int64 = np.zeros(0, np.int64)  # steps of the last batch

    @property
    def buffer(self) -> Any:
        """The `ReplayBuffer` that reads all stores as one; None before the first step."""
        return self._stores.open_to_read()

    # Writing

    def add(self, episodes: SingleAgentEpisode | Sequence[SingleAgentEpisode], weight: float | None = None) -> None:
        """Add episodes, or the next parts of episodes that are under way; in the store when this returns."""
        if weight is not None:
            raise InputError("steps enter with the largest priority there is; leave weight= out")
        added = episodes if isinstance(episodes, list | tuple) else [episodes]
        at_once = self._count_at_once(added)
        before = self._stores.evicted()
        begun = sum(self._record(episode, at_once) for episode in added)
        lost_episodes, lost_steps = (max(0, now - then) for now, then in zip(self._stores.evicted(), before, strict=True))
        numbers = {"num_episodes_added": begun, "num_steps_added": sum(map(len, added))}
        numbers |= {"num_episodes_evicted": lost_episodes, "num_steps_evicted": lost_steps}
        self._update_add_metrics(**_of_agents(numbers))

    def _count_at_once(self, added: Sequence[Any]) -> int:
        """Return how many episodes will be under way at the same time; an InputError where these are too many."""
        for episode in added:
            if not isinstance(episode, SingleAgentEpisode):
                raise InputError(f"episodes of single agents are stored, found {type(episode).__name__}")
        running, most = set(self._under_way), len(self._under_way)
        for episode in filter(len, added):
            running.add(episode.id_)
            most = max(most, len(running))
            if episode.is_done:
                running.remove(episode.id_)
        if self._most is not None and most > self._most:
            raise InputError(
                f"{most} episodes are under way at the same time, and streams={self._most} has room for fewer: leave it out, "
                f"or make the buffer at another path with streams={most} or more"
            )
        return most

    def _record(self, episode: Any, at_once: int) -> bool:
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
        store, env = place = self._place(episode.id_, at_once, how)
        self._stores.writer(store, **how).extend(
            obs=obs,
            action=action,
            reward=np.asarray(episode.get_rewards(), np.float32),
            terminated=last & episode.is_terminated,
            truncated=last & episode.is_truncated,
            env=env,
            new_episode=is_new,
        )
        self._stores.begun += is_new
        self._free.discard(place)
        self._under_way[episode.id_] = place
        if episode.is_done:
            self._free.add(self._under_way.pop(episode.id_))
        return is_new

    def _place(self, episode: str, at_once: int, how: dict[str, Any]) -> tuple[int, int]:
        """Return the store of an episode, and its environment there; another store is opened where there is no free one."""
        if episode in self._under_way:
            return self._under_way[episode]
        if not self._free:
            streams = self._most or max(_STREAMS, at_once - len(self._under_way))
            self._free = set(self._stores.open_another(streams, **how))
        return min(self._free)

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

    def _new_sampler(self) -> Sampler:
        return Uniform(self._seed)

    def _single(self, size: int, n_step: int | tuple[int, int], gamma: float, beta: float | None) -> list[SingleAgentEpisode]:
        low, high = n_step if isinstance(n_step, tuple) and len(n_step) == 2 else (n_step, None)
        low = integer("n_step", low)
        high = low + 1 if high is None else integer("n_step", high, low + 1)
        sampler: Any = self._sampler or self._new_sampler()
        if isinstance(sampler, Prioritized) and beta is not None:
            sampler.beta = float(beta)
        drawn = self.buffer.draw(size, sampler)
        self._sampler, self._drawn = sampler, drawn["steps"]
        each = self._random.integers(low, high, size) if isinstance(n_step, tuple) else np.full(size, low)
        episodes: list[Any] = [None] * size
        for n in np.unique(each).tolist():
            which = np.flatnonzero(each == n)
            some = {name: values[which] for name, values in drawn.items()}
            batch = {**self.buffer.at(some["steps"], n_step=n, gamma=gamma, numpy=True), **some}
            for place, episode in zip(which.tolist(), self._made(batch, n), strict=True):
                episodes[place] = episode
        return episodes

    def _made(self, batch: Batch, n_step: int) -> list[SingleAgentEpisode]:
        """Return an episode of one step for each row; its ``n_step`` is of how many steps it was made."""
        spaces, starts = self._spaces, self.buffer.episodes.elapsed(batch["steps"]).tolist()
        steps = np.minimum(self.buffer.episodes.remaining(batch["steps"]), n_step).tolist()
        weights = batch.get("weights", np.ones(len(starts), np.float32))
        return [
            SingleAgentEpisode(
                observations=[one_of(batch["obs"], n), one_of(batch["next_obs"], n)],
                actions=[one_of(batch["action"], n)],
                rewards=[batch["reward"][n]],
                infos=[{}, {}],
                terminated=bool(batch["terminated"][n]),
                truncated=bool(batch["truncated"][n]),
                extra_model_outputs={"n_step": [steps[n]], "weights": [weights[n]]},
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
        if (length, lookback) not in self._slices:
            self._slices[length, lookback] = _new_slices(length, lookback, int(self._random.integers(2**63)))
        sampler = self._slices[length, lookback]
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
            t_started=int(self.buffer.episodes.elapsed(rows["steps"][before:])[0]),
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
        """Return how many episodes there are steps of."""
        return self._stores.begun - self._stores.evicted()[0]

    def get_num_episodes_evicted(self, module_id: Any = None) -> int:
        """Return how many episodes were evicted since this buffer was made."""
        return self._stores.evicted()[0]

    def get_added_timesteps(self, module_id: Any = None) -> int:
        """Return how many steps were ever added."""
        return self._stores.added()

    # State

    def get_state(self) -> dict[str, Any]:
        """Return the path, how many steps were sampled, and of what the next draws depend on; the steps are in the store."""
        self._stores.flush()
        return {
            "path": str(self._stores.path),
            "sampled_timesteps": self.sampled_timesteps,
            "sampler": None if self._sampler is None else self._sampler.state_dict(),
            "slices": [(*of, sampler.state_dict()) for of, sampler in self._slices.items()],
            "random": self._random.bit_generator.state,
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Go on from a state; the store at its path must be this buffer's."""
        if missing := {"path", "sampled_timesteps", "sampler", "slices", "random"} - state.keys():
            raise InputError(f"a state has {', '.join(sorted(missing))}, too; give what get_state() returned")
        if Path(state["path"]).resolve() != self._stores.path.resolve():
            raise InputError(
                f"this state is of the store at {state['path']}, this buffer's is at {self._stores.path}; make the buffer with "
                "that path"
            )
        self.sampled_timesteps = state["sampled_timesteps"]
        self._random.bit_generator.state = state["random"]
        self._sampler = None if state["sampler"] is None else _loaded(self._new_sampler(), state["sampler"])
        self._slices = {
            (length, before): _loaded(_new_slices(length, before), drawn) for length, before, drawn in state["slices"]
        }

    def close(self) -> None:
        """Close the stores; the next use opens them again."""
        self._stores.close()


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

    def _new_sampler(self) -> Sampler:
        return Prioritized(alpha=self._alpha, seed=self._seed)

    def _sequences(self, *_: Any) -> list[SingleAgentEpisode]:
        raise InputError("sequences have no priorities, in RLlib as here; take DiskEpisodeReplayBuffer, or no batch_length_T")

    def update_priorities(self, priorities: npt.NDArray[Any], module_id: Any = None) -> None:
        """Set the priorities of the steps of the last batch."""
        if len(priorities) != len(self._drawn):
            raise InputError(f"the last batch has {len(self._drawn)} steps, found {len(priorities)} priorities")
        if isinstance(self._sampler, Prioritized):
            self._sampler.update(self._drawn, np.abs(priorities))


class DiskSACConfig(SACConfig):  # type: ignore[misc]
    """SAC's configuration with the buffers of this module, too: `SACConfig` takes the types that it names alone.

    An algorithm that is restored by ``from_checkpoint`` has the same buffer.
    """

    def validate(self) -> None:
        """Check the configuration, with RLlib's own type of buffer in the place of ours."""
        ours, own = self.replay_buffer_config, self.__dict__
        is_ours = ours["type"] in {
            f"{__name__}.{kind.__name__}" for kind in (DiskEpisodeReplayBuffer, DiskPrioritizedEpisodeReplayBuffer)
        }
        try:
            if is_ours:
                own["replay_buffer_config"] = {**ours, "type": "EpisodeReplayBuffer"}  # also where it is frozen
            super().validate()
        finally:
            own["replay_buffer_config"] = ours


def _new_slices(length: int, lookback: int, seed: int | None = None) -> Slices:
    return Slices(length, seed, strict=False, burn_in=lookback)


def _loaded(sampler: S, state: dict[str, Any]) -> S:
    sampler.load_state_dict(state)
    return sampler


class _Directory(SharedStore):
    """A directory of stores, and how many episodes there were or began, and were evicted since it was opened."""

    def __init__(self, path: str | os.PathLike[str], capacity: int, streams: int | None, **how: Any) -> None:
        super().__init__(path)
        for name, has in (writers_of(self.path) or {}).items():
            if streams not in (None, has):
                raise InputError(f"a store at {self.path} has streams={has}, found {streams}; leave streams= out, or give that")
            if is_store(self.path / name) and (keeps := read_info(self.path / name).capacity) != capacity:
                raise InputError(f"the stores at {self.path} have capacity={keeps}, found {capacity}; give that, or another path")
        self._how: dict[str, Any] = {"capacity": capacity, "autoreset": "disabled", **how}
        self._writers, self._is_behind = list[SharedStore](), False
        self.begun, self._steps_gone, self._evicted = 0, 0, (0, 0)  # when it was opened, and when it was asked last

    def accept(self, opened: ReplayBuffer) -> None:
        """Note what is there."""
        stored, ever = opened.counts()
        self.begun, self._steps_gone, self._evicted = len(opened.episodes), int((ever - stored).sum()), (0, 0)

    def open_to_read(self) -> ReplayBuffer | None:
        """Open all stores as one, and see what was added here."""
        buffer = super().open_to_read()
        if buffer is not None and self._is_behind:
            self._is_behind = False
            buffer.refresh()
        return buffer

    def open_another(self, streams: int, **how: Any) -> list[tuple[int, int]]:
        """Open one more store, which may be there from before; return its number and each of its environments."""
        number, there = len(self._writers), writers_of(self.path) or {}
        streams = there.get(str(number), streams)
        writer = SharedStore(self.path, writer=str(number), n_envs=streams, **self._how)
        writer.open_to_write(**how)
        self._writers.append(writer)
        return [(number, env) for env in range(streams)]

    def writer(self, number: int, **how: Any) -> ReplayBuffer:
        """Return what writes to a store."""
        buffer = self._writers[number].open_to_write(**how)
        self._is_behind = True
        return buffer

    def added(self) -> int:
        """Return how many steps were ever added."""
        buffer = self.open_to_read()
        return 0 if buffer is None else int(buffer.counts()[1].sum())

    def evicted(self) -> tuple[int, int]:
        """Return how many episodes and steps were evicted since the directory was opened."""
        buffer = self.open_to_read()
        if buffer is not None:
            stored, ever = buffer.counts()
            steps = int((ever - stored).sum()) - self._steps_gone
            if steps != self._evicted[1]:  # if not, no episode went either, and counting them takes long
                self._evicted = self.begun - len(buffer.episodes), steps
        return self._evicted

    def flush(self) -> None:
        """Sync everything to the disk."""
        for writer in self._writers:
            writer.flush()
        if self.buffer is not None and writers_of(self.path):
            self.buffer.flush()  # the priorities

    def close(self) -> None:
        """Close all stores; the next use opens them again."""
        for writer in self._writers:
            writer.close()
        super().close()


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
