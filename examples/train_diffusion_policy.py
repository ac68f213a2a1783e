"""A diffusion policy learns from demonstrations on disk: two frames in, the actions of sixteen steps out.

    python examples/train_diffusion_policy.py --store runs/demonstrations --episodes 400 --updates 2000

A dot has to get around an obstacle to a goal. Its demonstrator goes above the obstacle or below it, as chance has it, so a policy
that predicts the mean of both runs into it. See Chi et al., "Diffusion Policy" (2023); the noise is of Ho et al., "DDPM" (2020).
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

import diskbuffer as db

Floats = npt.NDArray[np.float32]

PIXELS, AHEAD, DONE = 32, 16, 8  # of a side of the picture; actions that are predicted, and done before the next prediction
LEVELS = 20  # of noise
OBSTACLE, NEAR, SPEED = 0.2, 0.15, 0.1
COLUMNS = {
    "obs/camera": db.Column((PIXELS, PIXELS, 3), "uint8"),
    "obs/position": db.Column((2,), "float32"),
    "action": db.Column((2,), "float32"),
}
WINDOWS = {"obs/camera": (-1, 0), "obs/position": (-1, 0), "action": range(AHEAD)}


class Scene:
    """A dot, an obstacle in the middle, and a goal; positions are from -1 to 1."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.position = np.array([-0.8, rng.uniform(-0.2, 0.2)])
        self.goal = np.array([0.8, rng.uniform(-0.5, 0.5)])

    def observe(self) -> dict[str, Any]:
        """Return a picture, and where the dot is."""
        picture = np.zeros((PIXELS, PIXELS, 3), np.uint8)
        y, x = np.mgrid[-1 : 1 : PIXELS * 1j, -1 : 1 : PIXELS * 1j]
        for channel, centre, radius in ((0, self.position, 0.1), (1, self.goal, 0.1), (2, np.zeros(2), OBSTACLE)):
            picture[..., channel] = 255 * (np.hypot(x - centre[0], y - centre[1]) < radius)
        return {"camera": picture, "position": self.position}

    def move(self, action: Floats) -> None:
        """Do an action."""
        self.position = np.clip(self.position + SPEED * np.clip(action, -1, 1), -1, 1)

    @property
    def has_hit(self) -> bool:
        """Whether the dot is in the obstacle."""
        return bool(np.hypot(*self.position) < OBSTACLE)

    @property
    def is_there(self) -> bool:
        """Whether the dot is at the goal."""
        return bool(np.hypot(*(self.position - self.goal)) < NEAR)


def demonstrate(buffer: db.ReplayBuffer, rng: np.random.Generator) -> None:
    """Add an episode of the demonstrator."""
    scene, side = Scene(rng), rng.choice([-1, 1])
    obs, steps = scene.observe(), 0
    while not scene.is_there:
        target = np.array([0.3, 0.7 * side]) if scene.position[0] < 0.2 else scene.goal
        action = np.clip(5 * (target - scene.position), -1, 1) + rng.normal(0, 0.05, 2)
        scene.move(action)
        following, steps = scene.observe(), steps + 1
        buffer.add(obs, action, float(scene.is_there), following, scene.is_there, steps == 100)
        if steps == 100:
            break
        obs = following


