"""Rollouts: adding one and clearing it, against a copy of the same into numpy's arrays in RAM; and PPO with them.

    python -m bench.rollouts [--only vectors] --json FILE

Of 8 environments with 2,048 steps each, 64 with 128 and 256 with 24: 48 floats of observation and 12 of action. Steps come one
by one from all environments, or as a block; then all are cleared. The store has a capacity of one rollout, and has seen enough of
them that a file is made now and then, as it would be in a long run.

Blocks of a few frames, too, against as many single steps. Then rollouts of 64 environments that show stacks of four Atari frames:
they are played by a convolutional network, and learned from twice, by Stable-Baselines3's PPO, Tianshou's, and a plain one, each
with our buffer, and with its own in RAM.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from stable_baselines3 import PPO as StableBaselinesPPO  # noqa: N811
from stable_baselines3.common.vec_env import DummyVecEnv
from tianshou.algorithm.modelfree.ppo import PPO as TianshouPPO  # noqa: N811
from tianshou.algorithm.modelfree.reinforce import ProbabilisticActorPolicy
from tianshou.algorithm.optim import AdamOptimizerFactory
from tianshou.data import Batch, VectorReplayBuffer
from tianshou.utils.net.common import ModuleWithVectorOutput
from tianshou.utils.net.discrete import DiscreteActor, DiscreteCritic
from tianshou.utils.torch_utils import policy_within_training_step

import diskbuffer as db
from bench.frames import frames
from bench.measure import Part, Report, in_turn, parser, ratio, run
from bench.worker import Worker, in_turns, started
from diskbuffer.adapters.sb3 import DiskRolloutBuffer
from diskbuffer.adapters.tianshou import DiskVectorReplayBuffer

SHAPES = ((8, 2048), (64, 128), (256, 24))
OBS, ACTION = 48, 12
Rollout = tuple[np.ndarray, ...]


def rollout_of(seed: int, steps: int, environments: int) -> Rollout:
    """Return a rollout: obs, action, reward, next_obs, terminated and truncated, each (steps, environments, ...)."""
    rng = np.random.default_rng(seed)
    shape = (steps, environments)
    obs = rng.normal(size=(steps + 1, environments, OBS)).astype(np.float32)
    action, reward = rng.normal(size=(*shape, ACTION)).astype(np.float32), rng.normal(size=shape).astype(np.float32)
    return obs[:-1], action, reward, obs[1:], np.zeros(shape, np.bool_), np.zeros(shape, np.bool_)


class InRam:
    """Arrays of a rollout, for as many copies of each."""

    def __init__(self, like: Rollout) -> None:
        self._arrays = [np.empty_like(array) for array in like]

    def add(self, rollout: Rollout) -> None:
        """Copy it, a step at a time."""
        for t in range(len(rollout[0])):
            for array, values in zip(self._arrays, rollout, strict=True):
                array[t] = values[t]

    def extend(self, rollout: Rollout) -> None:
        """Copy it as a block."""
        for array, values in zip(self._arrays, rollout, strict=True):
            array[:] = values


class OnDisk:
    """A buffer of the capacity of a rollout."""

    def __init__(self, path: Path, steps: int, environments: int) -> None:
        obs, action = (gym.spaces.Box(-1e9, 1e9, (n,), np.float32) for n in (OBS, ACTION))
        how: dict[str, Any] = {"observation_space": obs, "action_space": action, "n_envs": environments, "autoreset": "disabled"}
        self.buffer = db.ReplayBuffer(path, steps * environments, **how)

    def add(self, rollout: Rollout) -> None:
        """Add it, a step of all environments at a time, and clear it."""
        for step in zip(*rollout, strict=True):
            self.buffer.add(*step)
        self.buffer.clear()

    def extend(self, rollout: Rollout) -> None:
        """Add it as a block, and clear it."""
        self.buffer.extend(*rollout)
        self.buffer.clear()


def vectors(report: Report, directory: Path) -> None:
    """Compare the speed of whole rollouts."""
    for environments, steps in SHAPES:
        given = rollout_of(report.seed, steps, environments)
        ours, ram = OnDisk(directory / f"{environments}", steps, environments), InRam(given)
        for way, target in (("add", 0.15), ("extend", 0.3)):
            competitors: dict[str, Callable[[Any], Any]] = {"ours": getattr(ours, way), "RAM": getattr(ram, way)}
            rounds = 10 if report.quick else 50
            in_turn(max(2, rounds // 5), competitors, lambda given=given: given)  # type: ignore[misc]
            seconds = in_turn(rounds, competitors, lambda given=given: given)  # type: ignore[misc]
            for name, times in seconds.items():
                report.times(f"{way} of {environments} x {steps}, {name}", times)
            what = f"{way} of {environments} x {steps} and clear, speed of a copy in RAM"
            report.row(what, ratio(seconds["RAM"], seconds["ours"]), "x", at_least=target)
            mean = np.sum(seconds["RAM"]) / np.sum(seconds["ours"])
            report.row(f"{what}, over all rounds", float(mean), "x", at_least=target)
        ours.buffer.close()


def blocks(report: Report, directory: Path) -> None:
    """Compare `extend` of a few frames with as many calls of `add`, in CPU time."""
    pixels, columns = frames(2_000), {"obs": db.Column((84, 84), "uint8"), "action": db.Column((), "int64")}
    together = 1_024
    with db.ReplayBuffer(directory / "blocks", 100_000, columns=columns) as buffer:
        for n in (1, 4, 16, 64, 256):

            def extend(first: int, n: int = n) -> None:
                for k in range(first, first + together, n):
                    zeros = np.zeros(n, np.int64), np.zeros(n, np.float32)
                    buffer.extend(obs=pixels[k : k + n + 1], action=zeros[0], reward=zeros[1], new_episode=False)

            def add(first: int) -> None:
                for k in range(first, first + together):
                    buffer.add(pixels[k], 0, 0.0, pixels[k + 1], False, False)

            rounds = 3 if report.quick else 15
            seconds = in_turn(rounds, {"extend": extend, "add": add}, lambda: 500, clock=time.thread_time)
            for name, times in seconds.items():
                report.times(f"{name}, {together} frames, {n} together", times)
            what = f"extend of {n} frames, of the CPU time of {n} calls of add"
            report.row(what, ratio(seconds["extend"], seconds["add"]), "x", at_most=1.05)


ENVIRONMENTS, STEPS, LENGTH, EPOCHS, BATCH = 64, 16, 100, 2, 256


class Film(gym.Env[Any, Any]):
    """An environment that shows stacks of frames, whatever is done, in episodes of `LENGTH` steps."""

    observation_space, action_space = gym.spaces.Box(0, 255, (4, 84, 84), np.uint8), gym.spaces.Discrete(6)

    def __init__(self, film: np.ndarray) -> None:
        self._frames, self._t = np.concatenate([film[:1], film[:1], film[:1], film]), 0  # the first one fills the first stack

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        """Show the first stack."""
        self._t = 0
        return self._frames[:4], {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Show the next one."""
        self._t += 1
        return self._frames[self._t : self._t + 4], 1.0, self._t == LENGTH, False, {}


