"""PPO whose environments go on while the learner updates; with `--plain`, Stable-Baselines3's PPO, whose environments wait.

    python examples/ppo_while_playing.py --seconds 60 [--wait 0.005] [--store runs/playing] [--plain]

An actor's process plays with the newest policy that it was given, and records what it did, how likely that was, and which
version of the policy did it. The learner's process draws slices of steps that are at most `MAX_AGE` versions old, and hands its
policy over every `UPDATES` gradient steps. A limiter holds how often each step is used, so neither side runs away from the
other. The policy, its optimizer, all numbers and the loss are those of the plain PPO, whose ratio is to the log-probability
that was recorded, whichever version played. `--wait` is what an environment takes a step without the processor: a robot, or a
simulator somewhere else.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.vec_env import VecEnvWrapper

import diskbuffer as db

GAME, N_ENVS, CAPACITY = "CartPole-v1", 8, 100_000
N_STEPS, EPOCHS, BATCH_SIZE, RATE, GAMMA, LAMBDA, CLIP = 32, 10, 128, 5e-4, 0.98, 0.8, 0.2
SLICE, MAX_AGE = 16, 1
UPDATES = EPOCHS * N_STEPS * N_ENVS // BATCH_SIZE  # gradient steps between two versions: as many as plain PPO takes for a rollout
WINDOW = 100  # episodes, whose mean return is printed
EXTRA = {"log_prob": db.Column((), "float32"), "policy_version": db.Column((), "int64")}
LIMITER = db.SampleToInsertRatio(EPOCHS, min_size=N_STEPS * N_ENVS, error_buffer=EPOCHS * N_STEPS * N_ENVS / 4)


class Waiting(gym.vector.VectorWrapper):
    """Environments that take some time for a step in which the processor has nothing to do."""

    def __init__(self, envs: gym.vector.VectorEnv, wait: float) -> None:
        super().__init__(envs)
        self._wait = wait

    def step(self, actions: Any) -> Any:
        """Wait, and step."""
        time.sleep(self._wait)
        return super().step(actions)


def make(wait: float) -> gym.vector.VectorEnv:
    """Return the environments."""
    return Waiting(gym.make_vec(GAME, num_envs=N_ENVS, vectorization_mode="sync"), wait)


def new_policy(envs: gym.vector.VectorEnv) -> ActorCriticPolicy:
    """Return the policy that PPO has, too, and its optimizer."""
    return ActorCriticPolicy(envs.single_observation_space, envs.single_action_space, lambda _: RATE)


def play(store: Path, options: argparse.Namespace, shared: ActorCriticPolicy, version: Any, waited: Any) -> None:
    """Play for ever, with the policy that was handed over last."""
    torch.set_num_threads(1)
    torch.manual_seed(options.seed)
    envs = make(options.wait)
    policy, known = new_policy(envs), -1
    obs, _ = envs.reset(seed=options.seed)
    with db.ReplayBuffer(store, CAPACITY, env=envs, extra=EXTRA, writer="actor", limiter=LIMITER) as buffer:
        while True:
            if version.value != known:
                with version.get_lock():
                    policy.load_state_dict(shared.state_dict())
                    known = version.value
            with torch.no_grad():
                chosen = policy.get_distribution(torch.from_numpy(obs))
                action = chosen.sample()
                log_prob = chosen.log_prob(action)
            next_obs, reward, terminated, truncated, _ = envs.step(action.numpy())
            begin = time.perf_counter()
            buffer.add(
                obs, action, reward, next_obs, terminated, truncated, log_prob=log_prob, policy_version=np.full(N_ENVS, known)
            )
            waited.value += time.perf_counter() - begin
            obs = next_obs


def loss_of(policy: ActorCriticPolicy, handed_over: ActorCriticPolicy, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Return the loss over slices, (BATCH_SIZE // SLICE, SLICE), with advantages by the values of what was handed over last."""
    shape, mask = batch["action"].shape, batch["mask"]
    values, log_prob, _ = policy.evaluate_actions(batch["obs"].flatten(0, 1), batch["action"].flatten())
    values, log_prob = values.view(shape), log_prob.view(shape)
    with torch.no_grad():
        rows, last = torch.arange(shape[0]), mask.sum(1) - 1  # a slice ends where its episode does
        old = handed_over.predict_values(batch["obs"].flatten(0, 1)).view(shape)
        next_values = old.roll(-1, dims=1)
        next_values[rows, last] = handed_over.predict_values(batch["next_obs"][rows, last]).flatten()
        surprise = (batch["reward"] + GAMMA * next_values * ~batch["terminated"] - old) * mask
        advantage, further = torch.zeros(shape), torch.zeros(shape[0])
        for t in reversed(range(shape[1])):
            further = surprise[:, t] + GAMMA * LAMBDA * further
            advantage[:, t] = further
        target = advantage + old
    advantage = advantage[mask]
    advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    ratio = (log_prob - batch["log_prob"])[mask].exp()
    gain = torch.minimum(ratio * advantage, ratio.clamp(1 - CLIP, 1 + CLIP) * advantage).mean()
    return 0.5 * ((values - target)[mask] ** 2).mean() - gain


