"""PPO (Schulman et al., 2017) with rollouts on disk that are larger than the memory it may use.

    python examples/ppo_from_disk.py --rollouts runs/rollouts --steps 16384 --allow 300 [--policy sb3 | tianshou]

A rollout of 16,384 stacked observations takes 460 MB in RAM. Here its frames are on disk. `map` has the policy, a network of your
own or one of Stable-Baselines3's or Tianshou's, compute values and log-probabilities of the whole rollout, batch by batch;
`returns_and_advantages` computes the targets; and shuffled passes give the minibatches. `--allow` sets how many megabytes the
process may add to what it has when it starts to play (RLIMIT_DATA); it fails if it needs more.
"""

from __future__ import annotations

import argparse
import resource
import shutil
import sys
from pathlib import Path

import numpy as np
import torch
from ale_py.vector_env import AtariVectorEnv
from torch import nn

import diskbuffer as db

N_ENVS, BATCH_SIZE, CLIP = 8, 64, 0.2


class Own(nn.Module):
    """A policy and a value from a stack of four frames. Observations are uint8, (batch, 4, 84, 84)."""

    def __init__(self, n_actions: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(4, 16, 8, 4), nn.ReLU(), nn.Conv2d(16, 16, 4, 2), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 81, 64), nn.ReLU()
        )
        self.policy, self.value = nn.Linear(64, n_actions), nn.Linear(64, 1)

    def forward(self, obs: torch.Tensor) -> tuple[torch.distributions.Categorical, torch.Tensor]:
        """Return the policy and the values, (batch,)."""
        features = self.body(obs.float() / 255)
        return torch.distributions.Categorical(logits=self.policy(features)), self.value(features)[:, 0]


class OfStableBaselines3(nn.Module):
    """The same of Stable-Baselines3's `CnnPolicy`."""

    def __init__(self, envs: AtariVectorEnv) -> None:
        from stable_baselines3.common.policies import ActorCriticCnnPolicy

        super().__init__()
        spaces = envs.single_observation_space, envs.single_action_space
        self.policy = ActorCriticCnnPolicy(*spaces, lambda _: 2.5e-4)

    def forward(self, obs: torch.Tensor) -> tuple[torch.distributions.Categorical, torch.Tensor]:
        """Return the policy and the values, (batch,)."""
        policy = self.policy
        features = policy.extract_features(obs)
        pi, vf = policy.mlp_extractor(features)
        return torch.distributions.Categorical(logits=policy.action_net(pi)), policy.value_net(vf)[:, 0]


class OfTianshou(nn.Module):
    """The same of Tianshou's `ProbabilisticActorPolicy` and its critic."""

    def __init__(self, n_actions: int, envs: AtariVectorEnv) -> None:
        from tianshou.algorithm.modelfree.reinforce import ProbabilisticActorPolicy
        from tianshou.data import Batch
        from tianshou.env.atari.atari_network import DQNet, ScaledObsInputActionReprNet
        from tianshou.utils.net.discrete import DiscreteActor, DiscreteCritic

        super().__init__()
        body = ScaledObsInputActionReprNet(DQNet(4, 84, 84, n_actions, features_only=True, output_dim_added_layer=256))
        actor = DiscreteActor(preprocess_net=body, action_shape=n_actions, softmax_output=False)
        self.policy = ProbabilisticActorPolicy(
            actor=actor,
            dist_fn=lambda logits: torch.distributions.Categorical(logits=logits),
            action_space=envs.single_action_space,
            action_scaling=False,
        )
        self.critic, self.batch = DiscreteCritic(preprocess_net=body), Batch

    def forward(self, obs: torch.Tensor) -> tuple[torch.distributions.Categorical, torch.Tensor]:
        """Return the policy and the values, (batch,)."""
        return self.policy(self.batch(obs=obs, info=self.batch())).dist, self.critic(obs)[:, 0]


