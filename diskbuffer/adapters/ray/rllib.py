"""RLlib's episode replay buffers, with their steps in a store on disk, for ``replay_buffer_config={"type": ..., "path": ...}``.

RLlib makes them in the process of the algorithm. Where it tells kinds of buffers apart, it looks for "EpisodeReplayBuffer" in the
name, so give the whole name as a string: ``"diskbuffer.adapters.ray.rllib.DiskEpisodeReplayBuffer"``.
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

from diskbuffer import Prioritized, Sampler, Uniform
from diskbuffer.adapters.ray.episodes import Recording, step_of
from diskbuffer.errors import EmptyBufferError, InputError
from diskbuffer.plugin import Batch, integer, integer_or_none

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
        self._recording = Recording(path, capacity, integer("streams", streams))
        self._random, self._seed = np.random.default_rng(seed), seed
        self._sampler: Sampler | None = None
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
        self._update_add_metrics(
            num_episodes_added=begun,
            num_env_steps_added=steps,
            num_episodes_evicted=lost_episodes,
            num_env_steps_evicted=lost_steps,
            agent_to_num_episodes_added={DEFAULT_AGENT_ID: begun},
            agent_to_num_steps_added={DEFAULT_AGENT_ID: steps},
            agent_to_num_episodes_evicted={DEFAULT_AGENT_ID: lost_episodes},
            agent_to_num_steps_evicted={DEFAULT_AGENT_ID: lost_steps},
            module_to_num_episodes_added={DEFAULT_MODULE_ID: begun},
            module_to_num_steps_added={DEFAULT_MODULE_ID: steps},
            module_to_num_episodes_evicted={DEFAULT_MODULE_ID: lost_episodes},
            module_to_num_steps_evicted={DEFAULT_MODULE_ID: lost_steps},
        )

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
            batch = self._recording.n_steps(steps[which], n, gamma)
            for place, episode in zip(which.tolist(), self._made(batch, weights[which], n), strict=True):
                episodes[place] = episode
        return episodes

    def _made(self, batch: Batch, weights: npt.NDArray[np.float32], n_step: int) -> list[SingleAgentEpisode]:
        """Return an episode of one step for each row."""
        spaces, numbers = self._recording.spaces, {name: _arrays(value) for name, value in batch.items()}
        starts = self.buffer.episodes.elapsed(batch["steps"]).tolist()
        ends = zip(numbers["terminated"].tolist(), numbers["truncated"].tolist(), strict=True)
        return [
            SingleAgentEpisode(
                observations=[step_of(numbers["obs"], n), step_of(numbers["next_obs"], n)],
                actions=[step_of(numbers["action"], n)],
                rewards=[numbers["reward"][n]],
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
        sequences: list[SingleAgentEpisode] = []
        left = size
        while left > 0:
            steps, _ = self._draw(1, None)
            episodes = self.buffer.episodes
            remaining, before = int(episodes.remaining(steps)[0]), min(lookback, int(episodes.elapsed(steps)[0]))
            if remaining <= least:
                continue
            count = min(length, remaining)
            sequences.append(self._part(steps - before * self.buffer.n_envs, before, count))
            left -= count + 1
        return sequences

    def _part(self, first: Int64, before: int, count: int) -> SingleAgentEpisode:
        batch = {name: _arrays(value) for name, value in self.buffer.at(first, before + count).items()}
        n = before + count
        rows = [step_of(step_of(batch["obs"], 0), t) for t in range(n)] + [step_of(step_of(batch["next_obs"], 0), n - 1)]
        ones = {"n_step": np.ones(n, np.int64), "weights": np.ones(n)}
        return SingleAgentEpisode(
            observations=rows,
            actions=[step_of(step_of(batch["action"], 0), t) for t in range(n)],
            rewards=batch["reward"][0].tolist(),
            infos=[{} for _ in rows],
            terminated=bool(batch["terminated"][0, -1]),
            truncated=bool(batch["truncated"][0, -1]),
            extra_model_outputs={name: InfiniteLookbackBuffer(values, lookback=before) for name, values in ones.items()},
            t_started=int(self.buffer.episodes.elapsed(first)[0]) + before,
            len_lookback_buffer=before,
            **self._recording.spaces,
        )

    def _count(self, size: int, sampled: list[SingleAgentEpisode]) -> None:
        """Tell RLlib's metrics of a batch. Which rows are of one episode is not looked up: each counts as one."""
        self.sampled_timesteps += size
        n_step = sum(episode.extra_model_outputs["n_step"][0] for episode in sampled) / max(len(sampled), 1)
        numbers: dict[str, Any] = {"num_env_steps_sampled": size, "num_episodes_per_sample": len(sampled)}
        numbers |= {"num_env_steps_per_sample": size, "sampled_n_step": n_step, "num_resamples": 0}
        for whose, key in (("agent", DEFAULT_AGENT_ID), ("module", DEFAULT_MODULE_ID)):
            numbers |= {
                f"{whose}_to_num_steps_sampled": {key: size},
                f"{whose}_to_num_episodes_per_sample": {key: len(sampled)},
                f"{whose}_to_num_steps_per_sample": {key: size},
                f"{whose}_to_sampled_n_step": {key: n_step},
                f"{whose}_to_num_resamples": {key: 0},
            }
        self._update_sample_metrics(**numbers)

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

    def update_priorities(self, priorities: npt.NDArray[Any], module_id: Any = None) -> None:
        """Set the priorities of the steps of the last batch."""
        assert isinstance(self._sampler, Prioritized)
        self._sampler.update(self._drawn, np.abs(priorities))


def _arrays(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _arrays(part) for name, part in value.items()}
    return value.numpy() if isinstance(value, torch.Tensor) else value
