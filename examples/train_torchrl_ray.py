"""DQN with TorchRL's collectors on Ray, whose steps are on the disks of the cluster. Kill it and run it again: it goes on.

    python examples/train_torchrl_ray.py --store runs/torchrl-ray --steps 20000 [--collectors 4]

Each collector writes to the disk of its node; the learner samples from all of them. The only lines that differ from TorchRL's
usual script are those that name the buffer.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import ray
import torch
from tensordict.nn import TensorDictSequential
from torch import nn
from torchrl.collectors.distributed import RayCollector
from torchrl.envs.libs.gym import GymEnv
from torchrl.modules import EGreedyModule, QValueActor
from torchrl.objectives import DQNLoss, SoftUpdate

import diskbuffer as db
from diskbuffer.adapters.ray import ClusterBuffer
from diskbuffer.adapters.ray.torchrl import CollectorBuffer

BATCH, FRAMES = 64, 100


def environment() -> GymEnv:
    """Make one environment of a collector."""
    return GymEnv("CartPole-v1", categorical_action_encoding=True)


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--store", type=Path, default=Path("runs/torchrl-ray"))
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--collectors", type=int, default=2)
    parser.add_argument("--updates", type=int, default=25, help="for each batch of a collector")
    arguments = parser.parse_args()
    ray.init("local", num_cpus=arguments.collectors + 1, include_dashboard=False, log_to_driver=False, logging_level="error")
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 2))
    value = QValueActor(net, spec=environment().action_spec, in_keys=["observation"])
    exploring = EGreedyModule(value.spec, annealing_num_steps=arguments.steps, eps_end=0.05)
    loss = DQNLoss(value, action_space="categorical", delay_value=True)
    targets, optimizer = SoftUpdate(loss, tau=0.01), torch.optim.Adam(loss.parameters(), 1e-3)
    with ClusterBuffer(arguments.store.absolute(), 1_000_000) as stores:
        buffer = CollectorBuffer(stores, batch_size=BATCH)
        print(f"{len(buffer)} steps are on disk")
        collector = RayCollector(
            [environment] * arguments.collectors,
            TensorDictSequential(value, exploring),
            replay_buffer=buffer,
            frames_per_batch=FRAMES,
            total_frames=arguments.steps,
            remote_configs={"num_cpus": 1},
        )
        collector.update_policy_weights_()
        for done, _ in enumerate(collector, 1):
            losses = [learn(loss, buffer, optimizer, targets) for _ in range(arguments.updates)]
            exploring.step(FRAMES)
            collector.update_policy_weights_()
            if done % 10 == 0:
                print(f"{done * FRAMES} steps, loss {sum(losses) / len(losses):.4f}", flush=True)
        collector.shutdown(shutdown_ray=False)
        stores.refresh()
        print(f"{len(buffer)} steps in the buffer")
    ray.shutdown()


def learn(loss: DQNLoss, buffer: CollectorBuffer, optimizer: torch.optim.Optimizer, targets: SoftUpdate) -> float:
    """Learn from a batch of steps of all collectors."""
    error = loss(buffer.sample())["loss"]
    optimizer.zero_grad()
    error.backward()
    optimizer.step()
    targets.step()
    return float(error.detach())


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("\nInterrupted. Every step that was added is kept: run the same again, and it goes on.")
    except db.LockedError as error:
        sys.exit(str(error))
