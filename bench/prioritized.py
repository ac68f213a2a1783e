"""256 of a million steps drawn in proportion to priorities, and 256 priorities set, beside TorchRL, cpprb and Tianshou.

    python -m bench.prioritized --json FILE

A call is what a training step needs: the numbers of the steps, their importance weights, and then new priorities for them. The
columns of the batch are left out: TorchRL and Tianshou get their sampler called alone, cpprb, which has no such call, a buffer of
a single byte a step. All hold the same priorities, and get the same new ones, each as the kind of array that it wants. Theirs are
in RAM; ours are a column on the disk, too, which every update writes to. Other settings that were tried are not faster.

TorchRL's trees are C++ that must have been built for the installed torch, and those of its wheel may not be. Tianshou 2.0 pins
packages that others want newer: `pip install --no-deps tianshou`, and what it then misses.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import diskbuffer as db
from bench.measure import Report, in_turn, parser, ratio, run

STEPS, BATCH = 1_000_000, 256
ALPHA, BETA, EPSILON = 0.6, 0.4, 1e-4
EACH = 16  # calls in a row

Float32 = npt.NDArray[np.float32]
Draw = Callable[[], tuple[Any, Any]]  # of steps, and their weights
Update = Callable[[Any, Any], Any]  # of steps, to priorities


def ours(priorities: Float32, seed: int, directory: Path) -> tuple[Draw, Update]:
    """Return how we draw and update."""
    columns, n = {"obs": db.Column((), "int8"), "action": db.Column((), "int8")}, len(priorities)
    buffer = db.ReplayBuffer(directory / "store", columns=columns)
    buffer.extend(obs=np.zeros(n + 1, np.int8), action=np.zeros(n, np.int8), reward=np.zeros(n, np.float32))
    sampler = db.Prioritized(ALPHA, BETA, seed, epsilon=EPSILON)
    buffer.sample(BATCH, sampler)
    sampler.update(np.arange(n), priorities)  # steps of a single environment are numbered through
    batches = itertools.count()

    def draw() -> tuple[Any, Any]:
        drawn = sampler.draw(buffer._reader.index, BATCH, sampler.generator(next(batches)))  # which keeps the buffer, too
        return drawn.positions, drawn.notes["weights"]

    return draw, sampler.update


def torchrl(priorities: Float32, seed: int, _: Path) -> tuple[Draw, Update]:
    """Return how TorchRL draws and updates, with a generator of its own, which saves it some percent."""
    import torch
    from tensordict import TensorDict
    from torchrl.data import LazyTensorStorage
    from torchrl.data.replay_buffers.samplers import PrioritizedSampler

    n = len(priorities)
    storage, sampler = LazyTensorStorage(n), PrioritizedSampler(n, ALPHA, BETA, EPSILON)
    sampler._rng = torch.Generator().manual_seed(seed)  # as ReplayBuffer(generator=...) does
    storage.set(range(n), TensorDict({"byte": torch.zeros(n, dtype=torch.int8)}, [n]))

    def draw() -> tuple[Any, Any]:
        steps, info = sampler.sample(storage, BATCH)
        return steps, info["priority_weight"]

    def update(steps: Any, priorities: Float32) -> None:
        sampler.update_priority(steps, torch.from_numpy(priorities))

    update(torch.arange(n), priorities)
    return draw, update


def cpprb(priorities: Float32, seed: int, _: Path) -> tuple[Draw, Update]:
    """Return how cpprb draws and updates; it seeds itself."""
    from cpprb import PrioritizedReplayBuffer

    buffer = PrioritizedReplayBuffer(len(priorities), {"byte": {"dtype": np.int8}}, alpha=ALPHA, eps=EPSILON)
    for some in np.split(priorities, len(priorities) // 10_000):
        buffer.add(byte=np.zeros(len(some), np.int8), priorities=some)

    def draw() -> tuple[Any, Any]:
        batch = buffer.sample(BATCH, BETA)
        return batch["indexes"], batch["weights"]

    return draw, buffer.update_priorities


def tianshou(priorities: Float32, seed: int, _: Path) -> tuple[Draw, Update]:
    """Return how Tianshou draws and updates. Of the steps themselves it gets one: draws look at priorities alone."""
    from tianshou.data import Batch, PrioritizedReplayBuffer

    np.random.seed(seed)  # noqa: NPY002 - what it draws with
    buffer = PrioritizedReplayBuffer(len(priorities), alpha=ALPHA, beta=BETA)
    buffer.add(Batch(obs=0, act=0, rew=0.0, terminated=False, truncated=False, obs_next=0))
    buffer.update_weight(np.arange(len(priorities)), priorities)

    def draw() -> tuple[Any, Any]:
        steps = buffer.sample_indices(BATCH)
        return steps, buffer.get_weight(steps)

    return draw, buffer.update_weight


def check(name: str, draw: Draw, priorities: Float32) -> None:
    """Make sure that it holds all priorities, draws in proportion, and has weights that tell them; and warm it up."""
    powers = (priorities.astype(np.float64) + EPSILON) ** ALPHA
    found = [[np.asarray(values).copy() for values in draw()] for _ in range(400)]  # copies: cpprb uses its arrays again
    drawn, weights = (np.concatenate([both[k] for both in found]) for k in (0, 1))
    expected, spread = np.average(powers, weights=powers), powers.std()
    assert abs(powers[drawn].mean() - expected) < 5 * spread / np.sqrt(len(drawn)), f"{name} draws out of proportion"
    low, high = np.quantile(weights * powers[drawn] ** BETA, (0.01, 0.99))  # Tianshou's epsilon is its own
    assert high < 1.01 * low, f"{name} has weights of its own"


def compare(report: Report, directory: Path) -> None:
    """Compare all who are installed."""
    rng = np.random.default_rng(report.seed)
    priorities = rng.exponential(size=STEPS).astype(np.float32)
    steps: dict[str, Callable[[Float32], Any]] = {}
    for make in (ours, torchrl, cpprb, tianshou):
        name = make.__name__
        try:
            draw, update = make(priorities, report.seed, directory)
        except (ImportError, RuntimeError) as error:
            report.left_out(f"{name}, priorities", str(error))
            continue
        check(name, draw, priorities)
        steps[name] = lambda new, draw=draw, update=update: update(draw()[0], new)  # type: ignore[misc]

    def given() -> Float32:
        return rng.exponential(size=BATCH).astype(np.float32)

    in_turn(2, steps, given, EACH)
    times = in_turn(20 if report.quick else 200, steps, given, EACH)
    for name, seconds in times.items():
        report.times(f"{name}, draw of 256 and update of 256", seconds, 1e6, "us")
    for name in list(times)[1:]:
        value = ratio(times[name], times["ours"], EACH)
        report.row(f"{name}'s time for draw and update, 1 M steps, by ours", value, "x", at_least=1)


if __name__ == "__main__":
    run("prioritized", {"all": compare}, parser(__doc__))