def allow(megabytes: int) -> None:
    """Limit this process to the memory that it has now, and so many megabytes more."""
    status = Path("/proc/self/status").read_text().splitlines()
    has = 1024 * int(next(line for line in status if line.startswith("VmData")).split()[1])
    resource.setrlimit(resource.RLIMIT_DATA, (has + megabytes * 10**6,) * 2)


def play(buffer: db.ReplayBuffer, envs: AtariVectorEnv, model: nn.Module, obs: np.ndarray, steps: int) -> np.ndarray:
    """Fill a rollout; return the last observation."""
    while len(buffer) < steps:
        with torch.no_grad():
            action = model(torch.from_numpy(obs))[0].sample().numpy()
        next_obs, reward, terminated, truncated, _ = envs.step(action)
        buffer.add(obs, action, np.sign(reward), next_obs, terminated, truncated)
        obs = next_obs
    return obs


def update(buffer: db.ReplayBuffer, model: nn.Module, optimizer: torch.optim.Optimizer, epochs: int) -> tuple[int, float]:
    """Learn from a rollout; return the number of samples seen, and the mean loss."""

    @torch.no_grad()
    def evaluate(batch: dict[str, torch.Tensor]) -> tuple[torch.Tensor, ...]:
        policy, value = model(batch["obs"])
        return value, model(batch["next_obs"])[1], policy.log_prob(batch["action"])

    buffer.columns.map(evaluate, BATCH_SIZE, ("value", "next_value", "logp_old"), progress=False)
    buffer.columns.returns_and_advantages(gamma=0.99, gae_lambda=0.95)
    seen, losses = 0, []
    for _ in range(epochs):
        for batch in buffer.batches(BATCH_SIZE, shuffle=True):
            policy, value = model(batch["obs"])
            advantage = (batch["advantage"] - batch["advantage"].mean()) / (batch["advantage"].std() + 1e-8)
            ratio = (policy.log_prob(batch["action"]) - batch["logp_old"]).exp()
            gain = torch.minimum(ratio * advantage, ratio.clamp(1 - CLIP, 1 + CLIP) * advantage).mean()
            loss = -gain + 0.5 * ((value - batch["return"]) ** 2).mean() - 0.01 * policy.entropy().mean()
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            seen += len(batch["steps"])
            losses.append(loss.item())
    return seen, float(np.mean(losses))


def main() -> None:
    """Train for some rollouts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rollouts", type=Path, default=Path("runs/rollouts"))
    parser.add_argument("--steps", type=int, default=16_384, help="of a rollout")
    parser.add_argument("--iterations", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--policy", choices=("own", "sb3", "tianshou"), default="own")
    parser.add_argument("--allow", type=int, help="megabytes of memory that may be taken on top")
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(2)
    envs = AtariVectorEnv("pong", num_envs=N_ENVS, stack_num=4)
    n = int(envs.single_action_space.n)  # type: ignore[attr-defined]
    model = Own(n) if args.policy == "own" else OfStableBaselines3(envs) if args.policy == "sb3" else OfTianshou(n, envs)
    optimizer = torch.optim.Adam(model.parameters(), lr=2.5e-4)
    obs, _ = envs.reset(seed=0)
    if args.allow is not None:
        allow(args.allow)
    for iteration in range(args.iterations):
        path = args.rollouts / str(iteration)
        with db.ReplayBuffer(path, env=envs, frame_stack=4, padding="zeros") as buffer:
            obs = play(buffer, envs, model, obs, args.steps)
            seen, loss = update(buffer, model, optimizer, args.epochs)
            stacked = len(buffer) * 4 * 84 * 84 / 1e6
            print(f"rollout {iteration}: {len(buffer):,} steps, {stacked:.0f} MB if they were stacked in RAM")
            print(f"  learned from {seen:,} samples, mean loss {loss:.3f}")
        shutil.rmtree(path)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("\nInterrupted.")
    except db.LockedError as error:
        sys.exit(str(error))
