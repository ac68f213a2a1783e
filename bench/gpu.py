"""A learner on an accelerator: how long it waits for batches, how many bytes go there, beside TorchRL's pinned memory map.

    python -m bench.gpu --json FILE

A DQN step at batch size 256 of Atari stacks, with batches from our loader, from TorchRL's prefetching buffer over a
`LazyMemmapStorage` (``pin_memory=True``), from `sample`, and with one batch that lies on the device. Where PyTorch sees no
accelerator it says so and does nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from bench.frames import KINDS
from bench.measure import Report, parser, run
from bench.peers.ours import filled
from bench.transitions import ACTIONS, Transitions

STACK, BATCH = 4, 256
Batch = dict[str, torch.Tensor]


class Learner:
    """A Q-network of the size that DQN has, its target, and a step of it."""

    def __init__(self, device: torch.device) -> None:
        torch.manual_seed(0)
        self._online, self._target = (self._network().to(device) for _ in range(2))
        self._optimiser = torch.optim.Adam(self._online.parameters(), 1e-4)

    @staticmethod
    def _network() -> nn.Module:
        return nn.Sequential(
            *(nn.Conv2d(STACK, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU(), nn.Conv2d(64, 64, 3, 1), nn.ReLU()),
            *(nn.Flatten(), nn.Linear(64 * 7 * 7, 512), nn.ReLU(), nn.Linear(512, ACTIONS)),
        )

    def step(self, batch: Batch) -> None:
        """Update on a batch."""
        with torch.no_grad():
            following = self._target(batch["next_obs"].float() / 255).amax(1)
            target = batch["reward"] + 0.99 * following * ~batch["terminated"]
        value = self._online(batch["obs"].float() / 255).gather(1, batch["action"][:, None])[:, 0]
        self._optimiser.zero_grad()
        (value - target).square().mean().backward()
        self._optimiser.step()


def torchrl(directory: Path, transitions: Transitions, device: torch.device) -> Callable[[], Iterator[Batch]]:
    """Fill TorchRL's buffer with the same stacks; return what makes a loop over its batches on the device."""
    from tensordict import TensorDict
    from torchrl.data import LazyMemmapStorage, ReplayBuffer

    storage = LazyMemmapStorage(transitions.n - transitions.first, scratch_dir=directory / "torchrl")
    buffer = ReplayBuffer(storage=storage, batch_size=BATCH, pin_memory=True, prefetch=4)
    for part in transitions.parts(1000):
        buffer.extend(TensorDict({name: torch.from_numpy(values) for name, values in part.items()}, [len(part["action"])]))

    def loop() -> Iterator[Batch]:
        while True:
            yield buffer.sample().to(device, non_blocking=True)

    return loop


def learn(batches: Iterator[Batch], learner: Learner, steps: int) -> tuple[float, float]:
    """Learn; return seconds in all, and seconds until the next batch was there."""
    for _ in range(3):
        learner.step(next(batches))
    torch.accelerator.synchronize()
    waited, begun = 0.0, time.perf_counter()
    for _ in range(steps):
        asked = time.perf_counter()
        batch = next(batches)
        waited += time.perf_counter() - asked
        learner.step(batch)
    torch.accelerator.synchronize()
    return time.perf_counter() - begun, waited


def compare(report: Report, directory: Path) -> None:
    """Learn from all, in turn."""
    device = torch.accelerator.current_accelerator()
    if device is None:
        report.left_out("an accelerator", "PyTorch sees none here")
        return
    rounds, steps = (3, 10) if report.quick else (9, 300)
    transitions = KINDS["ale"].transitions(directory, report.seed, 2_000 if report.quick else 20_000)
    with filled(transitions, directory, report.seed) as buffer:
        theirs = torchrl(directory, transitions, device)
        loader, learner = buffer.loader(BATCH, device=device), Learner(device)
        resident = buffer.sample(BATCH, device=device)
        ways: dict[str, Callable[[], Iterator[Any]]] = {
            "one batch on the device": lambda: iter(lambda: resident, None),
            "our loader": lambda: iter(loader),
            "our sample": lambda: iter(lambda: buffer.sample(BATCH, device=device), None),
            "TorchRL, pinned memmap, prefetch 4": theirs,
        }
        taken: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
        for _ in range(rounds):
            for name, make in ways.items():
                batches = make()
                taken[name].append(learn(batches, learner, steps))
                del batches
        whole = {name: [total / steps for total, _ in found] for name, found in taken.items()}
        for name, seconds in whole.items():
            report.times(f"a DQN step of 256, {device.type}: {name}", seconds)
        for name, found in taken.items():
            share = float(np.median([waited / total for total, waited in found]))
            report.row(f"share of its time that the learner waits: {name}", 100 * share, "%")
        before = loader.nbytes_sent
        next(iter(loader))
        report.row("bytes sent a batch: our loader", loader.nbytes_sent - before, "bytes")
        stacks = sum(value.nbytes for value in buffer.sample(BATCH).values())
        report.row("bytes of a batch whose observations are all stacks", stacks, "bytes")
        value = float(np.median(np.divide(whole["our loader"], whole["one batch on the device"])))
        report.row("a step with our loader, against one batch on the device", value, "x", at_most=1.1)
        value = float(np.median(np.divide(whole["TorchRL, pinned memmap, prefetch 4"], whole["our loader"])))
        report.row("a step with our loader, times as fast as with TorchRL", value, "x", at_least=1)


if __name__ == "__main__":
    run("gpu", {"all": compare}, parser(__doc__))