def films(seed: int) -> Any:
    """Return environments, each with a film of its own."""
    pixels = frames(20_000)
    first = np.random.default_rng(seed).integers(0, len(pixels) - LENGTH, ENVIRONMENTS).tolist()
    return DummyVecEnv([lambda at=at: Film(np.asarray(pixels[np.arange(at, at + LENGTH + 1)])) for at in first])  # type: ignore[misc]


class StableBaselines:
    """PPO of Stable-Baselines3."""

    def __init__(self, seed: int, path: Path | None) -> None:
        how: dict[str, Any] = {}
        if path is not None:
            how = {"rollout_buffer_class": DiskRolloutBuffer, "rollout_buffer_kwargs": {"path": path, "frame_stack": 4}}
        size: dict[str, Any] = {"n_steps": STEPS, "n_epochs": EPOCHS, "batch_size": BATCH}
        self._model = StableBaselinesPPO("CnnPolicy", films(seed), seed=seed, device="cpu", **size, **how)

    def rollout(self) -> None:
        """Play one, and learn from it."""
        self._model.learn(STEPS * ENVIRONMENTS, reset_num_timesteps=False)


class Network(torch.nn.Module):
    """The network of the paper on DQN, with the logits of a policy and a value."""

    def __init__(self) -> None:
        super().__init__()
        self.body = torch.nn.Sequential(
            *(torch.nn.Conv2d(4, 32, 8, 4), torch.nn.ReLU(), torch.nn.Conv2d(32, 64, 4, 2), torch.nn.ReLU()),
            *(torch.nn.Conv2d(64, 64, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(3136, 512), torch.nn.ReLU()),
        )
        self.logits, self.value = torch.nn.Linear(512, 6), torch.nn.Linear(512, 1)

    def forward(self, obs: torch.Tensor) -> tuple[torch.distributions.Categorical, torch.Tensor]:
        """Return the policy and the value of observations, (n, 4, 84, 84)."""
        features = self.body(obs.float() / 255)
        return torch.distributions.Categorical(logits=self.logits(features)), self.value(features)[:, 0]


class Plain:
    """A PPO of some lines, as one writes it for oneself; its rollout in tensors, or in a buffer of ours."""

    def __init__(self, seed: int, path: Path | None) -> None:
        torch.manual_seed(seed)
        self._env: Any = films(seed)
        self._network = Network()
        self._optimizer = torch.optim.Adam(self._network.parameters(), 2.5e-4)
        self._obs, self._buffer = self._env.reset(), None
        if path is not None:
            columns = {"obs": db.Column((84, 84), "uint8"), "action": db.Column((), "int64")}
            how: dict[str, Any] = {"columns": columns, "frame_stack": 4, "n_envs": ENVIRONMENTS, "autoreset": "disabled"}
            self._buffer = db.ReplayBuffer(path, STEPS * ENVIRONMENTS, **how)

    def rollout(self) -> None:
        """Play one, and learn from it."""
        (self._in_ram if self._buffer is None else self._on_disk)()

    @torch.no_grad()
    def _play(self) -> Iterator[tuple[np.ndarray, ...]]:
        for _ in range(STEPS):
            obs, action = self._obs, self._network(torch.from_numpy(self._obs))[0].sample().numpy()
            self._obs, reward, over, infos = self._env.step(action)
            following = np.stack([info.get("terminal_observation", now) for info, now in zip(infos, self._obs, strict=True)])
            yield obs, action, reward, following, over, np.zeros(ENVIRONMENTS, np.bool_)

    def _learn(self, obs: Any, action: Any, logp_old: Any, advantage: Any, target: Any) -> None:
        distribution, value = self._network(obs)
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        ratio = (distribution.log_prob(action) - logp_old).exp()
        gain = torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
        loss = 0.5 * ((value - target) ** 2).mean() - gain - 0.01 * distribution.entropy().mean()
        self._optimizer.zero_grad()
        loss.backward()
        self._optimizer.step()

    @torch.no_grad()
    def _evaluate(self, batch: Any) -> tuple[torch.Tensor, ...]:
        distribution, value = self._network(batch["obs"])
        return distribution.log_prob(batch["action"]), value, self._network(batch["next_obs"])[1]

    def _on_disk(self) -> None:
        buffer = self._buffer
        assert buffer is not None
        for step in self._play():
            buffer.add(*step)
        buffer.columns.map(self._evaluate, BATCH, out=("logp_old", "value", "next_value"), progress=False)
        buffer.columns.returns_and_advantages(gamma=0.99, gae_lambda=0.95)
        for _ in range(EPOCHS):
            for batch in buffer.batches(BATCH, shuffle=True):
                self._learn(*(batch[name] for name in ("obs", "action", "logp_old", "advantage", "return")))
        buffer.clear()

    def _in_ram(self) -> None:
        played = [torch.from_numpy(np.stack(column)) for column in zip(*self._play(), strict=True)]
        obs, action, reward, following, over, _ = (column.flatten(0, 1) for column in played)
        parts = [self._evaluate({"obs": obs[k], "action": action[k], "next_obs": following[k]}) for k in _batches(None)]
        logp_old, value, next_value = (torch.cat(part) for part in zip(*parts, strict=True))
        delta = (reward + 0.99 * next_value * ~over - value).view(STEPS, ENVIRONMENTS)
        advantage, goes_on = torch.zeros(STEPS + 1, ENVIRONMENTS), ~over.view(STEPS, ENVIRONMENTS)
        for t in range(STEPS - 1, -1, -1):
            advantage[t] = delta[t] + 0.99 * 0.95 * goes_on[t] * advantage[t + 1]
        advantages = advantage[:-1].flatten()
        for _ in range(EPOCHS):
            for k in _batches(torch.randperm(len(obs))):
                self._learn(obs[k], action[k], logp_old[k], advantages[k], advantages[k] + value[k])


def _batches(order: torch.Tensor | None) -> Iterator[Any]:
    for first in range(0, STEPS * ENVIRONMENTS, BATCH):
        yield slice(first, first + BATCH) if order is None else order[first : first + BATCH]


class Tianshou:
    """PPO of Tianshou."""

    def __init__(self, seed: int, path: Path | None) -> None:
        torch.manual_seed(seed)
        self._env: Any = films(seed)
        body = Network().body
        actor = DiscreteActor(preprocess_net=_Body(body), action_shape=6, softmax_output=False)
        self._ppo: Any = TianshouPPO(
            policy=ProbabilisticActorPolicy(
                actor=actor,
                dist_fn=lambda logits: torch.distributions.Categorical(logits=logits),
                action_space=self._env.action_space,
                action_scaling=False,
            ),
            critic=DiscreteCritic(preprocess_net=_Body(body)),
            optim=AdamOptimizerFactory(lr=2.5e-4),
        )
        how: dict[str, Any] = {"stack_num": 4, "ignore_obs_next": True, "save_only_last_obs": True}
        kind: Any = VectorReplayBuffer
        if path is not None:
            kind, how = DiskVectorReplayBuffer, how | {"path": path}
        self._buffer = kind(STEPS * ENVIRONMENTS, ENVIRONMENTS, **how)
        self._obs = self._env.reset()

    def rollout(self) -> None:
        """Play one, and learn from it."""
        self._buffer.reset()
        with policy_within_training_step(self._ppo.policy):
            for _ in range(STEPS):
                with torch.no_grad():
                    action = self._ppo.policy(Batch(obs=self._obs, info=Batch())).act.numpy()
                obs, (self._obs, reward, over, _) = self._obs, self._env.step(action)
                step = {"obs": obs, "act": action, "rew": reward, "terminated": over, "truncated": np.zeros_like(over)}
                self._buffer.add(Batch(**step, obs_next=self._obs, info=Batch()), buffer_ids=np.arange(ENVIRONMENTS))
            self._ppo.update(buffer=self._buffer, batch_size=BATCH, repeat=EPOCHS)


class _Body(ModuleWithVectorOutput):
    """A body, as Tianshou takes it."""

    def __init__(self, body: torch.nn.Module) -> None:
        super().__init__(512)
        self._body = body

    def forward(self, obs: Any, state: Any = None, info: Any = None) -> tuple[torch.Tensor, Any]:
        """Return the features of observations, (n, 4, 84, 84)."""
        return self._body(torch.as_tensor(np.asarray(obs)).float() / 255), state


def policies(report: Report, directory: Path) -> None:
    """Compare whole rollouts, played and learned from."""
    for name, kind in (("Stable-Baselines3", StableBaselines), ("Tianshou", Tianshou), ("a plain PPO", Plain)):
        competitors = {
            "ours": Worker(kind, report.seed, directory / name.replace(" ", "-")),
            "its own, in RAM": Worker(kind, report.seed, None),
        }
        with started(competitors):
            seconds = in_turns(competitors, "rollout", rounds=3 if report.quick else 15)
        for of, times in seconds.items():
            report.times(f"{name}: a rollout of {ENVIRONMENTS} environments, {of}", times)
        what = f"{name}: a rollout of {ENVIRONMENTS} x {STEPS} Atari stacks, played and learned from, of its time in RAM"
        report.row(what, ratio(seconds["ours"], seconds["its own, in RAM"]), "x", at_most=1.1)


PARTS: dict[str, Part] = {part.__name__: part for part in (vectors, blocks, policies)}

if __name__ == "__main__":
    run("rollouts", PARTS, parser(__doc__))
