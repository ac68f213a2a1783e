"""Tianshou's DQN or PPO on an Atari game, with the experience on disk. Kill it and run it again: it goes on with what is there.

    python examples/train_tianshou.py --store runs/tianshou-pong --steps 20000 [--algorithm ppo]

The line that differs from the library's usual script is the one that names the buffer.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import ale_py
import gymnasium
import torch
from gymnasium.wrappers import AtariPreprocessing
from tianshou.algorithm.modelfree.dqn import DQN, DiscreteQLearningPolicy
from tianshou.algorithm.modelfree.ppo import PPO
from tianshou.algorithm.modelfree.reinforce import ProbabilisticActorPolicy
from tianshou.algorithm.optim import AdamOptimizerFactory
from tianshou.data import Collector
from tianshou.env import DummyVectorEnv
from tianshou.utils.torch_utils import policy_within_training_step
from torch import nn

import diskbuffer as db
from diskbuffer.adapters.tianshou import DiskVectorReplayBuffer

gymnasium.register_envs(ale_py)
ENVS, EACH = 4, 50


class Network(nn.Module):
    """Turn stacks of frames, (n, 4, 84, 84) uint8, into values or logits."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(4, 16, 8, 4), nn.ReLU(), nn.Conv2d(16, 32, 4, 2), nn.ReLU(), nn.Flatten(), nn.Linear(2592, 128), nn.ReLU()
        )
        self.last = nn.Linear(128, outputs)

    def forward(self, obs: Any, state: Any = None, info: Any = None) -> tuple[torch.Tensor, Any]:  # noqa: ARG002
        """Return (n, outputs), and the state."""
        return self.last(self.layers(torch.as_tensor(obs).float() / 255)), state


class Value(Network):
    """A critic: a network that returns values only."""

    def forward(self, obs: Any, **_: Any) -> torch.Tensor:  # type: ignore[override]
        """Return (n, 1)."""
        return super().forward(obs)[0]


def environment(game: str) -> Any:
    """Make the game. It returns single frames; the buffer stacks them."""
    return gymnasium.wrappers.FrameStackObservation(AtariPreprocessing(gymnasium.make(game, frameskip=1)), 4)


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--algorithm", choices=["dqn", "ppo"], default="dqn")
    parser.add_argument("--game", default="ALE/Pong-v5")
    parser.add_argument("--store", type=Path, default=Path("runs/tianshou-pong"))
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--capacity", type=int, default=1_000_000)
    options = parser.parse_args()
    torch.manual_seed(0)
    envs = DummyVectorEnv([lambda: environment(options.game) for _ in range(ENVS)])
    space: Any = environment(options.game).action_space
    buffer = DiskVectorReplayBuffer(
        options.capacity, ENVS, path=options.store, stack_num=4, ignore_obs_next=True, save_only_last_obs=True
    )
    optim = AdamOptimizerFactory(lr=1e-4)
    policy: Any
    algorithm: Any
    if options.algorithm == "dqn":
        policy = DiscreteQLearningPolicy(model=Network(int(space.n)), action_space=space, eps_training=0.1)
        algorithm = DQN(policy=policy, optim=optim, target_update_freq=500, n_step_return_horizon=3)
    else:
        actor: Any = Network(int(space.n))
        policy = ProbabilisticActorPolicy(
            actor=actor,
            dist_fn=lambda logits: torch.distributions.Categorical(logits=logits),
            action_space=space,
            action_scaling=False,
        )
        algorithm = PPO(policy=policy, critic=Value(1), optim=optim, max_batchsize=256)
    checkpoint = options.store.with_name(options.store.name + "-model.pt")
    done = 0
    if checkpoint.exists():
        saved = torch.load(checkpoint)
        algorithm.load_state_dict(saved["algorithm"])
        done = saved["steps"]
    print(f"{len(buffer)} steps are on disk", flush=True)
    collector: Any = Collector(policy, envs, buffer)
    collector.reset_env()
    with policy_within_training_step(policy):
        while done < options.steps:
            done += collector.collect(n_step=ENVS * EACH).n_collected_steps
            if options.algorithm == "dqn":
                losses = [algorithm.update(buffer, 32).loss for _ in range(EACH // 5)]
            else:
                losses = [algorithm.update(buffer, 64, 2).loss.mean]
            torch.save({"algorithm": algorithm.state_dict(), "steps": done}, checkpoint)
            print(f"{done} steps, loss {losses[-1]:.4f}", flush=True)
            if options.algorithm == "ppo" and done < options.steps:
                collector.reset_buffer(keep_statistics=True)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("\nInterrupted. Every step that was added is kept: run the same again, and it goes on.")
    except db.LockedError as error:
        sys.exit(str(error))
