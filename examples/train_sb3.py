"""Stable-Baselines3's DQN, SAC or PPO on an Atari game, with the experience on disk. Kill it and run it again: it goes on.

    python examples/train_sb3.py --store runs/sb3-pong --steps 20000 [--algorithm ppo]

The only lines that differ from the library's usual script are the two that name the buffer.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import ale_py
import gymnasium
from stable_baselines3 import DQN, PPO, SAC
from stable_baselines3.common.callbacks import CheckpointCallback
from stable_baselines3.common.env_util import make_atari_env, make_vec_env
from stable_baselines3.common.vec_env import VecFrameStack

import diskbuffer as db
from diskbuffer.adapters.sb3 import DiskReplayBuffer, DiskRolloutBuffer

gymnasium.register_envs(ale_py)


def joystick(game: str) -> Any:
    """Make a game that is played with a joystick, (3,) floats: what SAC needs."""
    env = gymnasium.make(game, continuous=True, obs_type="grayscale")
    return gymnasium.wrappers.ReshapeObservation(gymnasium.wrappers.ResizeObservation(env, (84, 84)), (84, 84, 1))


def main() -> None:
    """Train, from the last checkpoint if there is one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--algorithm", choices=["dqn", "sac", "ppo"], default="dqn")
    parser.add_argument("--game", default="ALE/Pong-v5")
    parser.add_argument("--store", type=Path, default=Path("runs/sb3-pong"))
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--capacity", type=int, default=1_000_000)
    options = parser.parse_args()
    games = make_atari_env(options.game, n_envs=4, seed=0)
    if options.algorithm == "sac":
        games = make_vec_env(lambda: joystick(options.game), n_envs=4, seed=0)
    env = VecFrameStack(games, 4)
    checkpoints = options.store.with_name(options.store.name + "-models")
    saved = max(checkpoints.glob("*_steps.zip"), key=lambda path: path.stat().st_mtime, default=None)
    of: Any = {"dqn": DQN, "sac": SAC, "ppo": PPO}[options.algorithm]
    if saved is not None:
        model = of.load(saved, env)
    elif options.algorithm != "ppo":
        model = of(
            "CnnPolicy",
            env,
            buffer_size=options.capacity,
            replay_buffer_class=DiskReplayBuffer,
            replay_buffer_kwargs={"path": options.store, "frame_stack": 4},
            learning_starts=200,
            train_freq=4,
            gradient_steps=1,
            batch_size=32,
        )
    else:
        model = PPO(
            "CnnPolicy",
            env,
            n_steps=128,
            n_epochs=2,
            batch_size=128,
            rollout_buffer_class=DiskRolloutBuffer,
            rollout_buffer_kwargs={"path": options.store, "frame_stack": 4},
        )
    if options.algorithm != "ppo":
        print(f"{model.num_timesteps} steps trained; {model.replay_buffer.size() * env.num_envs} of experience on disk")
    left = options.steps - model.num_timesteps
    model.learn(max(left, 0), callback=CheckpointCallback(200, str(checkpoints)), reset_num_timesteps=saved is None)
    if options.algorithm == "ppo" and left > 0:
        share = model.rollout_buffer.waited / model.rollout_buffer.updating
        print(f"updates waited for data {100 * share:.1f} % of their time")
    print(f"{model.num_timesteps} steps trained")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("\nInterrupted. Every step that was added is kept: run the same again, and it goes on.")
    except db.LockedError as error:
        sys.exit(str(error))
