"""What a call costs, by its parts: `sample` and `add`, in microseconds, beside the same call of Stable-Baselines3.

    python -m bench.calls --json FILE

Vectors of 4 floats, which are read in one compiled call, and stacks of four Atari frames, which are planned and gathered. All
parts are timed in turn, one call each, in one process and one thread; the whole is more than its parts by what lies between.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.buffers import ReplayBuffer

import diskbuffer as db
from bench.frames import KINDS
from bench.measure import Part, Report, in_turn, parser, run
from bench.peers.ours import filled
from bench.peers.sb3 import StableBaselines3
from diskbuffer.native.single_steps import copy_drawn
from diskbuffer.reading.batch_reader import Planned
from diskbuffer.reading.batches.base import Arrays
from diskbuffer.reading.batches.single_steps import as_batch

SIZES = (1, 8, 32, 64, 256)
STEPS = 20_000
Calls = dict[str, Callable[[Any], Any]]


def of_vectors(buffer: db.ReplayBuffer, sampler: db.Uniform, size: int) -> Calls:
    """Return the parts of a batch that is read in one compiled call."""
    reader = buffer._reader
    single = reader.single_steps(None)
    assert single is not None
    drawn = sampler.next(reader.index, size).drawn
    copied = reader.copy_at_once(single, copy_drawn, size, drawn.streams, drawn.positions)
    assert copied is not None
    return {
        "draw": lambda _: sampler.next(reader.index, size),
        "find and copy": lambda _: reader.copy_at_once(single, copy_drawn, size, drawn.streams, drawn.positions),
        "tensors": lambda _: as_batch(single, copied),
    }


def alone(planned: Planned) -> Arrays:
    """Gather a batch in this thread."""
    planned.submit(0)
    return planned.wait()


def of_frames(buffer: db.ReplayBuffer, sampler: db.Uniform, size: int) -> Calls:
    """Return the parts of a batch that is planned and gathered."""
    reader = buffer._reader
    drawn = sampler.next(reader.index, size).drawn
    planned = reader.plan(lambda _: drawn, sampler.form, reader.pool.take)
    arrays = alone(planned)
    return {
        "draw": lambda _: sampler.next(reader.index, size),
        "plan": lambda _: reader.plan(lambda _: drawn, sampler.form, lambda _: arrays),
        "take memory": lambda _: reader.pool.give(reader.pool.take(arrays.request)),
        "plan and gather": lambda _: alone(reader.plan(lambda _: drawn, sampler.form, lambda _: arrays)),
        "tensors": lambda _: arrays.batch(),
    }


def measure(report: Report, what: str, calls: Calls, each: int = 1) -> None:
    """Time calls in turn."""
    for name, seconds in in_turn(200 if report.quick else 2_000, calls, lambda: None, each).items():
        report.times(f"{what}: {name}", seconds, 1e6, "us")


def sampling(kind: str, report: Report, directory: Path) -> None:
    """Time `sample` and its parts at each size."""
    torch.set_num_threads(1)
    vectors = kind == "vectors"
    transitions = KINDS["vectors of 4" if vectors else "ale"].transitions(directory, report.seed, STEPS)
    filled(transitions, directory, report.seed).close()
    theirs = StableBaselines3(transitions, directory, report.seed)
    with db.ReplayBuffer(directory / "store", mode="r", threads=1) as buffer:
        for _ in range(20):  # until it is seen that everything is in memory
            buffer.sample(256)
        for size in SIZES:
            parts = (of_vectors if vectors else of_frames)(buffer, db.Uniform(seed=0), size)
            calls: Calls = {"the whole": lambda _, size=size: buffer.sample(size), **parts}  # type: ignore[misc]
            calls["Stable-Baselines3"] = lambda _, size=size: theirs.sample(size)  # type: ignore[misc]
            measure(report, f"sample({size}), {kind}", calls)


def adding(report: Report, directory: Path) -> None:
    """Time `add` and its parts: numbers and arrays as an environment gives them."""
    columns = {"obs": db.Column((4,)), "action": db.Column((), "int64"), "reward": db.Column()}
    theirs = ReplayBuffer(STEPS, spaces.Box(-10, 10, (4,), np.float32), spaces.Discrete(2), "cpu")
    obs = np.random.default_rng(0).random((1, 4), np.float32)
    flags, reward, action = np.zeros(1, np.bool_), np.ones(1, np.float32), np.zeros(1, np.int64)
    infos: list[dict[str, Any]] = [{}]
    with db.ReplayBuffer(directory / "added", columns=columns, capacity=STEPS) as buffer:
        recorder = buffer._access.recorder()
        values = (action[0], 1.0, False, False, obs[0], obs[0])
        calls: Calls = {
            "the whole, numbers": lambda _: buffer.add(obs[0], action[0], 1.0, obs[0], False, False),
            "the whole, arrays": lambda _: buffer.add(obs, action, reward, obs, flags, flags),
            "the whole, a list": lambda _: buffer.add(obs[0].tolist(), action[0], 1.0, obs[0], False, False),
            "find and record": lambda _: recorder._record(values, None, 1),
            "Stable-Baselines3": lambda _: theirs.add(obs, obs, action, reward, flags, infos),
        }
        measure(report, "add, vectors", calls, each=10)


PARTS: dict[str, Part] = {**{kind: partial(sampling, kind) for kind in ("vectors", "frames")}, "add": adding}

if __name__ == "__main__":
    run("calls", PARTS, parser(__doc__))
