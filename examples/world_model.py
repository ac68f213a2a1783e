"""A recurrent world model (after Hafner et al., 2020, "Dream to control") learns from sequences of an Atari game on disk.

    python examples/world_model.py --store runs/world --steps 4000 --updates 200

Sequences run on from one episode into the next; `is_first` says where the model must forget. From what it saw and did, the model
predicts the next frame (at a quarter of its size), the reward, and whether the episode ends.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from pathlib import Path

import numpy as np
import torch
from ale_py.vector_env import AtariVectorEnv
from torch import nn

import diskbuffer as db

N_ENVS = 4
HIDDEN, CODE, SIDE = 128, 64, 21


class WorldModel(nn.Module):
    """Encode frames, update a state by codes and actions, and predict what comes next from the state."""

    def __init__(self, n_actions: int) -> None:
        super().__init__()
        self.n_actions = n_actions
        self.encode = nn.Sequential(
            nn.Conv2d(1, 8, 8, 4), nn.ReLU(), nn.Conv2d(8, 16, 4, 2), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 9 * 9, CODE)
        )
        self.step = nn.GRUCell(CODE + n_actions, HIDDEN)
        self.predict = nn.Linear(HIDDEN, SIDE**2 + 2)

    def forward(self, frames: torch.Tensor, action: torch.Tensor, is_first: torch.Tensor) -> torch.Tensor:
        """Return predictions of what follows each row, (batch, length, SIDE**2 + 2), for frames (batch, length, 84, 84)."""
        batch, length = action.shape
        codes = self.encode(frames.reshape(batch * length, 1, 84, 84)).reshape(batch, length, CODE)
        actions = nn.functional.one_hot(action, self.n_actions).float()
        state, predictions = codes.new_zeros(batch, HIDDEN), []
        for t in range(length):
            state = self.step(torch.cat([codes[:, t], actions[:, t]], 1), state * ~is_first[:, t, None])
            predictions.append(self.predict(state))
        return torch.stack(predictions, 1)


def loss_of(model: WorldModel, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Compare predictions with the next row, within an episode."""
    frames = batch["obs"].float() / 255
    predicted = model(frames, batch["action"], batch["is_first"])
    follows = ~batch["is_last"][:, :-1, None]
    pixels, reward, ends = predicted[:, :-1].split((SIDE**2, 1, 1), -1)
    following = nn.functional.avg_pool2d(frames[:, 1:], 4).flatten(2)
    surprise = ((pixels - following) ** 2).sum(-1, keepdim=True) + (reward - batch["reward"][:, :-1, None]) ** 2
    over = batch["terminated"][:, :-1, None].float()
    surprise = surprise + nn.functional.binary_cross_entropy_with_logits(ends, over, reduction="none")
    loss: torch.Tensor = (surprise * follows).sum() / follows.sum()
    return loss


def collect(buffer: db.ReplayBuffer, envs: AtariVectorEnv, steps: int, seed: int) -> None:
    """Play at random."""
    rng = np.random.default_rng(seed)
    obs, _ = envs.reset(seed=seed)
    buffer.cut_off()
    while len(buffer) < steps:
        action = rng.integers(0, int(envs.single_action_space.n), N_ENVS)  # type: ignore[attr-defined]
        next_obs, reward, terminated, truncated, _ = envs.step(action)
        buffer.add(obs[:, 0], action, reward, next_obs[:, 0], terminated, truncated)
        obs = next_obs


def main() -> None:
    """Collect, and learn."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--store", type=Path, default=Path("runs/world"))
    parser.add_argument("--steps", type=int, default=4_000)
    parser.add_argument("--updates", type=int, default=200)
    parser.add_argument("--length", type=int, default=32)
    args = parser.parse_args()
    torch.manual_seed(0)
    envs = AtariVectorEnv("pong", num_envs=N_ENVS, stack_num=1)
    columns = {"obs": db.Column((84, 84), "uint8"), "action": db.Column((), "int64")}
    with db.ReplayBuffer(args.store, columns=columns, n_envs=N_ENVS, autoreset="next_step") as buffer:
        collect(buffer, envs, args.steps, seed=len(buffer))
        model = WorldModel(int(envs.single_action_space.n))  # type: ignore[attr-defined]
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        losses = []
        loader = buffer.loader(8, db.Slices(args.length, seed=1, crossing=True))
        for batch in itertools.islice(loader, args.updates):
            loss = loss_of(model, batch)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            losses.append(loss.item())
        tenth = max(1, len(losses) // 10)
        print(f"{len(buffer):,} steps; loss {np.mean(losses[:tenth]):.4f} at first, {np.mean(losses[-tenth:]):.4f} at last")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("\nInterrupted. Every step that was added is kept: run the same again, and it goes on.")
    except db.LockedError as error:
        sys.exit(str(error))
