"""JAX learns from a buffer on disk. Batches are arrays, and PyTorch is not imported.

    python examples/train_jax.py --store runs/jax --steps 2000 --updates 200

A random policy plays CartPole, and a network learns to predict the next observation.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from pathlib import Path
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np

import diskbuffer as db

Parameters = list[tuple[jax.Array, jax.Array]]


def collect(buffer: db.ReplayBuffer, env: Any, steps: int) -> None:
    """Add steps of a random policy."""
    obs, _ = env.reset(seed=len(buffer))
    env.action_space.seed(len(buffer))
    for _ in range(steps):
        action = env.action_space.sample()
        following, reward, terminated, truncated, _ = env.step(action)
        buffer.add(obs, action, reward, following, terminated, truncated)
        obs = env.reset()[0] if terminated or truncated else following


def network(sizes: list[int]) -> Parameters:
    """Make weights and biases."""
    rng = np.random.default_rng(0)
    return [(jnp.asarray(rng.normal(0, m**-0.5, (m, n)), jnp.float32), jnp.zeros(n)) for m, n in itertools.pairwise(sizes)]


def loss_of(parameters: Parameters, obs: jax.Array, action: jax.Array, next_obs: jax.Array) -> jax.Array:
    """Return the error of predicted changes of the observation."""
    x = jnp.concatenate([obs, jax.nn.one_hot(action, 2)], axis=1)
    for weights, bias in parameters[:-1]:
        x = jax.nn.relu(x @ weights + bias)
    weights, bias = parameters[-1]
    return jnp.square(x @ weights + bias - (next_obs - obs)).mean()


@jax.jit
def update(parameters: Parameters, obs: jax.Array, action: jax.Array, next_obs: jax.Array) -> tuple[Parameters, jax.Array]:
    """Take a step of gradient descent."""
    loss, gradients = jax.value_and_grad(loss_of)(parameters, obs, action, next_obs)
    return jax.tree.map(lambda p, g: p - 0.05 * g, parameters, gradients), loss


def main() -> None:
    """Collect, then learn."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", type=Path, default=Path("runs/jax"))
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--updates", type=int, default=200)
    options = parser.parse_args()
    env: Any = gymnasium.make("CartPole-v1")
    with db.ReplayBuffer(options.store, env=env) as buffer:
        collect(buffer, env, options.steps)
        parameters, losses = network([6, 64, 4]), []
        loader = buffer.loader(256, columns=["obs", "action"], numpy=True)  # next_obs comes with obs
        for _, batch in zip(range(options.updates), loader, strict=False):
            parameters, loss = update(parameters, batch["obs"], batch["action"], batch["next_obs"])
            losses.append(float(loss))
        print(f"{len(buffer):,} steps, loss {losses[0]:.4f} at first, {losses[-1]:.4f} at last")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("\nInterrupted. Every step that was added is kept: run the same again, and it goes on.")
    except db.LockedError as error:
        sys.exit(str(error))
