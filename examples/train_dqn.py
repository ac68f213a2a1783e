"""DQN (Mnih et al., 2015) on an Atari game, from a buffer of a million steps on disk. Kill it and run it again: it goes on.

    python examples/train_dqn.py --store runs/pong --steps 20000

The environments return stacks of four frames. These are recognised and stored as single frames; the loader stacks them again.
"""

from __future__ import annotations

import argparse
import copy
import os
import shlex
import shutil
import sys
import time
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from ale_py.vector_env import AtariVectorEnv
from torch import nn
from tqdm import tqdm

import diskbuffer as db

N_ENVS = 8
BATCH_SIZE = 32
LEARNING_STARTS = 1_000
STEPS_PER_UPDATE = 4
UPDATES_PER_TARGET = 250
GAMMA = 0.99
EXPLORATION_STEPS = 20_000
CHECKPOINT_SECONDS = 15.0


class QNetwork(nn.Module):
    """A small CNN that gives a value for each action, from a stack of four frames."""

    def __init__(self, n_actions: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(4, 16, 8, 4), nn.ReLU(), nn.Conv2d(16, 32, 4, 2), nn.ReLU(), nn.Flatten(),
            nn.Linear(32 * 9 * 9, 128), nn.ReLU(), nn.Linear(128, n_actions),
        )  # fmt: skip

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        """Return (batch, n_actions) for uint8 observations (batch, 4, 84, 84)."""
        values: torch.Tensor = self.layers(obs.float() / 255)
        return values


