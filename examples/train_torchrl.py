"""TorchRL on an Atari game, with the experience on disk. Kill it and run it again: it goes on with what is there.

DQN, or a latent dynamics model that learns from slices of episodes, in the manner of TD-MPC2 (Hansen, Su and Wang, 2024).

    python examples/train_torchrl.py --store runs/torchrl-pong --steps 20000 [--algorithm slices]

The only lines that differ from the library's usual script are those that name the storage and the sampler.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import ale_py
import gymnasium
import torch
from gymnasium.wrappers import AtariPreprocessing, FrameStackObservation
from tensordict.nn import TensorDictSequential
from torch import nn
from torchrl.collectors import Collector
from torchrl.data import TensorDictReplayBuffer
from torchrl.envs.libs.gym import GymWrapper
from torchrl.modules import EGreedyModule, QValueActor
from torchrl.objectives import DQNLoss, SoftUpdate

import diskbuffer as db
from diskbuffer.adapters.torchrl import DiskSampler, DiskStorage

gymnasium.register_envs(ale_py)
HORIZON, FRAMES = 5, 100


class Convolutions(nn.Module):
    """Turn stacks of frames, (..., 4, 84, 84) uint8, into vectors."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self._layers = nn.Sequential(
            nn.Conv2d(4, 16, 8, 4),
            nn.ReLU(),
            nn.Conv2d(16, 32, 4, 2),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(2592, 128),
            nn.ReLU(),
            nn.Linear(128, outputs),
        )

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        """Return (..., outputs)."""
        flat: torch.Tensor = self._layers(pixels.reshape(-1, 4, 84, 84).float() / 255)
        return flat.reshape(*pixels.shape[:-3], -1)


class WorldModel(nn.Module):
    """Predict, from a latent state and actions, the latent states and rewards that follow."""

    def __init__(self, actions: int) -> None:
        super().__init__()
        self._actions = actions
        self.encode, self.dynamics = Convolutions(64), nn.Sequential(nn.Linear(64 + actions, 128), nn.ELU(), nn.Linear(128, 64))
        self.reward = nn.Linear(64 + actions, 1)

    def forward(self, slices: Any) -> torch.Tensor:
        """Return the loss over slices of (n, HORIZON) steps."""
        with torch.no_grad():
            targets = self.encode(slices["next", "observation"])
        latent, loss = self.encode(slices["observation"][:, 0]), torch.zeros(())
        for t in range(HORIZON):
            action = nn.functional.one_hot(slices["action"][:, t].long(), self._actions).float()
            both = torch.cat([latent, action], dim=1)
            latent = self.dynamics(both)
            rewards = slices["next", "reward"][:, t]
            loss = loss + 0.5**t * (nn.functional.mse_loss(latent, targets[:, t]) + (self.reward(both) - rewards).square().mean())
        return loss


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--algorithm", choices=["dqn", "slices"], default="dqn")
    parser.add_argument("--game", default="ALE/Pong-v5")
    parser.add_argument("--store", type=Path, default=Path("runs/torchrl-pong"))
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--capacity", type=int, default=1_000_000)
    options = parser.parse_args()
    torch.manual_seed(0)
    game = AtariPreprocessing(gymnasium.make(options.game, frameskip=1))
    env: Any = GymWrapper(FrameStackObservation(game, 4), categorical_action_encoding=True)
    actor = QValueActor(Convolutions(env.action_spec.n), spec=env.action_spec, in_keys=["observation"])
    explore = EGreedyModule(spec=env.action_spec, annealing_num_steps=options.steps)
    storage = DiskStorage(options.capacity, options.store, frame_stack=4)
    if options.algorithm == "dqn":
        buffer = TensorDictReplayBuffer(storage=storage, batch_size=32)
        loss_module: Any = DQNLoss(actor, action_space=env.action_spec, delay_value=True)
        loss_module.make_value_estimator(gamma=0.99)
        update: Any = SoftUpdate(loss_module, eps=0.995)
    else:
        sampler = DiskSampler(db.Slices(HORIZON))
        buffer = TensorDictReplayBuffer(storage=storage, sampler=sampler, batch_size=32 * HORIZON)
        loss_module, update = WorldModel(env.action_spec.n), None
    checkpoint = options.store.with_name(options.store.name + "-model.pt")
    if checkpoint.exists():
        loss_module.load_state_dict(torch.load(checkpoint))
    done = len(buffer)
    print(f"{done} steps are on disk", flush=True)
    optim = torch.optim.Adam(loss_module.parameters(), 1e-4)
    policy = TensorDictSequential(actor, explore)
    for data in Collector(env, policy, frames_per_batch=FRAMES, total_frames=max(options.steps - done, FRAMES)):
        buffer.extend(data.reshape(-1))
        done += data.numel()
        for _ in range(FRAMES // 10):
            batch = buffer.sample()
            loss = loss_module(batch)["loss"] if update else loss_module(batch.reshape(-1, HORIZON))
            optim.zero_grad()
            loss.backward()
            optim.step()
            if update:
                update.step()
        explore.step(data.numel())
        torch.save(loss_module.state_dict(), checkpoint)
        print(f"{done} steps, loss {float(loss.detach()):.4f}", flush=True)
    storage.close()


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("\nInterrupted. Every step that was added is kept: run the same again, and it goes on.")
    except db.LockedError as error:
        sys.exit(str(error))
