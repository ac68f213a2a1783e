"""RLlib's DQN or SAC, with the experience on disk. Kill it and run it again: it goes on with the steps that are there.

    python examples/train_rllib.py --store runs/rllib-cartpole --steps 20000 [--algorithm sac]

The only lines that differ from RLlib's usual script are those that name the buffer. `--buffer own` takes RLlib's own.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import ray
from ray.rllib.algorithms.dqn import DQNConfig

import diskbuffer as db
from diskbuffer.adapters.rllib import DiskSACConfig


def buffer(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return what RLlib is to make its replay buffer of."""
    common = {"capacity": arguments.capacity, "alpha": 0.6, "beta": 0.4}
    if arguments.buffer == "own":
        return {"type": "PrioritizedEpisodeReplayBuffer", **common}
    return {
        "type": "diskbuffer.adapters.rllib.DiskPrioritizedEpisodeReplayBuffer",
        "path": str(arguments.store.absolute()),
        **common,
    }


def algorithm(arguments: argparse.Namespace) -> Any:
    """Return the algorithm."""
    config: Any
    if arguments.algorithm == "dqn":
        config = DQNConfig().environment("CartPole-v1")
        config.rl_module(model_config={"fcnet_hiddens": [64], "head_fcnet_hiddens": []})
        config.training(lr=5e-4, target_network_update_freq=500)
    else:
        config = DiskSACConfig().environment("Pendulum-v1")
        config.rl_module(model_config={"fcnet_hiddens": [64, 64]})
    config.env_runners(num_env_runners=0).debugging(seed=arguments.seed)
    config.training(
        replay_buffer_config=buffer(arguments),
        train_batch_size=32,
        num_steps_sampled_before_learning_starts=min(500, arguments.steps // 2),
    )
    config.reporting(min_sample_timesteps_per_iteration=min(1_000, arguments.steps))
    return config.build_algo()


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--store", type=Path, default=Path("runs/rllib"))
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--capacity", type=int, default=50_000)
    parser.add_argument("--algorithm", choices=["dqn", "sac"], default="dqn")
    parser.add_argument("--buffer", choices=["disk", "own"], default="disk")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    ray.init("local", num_cpus=1, include_dashboard=False, log_to_driver=False, logging_level="error")
    made, steps = algorithm(arguments), 0
    while steps < arguments.steps:
        result = made.train()["env_runners"]
        steps = int(result["num_env_steps_sampled_lifetime"])
        print(f"{steps:,} steps, mean return {result.get('episode_return_mean', float('nan')):.1f}", flush=True)
    print(f"{len(made.local_replay_buffer):,} steps in the buffer")
    made.stop()
    ray.shutdown()


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("\nInterrupted. Every step that was added is kept: run the same again, and it goes on.")
    except db.LockedError as error:
        sys.exit(str(error))