class Learner:
    """The networks, the optimiser, and how often they were updated."""

    def __init__(self, n_actions: int, device: torch.device) -> None:
        self.online = QNetwork(n_actions).to(device)
        self.target = copy.deepcopy(self.online)
        self.optimizer = torch.optim.Adam(self.online.parameters(), lr=2.5e-4)
        self.updates = 0

    def update(self, batch: dict[str, torch.Tensor]) -> None:
        """Take one gradient step on a batch."""
        with torch.no_grad():
            following = self.target(batch["next_obs"]).max(dim=1).values
            td_target = batch["reward"] + GAMMA * following * ~batch["terminated"]
        values = self.online(batch["obs"]).gather(1, batch["action"][:, None])[:, 0]
        loss = nn.functional.smooth_l1_loss(values, td_target)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self.updates += 1
        if self.updates % UPDATES_PER_TARGET == 0:
            self.target.load_state_dict(self.online.state_dict())

    def save(self, path: Path, buffer: db.ReplayBuffer) -> None:
        """Replace the last checkpoint by a new one, whole or not at all."""
        state = {
            "online": self.online.state_dict(),
            "target": self.target.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "updates": self.updates,
            "buffer": buffer.state_dict(),
        }
        temporary = path.with_suffix(".tmp")
        torch.save(state, temporary)
        os.replace(temporary, path)

    def load(self, path: Path, buffer: db.ReplayBuffer) -> None:
        """Go on from a checkpoint."""
        state = torch.load(path, weights_only=True)
        self.online.load_state_dict(state["online"])
        self.target.load_state_dict(state["target"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.updates = state["updates"]
        buffer.load_state_dict(state["buffer"])


class Explorer:
    """The environments, and an epsilon-greedy policy in them."""

    def __init__(self, envs: AtariVectorEnv, seed: int) -> None:
        self.envs = envs
        self.n_actions = int(envs.single_action_space.n)  # type: ignore[attr-defined]
        self._rng = np.random.default_rng(seed)
        self.obs, _ = envs.reset(seed=seed)
        self._running = np.zeros(N_ENVS)
        self.returns: deque[float] = deque(maxlen=20)

    def step(self, network: QNetwork, device: torch.device, epsilon: float, buffer: db.ReplayBuffer) -> int:
        """Act once in every environment and add the steps; return how many there were."""
        random = self._rng.integers(0, self.n_actions, N_ENVS)
        with torch.no_grad():
            greedy = network(torch.from_numpy(self.obs).to(device)).argmax(dim=1).cpu().numpy()
        action = np.where(self._rng.random(N_ENVS) < epsilon, random, greedy)
        next_obs, reward, terminated, truncated, _ = self.envs.step(action)
        added = buffer.add(self.obs, action, reward, next_obs, terminated, truncated)
        self.obs = next_obs
        self._running += reward
        for env in np.flatnonzero(terminated | truncated):
            self.returns.append(float(self._running[env]))
            self._running[env] = 0
        return added


def train(store: Path, steps: int, game: str, seed: int) -> None:
    """Train for `steps` steps in all, or as many more where the store has those already."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    checkpoint = store.with_name(store.name + ".checkpoint.pt")
    torch.manual_seed(seed)
    envs = AtariVectorEnv(game, num_envs=N_ENVS, stack_num=4)
    # ALE fills an episode's first stack up with zeros
    with db.ReplayBuffer(store, capacity=1_000_000, env=envs, frame_stack=4, padding="zeros", seed=seed) as buffer:
        begin = done = buffer.stats()["added"]
        goal = steps if done < steps else done + steps
        explorer = Explorer(envs, seed + done)
        buffer.cut_off()  # the environments were reset: episodes that were running when the last process ended do not go on
        learner = Learner(explorer.n_actions, device)
        if checkpoint.exists():
            learner.load(checkpoint, buffer)
        if done:
            print(f"Resumed at {done:,} steps and {learner.updates:,} updates, from {store}")
        loader = buffer.loader(BATCH_SIZE, device=device)
        batches = None
        updates_before, started, saved, shown = learner.updates, time.perf_counter(), time.perf_counter(), 0.0
        owed = 0.0
        with tqdm(total=goal, initial=done, unit=" steps", smoothing=0.1, mininterval=0.5) as bar:
            try:
                while done < goal:
                    epsilon = max(0.05, 1 - done / EXPLORATION_STEPS)
                    added = explorer.step(learner.online, device, epsilon, buffer)
                    done += added
                    bar.update(added)
                    if len(buffer) >= LEARNING_STARTS:
                        batches = batches or iter(loader)
                        owed += added / STEPS_PER_UPDATE
                        while owed >= 1:
                            learner.update(next(batches))
                            owed -= 1
                    now = time.perf_counter()
                    if now - shown > 1:
                        shown = now
                        bar.set_postfix(figures(buffer, explorer, loader.waited / (now - started)))
                    if now - saved > CHECKPOINT_SECONDS:
                        saved = now
                        learner.save(checkpoint, buffer)
            except KeyboardInterrupt:
                print("\nInterrupted: the checkpoint is saved, and every step is kept.")
        seconds = time.perf_counter() - started
        learner.save(checkpoint, buffer)
        shown_last = figures(buffer, explorer, loader.waited / seconds)
        repr_ = repr(buffer)
        if batches is not None:
            batches.close()  # type: ignore[attr-defined]
    print(
        f"\n{done - begin:,} steps and {learner.updates - updates_before:,} updates in {seconds:.0f} s "
        f"({(done - begin) / seconds:,.0f} steps/s): " + ", ".join(f"{k} {v}" for k, v in shown_last.items())
    )
    print(repr_)
    print("Run the same again, also after a kill, and it goes on. To look into the store, while it runs, too:\n")
    program = "diskbuffer" if shutil.which("diskbuffer") else os.path.relpath(Path(sys.executable).with_name("diskbuffer"))
    for command in ("view", "info", "show"):
        print(f"    {program} {command} {shlex.quote(str(store))}")


def figures(buffer: db.ReplayBuffer, explorer: Explorer, waited: float) -> dict[str, Any]:
    """Return what the progress bar shows."""
    memory = psutil.Process().memory_info()
    return {
        "return": f"{np.mean(explorer.returns):.1f}" if explorer.returns else "-",
        "buffer": f"{len(buffer):,}",
        "disk": f"{buffer.stats()['disk_bytes'] / 1e6:.0f} MB",
        "RAM": f"{(memory.rss - getattr(memory, 'shared', 0)) / 1e6:.0f} MB",
        "waited": f"{waited:.1%}",
    }


def main() -> None:
    """Parse the command line and train."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--store", type=Path, default=Path("runs/pong"))
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--game", default="pong", help="a game's name in ale-py: pong, breakout, ms_pacman, ...")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    train(args.store, args.steps, args.game, args.seed)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("\nInterrupted. Every step that was added is kept: run the same again, and it goes on.")
    except db.LockedError as error:
        sys.exit(str(error))