class Policy(nn.Module):
    """Predict the noise that is in actions, from what was seen."""

    kept: torch.Tensor  # of the actions, at each level of noise

    def __init__(self) -> None:
        super().__init__()
        layers = (nn.Conv2d(6, 16, 5, 2), nn.ReLU(), nn.Conv2d(16, 32, 5, 2), nn.ReLU(), nn.Flatten(), nn.Linear(32 * 25, 64))
        self.eye = nn.Sequential(*layers)
        sizes = (64 + 4 + LEVELS + 2 * AHEAD, 256, 256)
        hidden = [layer for m, n in itertools.pairwise(sizes) for layer in (nn.Linear(m, n), nn.ReLU())]
        self.head = nn.Sequential(*hidden, nn.Linear(256, 2 * AHEAD))
        self.register_buffer("kept", torch.cos(torch.linspace(0, 1, LEVELS + 1)[1:] * 1.5).square())

    def forward(self, obs: dict[str, torch.Tensor], noisy: torch.Tensor, level: torch.Tensor) -> torch.Tensor:
        """Take cameras, (n, 2, H, W, 3), positions, (n, 2, 2), actions, (n, 16, 2), and levels, (n,)."""
        pictures = obs["camera"].permute(0, 1, 4, 2, 3).flatten(1, 2).float() / 255
        levels = nn.functional.one_hot(level, LEVELS)
        known = torch.cat([self.eye(pictures), obs["position"].flatten(1), levels, noisy.flatten(1)], 1)
        noise: torch.Tensor = self.head(known)
        return noise.view_as(noisy)

    def loss(self, batch: dict[str, Any]) -> torch.Tensor:
        """Return the error of the predicted noise, of actions that there are."""
        actions, noise = batch["action"], torch.randn_like(batch["action"])
        level = torch.randint(LEVELS, actions.shape[:1])
        kept = self.kept[level][:, None, None]
        error: torch.Tensor = self(batch["obs"], kept.sqrt() * actions + (1 - kept).sqrt() * noise, level) - noise
        return error.square().mean(2)[batch["mask"]["action"]].mean()

    @torch.no_grad()
    def act(self, obs: dict[str, torch.Tensor]) -> torch.Tensor:
        """Return actions, (n, 16, 2), made of noise."""
        actions = torch.randn(len(obs["position"]), AHEAD, 2)
        for level in range(LEVELS - 1, -1, -1):
            kept, cleaner = self.kept[level], self.kept[level - 1] if level else torch.tensor(1.0)
            noise = self(obs, actions, torch.full((len(actions),), level))
            clean = ((actions - (1 - kept).sqrt() * noise) / kept.sqrt()).clamp(-1.2, 1.2)
            step = kept / cleaner
            mean = (cleaner.sqrt() * (1 - step) * clean + step.sqrt() * (1 - cleaner) * actions) / (1 - kept)
            actions = mean + ((1 - step) * (1 - cleaner) / (1 - kept)).sqrt() * torch.randn_like(actions)
        return actions


def learn(buffer: db.ReplayBuffer, policy: Policy, updates: int) -> Iterator[float]:
    """Yield the loss of each update."""
    optimizer = torch.optim.Adam(policy.parameters(), 1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, updates)
    loader = buffer.loader(64, db.Windows(WINDOWS, padding="edge", seed=0))
    for _, batch in zip(range(updates), loader, strict=False):
        loss = policy.loss(batch)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        schedule.step()
        yield loss.item()


def has_success(policy: Policy, rng: np.random.Generator) -> bool:
    """Have the policy act; return whether it came to the goal, around the obstacle."""
    scene = Scene(rng)
    seen = [scene.observe()] * 2
    for _ in range(64 // DONE):
        obs = {name: torch.from_numpy(np.stack([each[name] for each in seen])[None]) for name in seen[0]}
        obs["position"] = obs["position"].float()
        for action in policy.act(obs)[0, :DONE].numpy():
            scene.move(action)
            seen = [seen[1], scene.observe()]
            if scene.has_hit or scene.is_there:
                return not scene.has_hit
    return False


def main() -> None:
    """Demonstrate, learn, and try what was learnt."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", type=Path, default=Path("runs/demonstrations"))
    parser.add_argument("--episodes", type=int, default=400)
    parser.add_argument("--updates", type=int, default=2000)
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)  # of a small network, more take longer
    rng = np.random.default_rng(0)
    with db.ReplayBuffer(options.store, columns=COLUMNS) as buffer:
        while len(buffer.episodes) < options.episodes:
            demonstrate(buffer, rng)
        policy, losses = Policy(), []
        for number, loss in enumerate(learn(buffer, policy, options.updates), 1):
            losses.append(loss)
            if number % 250 == 0:
                print(f"after {number:,} updates: loss {np.mean(losses[-250:]):.4f}")
        tried = [has_success(policy, rng) for _ in range(20)]
        tenth = max(1, len(losses) // 10)
        print(f"{len(buffer):,} steps, loss {np.mean(losses[:tenth]):.4f} at first, {np.mean(losses[-tenth:]):.4f} at last")
        print(f"{sum(tried)} of {len(tried)} times at the goal")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("\nInterrupted. Every step that was added is kept: run the same again, and it goes on.")
    except db.LockedError as error:
        sys.exit(str(error))
