"""Hindsight goals (Andrychowicz et al., 2017, "Hindsight experience replay"), as Stable-Baselines3 draws them."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from gymnasium import spaces
from stable_baselines3.common.vec_env import VecNormalize
from stable_baselines3.her.goal_selection_strategy import KEY_TO_GOAL_STRATEGY, GoalSelectionStrategy
from stable_baselines3.her.her_replay_buffer import HerReplayBuffer

from diskbuffer.adapters.sb3.replay import DiskDictReplayBuffer
from diskbuffer.adapters.sb3.stored import shaped
from diskbuffer.errors import InputError
from diskbuffer.plugin import RUNNING, Batch, integer

Int64 = npt.NDArray[np.int64]
_PARTS = ("observation", "achieved_goal", "desired_goal")


class DiskHerReplayBuffer(HerReplayBuffer, DiskDictReplayBuffer):
    """Stable-Baselines3's `HerReplayBuffer`, its steps in a store on disk; see `DiskReplayBuffer`.

    What the library keeps about episodes, 16 bytes a step, stays in memory, and is made from the store when it is opened.

    Parameters
    ----------
    buffer_size, observation_space, action_space, env, n_sampled_goal, goal_selection_strategy
        As of `HerReplayBuffer`.
    copy_info_dict : bool
        Whether ``compute_reward`` gets each step's info. These are kept in memory, as the library keeps them, and are lost with
        it: a store that has steps already is refused then.
    path, frame_stack, threads, segment_rows, codec, metadata
        As of `DiskReplayBuffer`.
    """

    _of_episodes: Int64 | None  # the steps of episodes that are over, once they are needed

    def __init__(
        self,
        buffer_size: int,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        env: Any,
        device: Any = "auto",
        n_envs: int = 1,
        *args: Any,
        n_sampled_goal: int = 4,
        goal_selection_strategy: GoalSelectionStrategy | str = "future",
        copy_info_dict: bool = False,
        **kwargs: Any,
    ) -> None:
        if not isinstance(observation_space, spaces.Dict) or not set(_PARTS) <= set(observation_space.spaces):
            raise InputError(f"hindsight goals need dict observations with {', '.join(_PARTS)}, found {observation_space}")
        if isinstance(goal_selection_strategy, str):
            goal_selection_strategy = KEY_TO_GOAL_STRATEGY[goal_selection_strategy.lower()]
        assert isinstance(goal_selection_strategy, GoalSelectionStrategy), (
            f"Invalid goal selection strategy, please use one of {list(GoalSelectionStrategy)}"
        )
        if kwargs.get("n_steps", 1) != 1:
            raise InputError("hindsight goals go with one-step returns, as in Stable-Baselines3; leave n_steps out")
        n_sampled_goal = integer("n_sampled_goal", n_sampled_goal, 0)
        self.env, self.copy_info_dict = env, copy_info_dict
        self.goal_selection_strategy, self.n_sampled_goal = goal_selection_strategy, n_sampled_goal
        self.her_ratio = 1 - (1.0 / (n_sampled_goal + 1))
        # Not HerReplayBuffer's own, which takes memory for every step's info.
        super(HerReplayBuffer, self).__init__(buffer_size, observation_space, action_space, device, n_envs, *args, **kwargs)
        if copy_info_dict:
            if self.size():
                path = self.stored.path
                self.close()
                raise InputError(f"copy_info_dict=True needs each step's info, and those of the steps at {path} were not stored")
            self.infos = np.array([[{} for _ in range(self.n_envs)] for _ in range(self.buffer_size)])

    def add(self, obs: Any, next_obs: Any, action: Any, reward: Any, done: Any, infos: list[dict[str, Any]]) -> None:
        """Add one step of every environment; as of `DiskReplayBuffer`."""
        if self.ep_length[self.pos].any():  # an episode whose steps are not drawn any more from now on
            self._of_episodes = None
        try:
            super().add(obs, next_obs, action, reward, shaped("done", done, (self.n_envs,)), infos)
        except BaseException:  # the account of episodes may be behind the store
            self._load()
            raise

    def _load(self) -> None:
        """Be where the store's writer would be, with what Stable-Baselines3 keeps about episodes."""
        super()._load()
        self._of_episodes = None
        self.ep_start, self.ep_length = np.zeros((2, self.buffer_size, self.n_envs), np.int64)
        self._current_ep_start = np.full(self.n_envs, self.pos, np.int64)
        buffer = self.stored.buffer
        if buffer is None:
            return
        episodes, size = buffer.episodes, self.buffer_size
        order = np.lexsort((episodes.start, episodes.stream))
        stream, start, stored = episodes.stream[order], episodes.start[order], episodes.length[order]
        running, until = episodes.ending[order] == RUNNING, np.cumsum(stored)
        later = until[np.searchsorted(stream, stream, "right") - 1] - until  # steps of later episodes of the same environment
        length = episodes.elapsed(start) + stored  # with steps that are evicted
        first = (self.pos - later - length) % size
        self._current_ep_start[stream[running]] = first[running]
        # Of an episode longer than the ring, the library takes the steps beyond whole rounds for one, from its first place on.
        length = np.where(running, np.minimum(length, size), length % size)
        whole = np.flatnonzero(length + later <= size)
        of = np.repeat(whole, length[whole])
        within = np.arange(len(of)) - np.repeat(np.cumsum(length[whole]) - length[whole], length[whole])
        places = (first[of] + within) % size, stream[of]
        self.ep_start[places], self.ep_length[places] = first[of], np.where(running, 0, length)[of]

    def _compute_episode_length(self, env_idx: int) -> None:
        self._of_episodes = None
        super()._compute_episode_length(env_idx)

    # Samples: what the library reads array by array, for steps with and without other goals, is read once

    def sample(self, batch_size: int, env: VecNormalize | None = None) -> Any:
        """Draw steps of episodes that are over, most of them with goals that were reached later, as Stable-Baselines3 does."""
        batch_size = integer("batch_size", batch_size)
        if self._of_episodes is None:
            self._of_episodes = np.flatnonzero(self.ep_length > 0)
        if not len(self._of_episodes):
            raise RuntimeError(
                "Unable to sample before the end of the first episode. We recommend choosing a value "
                "for learning_starts that is greater than the maximum number of timesteps in the environment."
            )
        drawn = np.random.choice(self._of_episodes, size=batch_size, replace=True)  # noqa: NPY002  as it does
        virtual = int(self.her_ratio * batch_size)
        drawn = np.concatenate((drawn[virtual:], drawn[:virtual]))  # the order of what it delivers
        places, envs = np.divmod(drawn, self.n_envs)
        batch = self._batch(places, envs)
        self._replace_goals(batch, places, envs, batch_size - virtual)
        return self._samples(batch, env)

    def _replace_goals(self, batch: Batch, places: Int64, envs: Int64, first: int) -> None:
        """Give a batch's steps from `first` on other goals, and the rewards that these would have brought."""
        places, envs = places[first:], envs[first:]
        infos: Any = copy.deepcopy(self.infos[places, envs]) if self.copy_info_dict else [{} for _ in places]
        goals = self._sample_goals(places, envs)
        assert self.env is not None, (
            "You must initialize HerReplayBuffer with a VecEnv so it can compute rewards for virtual transitions"
        )
        reached = batch["next_obs"]["achieved_goal"][first:].numpy()
        rewards = self.env.env_method("compute_reward", reached, goals, infos, indices=[0])[0].astype(np.float32).reshape(-1)
        batch["reward"] = torch.cat((batch["reward"][:first], torch.from_numpy(rewards)))
        for name in ("obs", "next_obs"):
            batch[name]["desired_goal"] = torch.cat((batch[name]["desired_goal"][:first], torch.from_numpy(goals)))

    def _sample_goals(self, batch_indices: Int64, env_indices: Int64) -> npt.NDArray[Any]:
        """Draw a goal that was reached in each step's episode, as Stable-Baselines3 does."""
        start, length = self.ep_start[batch_indices, env_indices], self.ep_length[batch_indices, env_indices]
        if self.goal_selection_strategy == GoalSelectionStrategy.FINAL:
            reached = length - 1
        else:
            future = self.goal_selection_strategy == GoalSelectionStrategy.FUTURE
            reached = np.random.randint((batch_indices - start) % self.buffer_size if future else 0, length)  # noqa: NPY002  as it does
        batch = self._batch((reached + start) % self.buffer_size, env_indices, columns=["obs/achieved_goal"])
        return np.asarray(batch["next_obs"]["achieved_goal"])

    def truncate_last_trajectory(self) -> None:
        """Take the episodes that run for over, as Stable-Baselines3 does where it loads a buffer."""
        if (self._current_ep_start != self.pos).any():
            if not self.stored.writes:
                self.stored.open_to_write()
                self._load()
            running = np.flatnonzero(self._current_ep_start != self.pos)
            warnings.warn(
                "The last trajectory in the replay buffer will be truncated.\n"
                "If you are in the same episode as when the replay buffer was saved,\n"
                "you should use `truncate_last_trajectory=False` to avoid that issue.",
                stacklevel=2,
            )
            self.stored.opened.cut_off()
            for env in running.tolist():
                self._compute_episode_length(env)

    def __getstate__(self) -> dict[str, Any]:
        """Return what it takes to open it again, without the environment."""
        own = {"env", "ep_start", "ep_length", "_current_ep_start", "_of_episodes"}
        return {name: value for name, value in self.__dict__.items() if name not in own}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Open the store again; `set_env` must follow."""
        self.env = None
        super(HerReplayBuffer, self).__setstate__(state)
