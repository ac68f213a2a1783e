"""Double DQN with prioritized replay and n-step returns (after Hessel et al., 2018, "Rainbow") on CartPole, from disk.

    python examples/prioritized_dqn.py --store runs/cartpole --steps 15000

Priorities are a column of the store. Run the example again, and it goes on with them.
"""

from __future__ import annotations

import argparse
import copy
import sys
from collections import deque
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import nn

import diskbuffer as db

BATCH_SIZE, LEARNING_STARTS, STEPS_PER_TARGET = 64, 500, 200


def learn(
    online: nn.Module, target: nn.Module, optimizer: torch.optim.Optimizer, batch: dict[str, Any], sampler: db.Prioritized
) -> None:
    """Take a gradient step, weighted by importance, and give the sampler the new priorities."""
    with torch.no_grad():
        best = online(batch["next_obs"]).argmax(1, keepdim=True)
        td_target = batch["reward"] + batch["discount"] * target(batch["next_obs"]).gather(1, best)[:, 0]
    errors = online(batch["obs"]).gather(1, batch["action"][:, None])[:, 0] - td_target
    loss = (batch["weights"] * nn.functional.smooth_l1_loss(errors, torch.zeros_like(errors), reduction="none")).mean()
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    sampler.update(batch["steps"], errors.detach().abs())


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--store", type=Path, default=Path("runs/cartpole"))
    parser.add_argument("--steps", type=int, default=15_000)
    args = parser.parse_args()
    torch.manual_seed(0)
    env = gym.make("CartPole-v1")
    online = nn.Sequential(nn.Linear(4, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 2))
    target, optimizer = copy.deepcopy(online), torch.optim.Adam(online.parameters(), lr=5e-4)
    sampler = db.Prioritized(alpha=0.6, beta=0.4, seed=0, n_step=3, gamma=0.99)
    checkpoint = args.store.with_name(args.store.name + ".checkpoint.pt")
    returns: deque[float] = deque(maxlen=20)
    rng = np.random.default_rng(0)
    with db.ReplayBuffer(args.store, capacity=50_000, env=env) as buffer:
        if checkpoint.exists():
            state = torch.load(checkpoint, weights_only=True)
            online.load_state_dict(state["online"])
            target.load_state_dict(state["target"])
            optimizer.load_state_dict(state["optimizer"])
            sampler.load_state_dict(state["sampler"])
            print(f"Resumed with {len(buffer):,} steps and {sampler.batches:,} batches")
        batches = iter(buffer.loader(BATCH_SIZE, sampler, prefetch=2))
        (obs, _), total = env.reset(seed=len(buffer)), 0.0
        buffer.cut_off()
        for step in range(args.steps):
            with torch.no_grad():
                greedy = int(online(torch.from_numpy(obs)[None]).argmax())
            action = int(rng.integers(2)) if rng.random() < max(0.05, 1 - len(buffer) / 5_000) else greedy
            next_obs, reward, terminated, truncated, _ = env.step(action)
            buffer.add(obs, action, reward, next_obs, terminated, truncated)
            total += float(reward)
            obs = next_obs
            if terminated or truncated:
                returns.append(total)
                (obs, _), total = env.reset(), 0.0
            if len(buffer) >= LEARNING_STARTS:
                sampler.beta = min(1.0, 0.4 + 0.6 * step / args.steps)
                learn(online, target, optimizer, next(batches), sampler)
            if step % STEPS_PER_TARGET == 0:
                target.load_state_dict(online.state_dict())
        torch.save(
            {
                "online": online.state_dict(),
                "target": target.state_dict(),
                "optimizer": optimizer.state_dict(),
                "sampler": sampler.state_dict(),
            },
            checkpoint,
        )
        batches.close()  # type: ignore[attr-defined]
        print(f"{len(buffer):,} steps, {sampler.batches:,} batches; the last {len(returns)} returns: {np.mean(returns):.0f}")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("\nInterrupted. Every step that was added is kept: run the same again, and it goes on.")
    except db.LockedError as error:
        sys.exit(str(error))