def newest_returns(buffer: db.ReplayBuffer) -> Any:
    """Return the returns of the last episodes that are over."""
    episodes = buffer.episodes
    over = episodes[episodes.ending != "running"]
    return over[np.argsort(over.start)[-WINDOW:]].returns


def tell(begin: float, steps: int, returns: Any) -> None:
    """Print a point of the curve."""
    mean = f"{np.mean(returns):.1f}" if len(returns) else "none yet"
    print(f"{time.perf_counter() - begin:.1f} s: {steps} steps, return {mean}", flush=True)


def tell_waits(seconds: float, environments: float, learner: float) -> None:
    """Print how long either side has stood still."""
    print(f"environments waited {100 * environments / seconds:.0f} % of the time, the learner {100 * learner / seconds:.0f} %")


def while_playing(store: Path, options: argparse.Namespace) -> None:
    """Learn while an actor plays."""
    context = torch.multiprocessing.get_context("spawn")
    envs = make(options.wait)
    policy, shared = new_policy(envs), new_policy(envs)
    shared.load_state_dict(policy.state_dict())
    shared.share_memory()
    version, waited = context.Value("q", 0), context.Value("d", 0.0)
    db.ReplayBuffer(store, CAPACITY, env=envs, extra=EXTRA, writer="actor").close()  # so that there is something to read
    actor = context.Process(target=play, args=(store, options, shared, version, waited), daemon=True)
    actor.start()
    sampler = db.Slices(SLICE, options.seed, strict=False, max_age=MAX_AGE, age_column="policy_version")
    with db.ReplayBuffer(store, mode="r", limiter=LIMITER) as buffer:
        loader = buffer.loader(BATCH_SIZE // SLICE, sampler, prefetch=1, refresh_every=0.02)
        batches = iter(loader)
        next(batches)  # by now the actor's process plays
        begin, reported, before = time.perf_counter(), 0.0, loader.waited
        for number, batch in enumerate(batches):
            loss = loss_of(policy, shared, batch)
            policy.optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(policy.parameters(), 0.5)
            policy.optimizer.step()
            if number % UPDATES == UPDATES - 1:
                with version.get_lock():
                    shared.load_state_dict(policy.state_dict())
                    version.value += 1
            now = time.perf_counter()
            if now - reported > 1:
                reported = now
                tell(begin, buffer.stats()["limiter"]["added"], newest_returns(buffer))
                if now - begin > options.seconds:
                    break
        tell_waits(now - begin, waited.value, loader.waited - before)
    actor.terminate()  # what it has added is in the store
    actor.join()


class WaitingForVecEnv(VecEnvWrapper):
    """The same as `Waiting`, of Stable-Baselines3's environments."""

    def __init__(self, envs: Any, wait: float) -> None:
        super().__init__(envs)
        self._wait = wait

    def reset(self) -> Any:
        """Reset."""
        return self.venv.reset()

    def step_wait(self) -> Any:
        """Wait, and step."""
        time.sleep(self._wait)
        return self.venv.step_wait()


class Clock(BaseCallback):
    """Ends a training after some seconds, and tells how it goes."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._seconds, self._reported, self.learning = seconds, 0.0, 0.0

    def _on_training_start(self) -> None:
        self.begin = self._since = time.perf_counter()

    def _on_rollout_start(self) -> None:
        now = time.perf_counter()
        self.learning += now - self._since
        if now - self._reported > 1:
            self._reported = now
            tell(self.begin, self.num_timesteps, [episode["r"] for episode in self.model.ep_info_buffer or []])

    def _on_rollout_end(self) -> None:
        self._since = time.perf_counter()

    def _on_step(self) -> bool:
        return time.perf_counter() - self.begin < self._seconds


def plain(options: argparse.Namespace) -> None:
    """Train Stable-Baselines3's PPO for as long."""
    envs = WaitingForVecEnv(make_vec_env(GAME, N_ENVS, seed=options.seed), options.wait)
    numbers: Any = {"n_steps": N_STEPS, "batch_size": BATCH_SIZE, "n_epochs": EPOCHS, "learning_rate": RATE}
    model = PPO("MlpPolicy", envs, gamma=GAMMA, gae_lambda=LAMBDA, clip_range=CLIP, seed=options.seed, device="cpu", **numbers)
    clock = Clock(options.seconds)
    model.learn(10**9, callback=clock)
    seconds = time.perf_counter() - clock.begin
    tell_waits(seconds, clock.learning, seconds - clock.learning)


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--store", type=Path, help="where to keep the steps; nowhere, if it is missing")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--wait", type=float, default=0.0, help="seconds of a step of the environments beside what they compute")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--plain", action="store_true", help="Stable-Baselines3's PPO instead")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(options.seed)
    if options.plain:
        plain(options)
        return
    if options.store is not None and options.store.exists():
        parser.error(f"there is something at {options.store}; the store is made anew, so give another path")
    with tempfile.TemporaryDirectory() as directory:
        while_playing(options.store or Path(directory) / "store", options)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("\nInterrupted.")
