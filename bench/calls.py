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
from bench.frames import frames
from bench.measure import Part, Report, in_turn, parser, run
from diskbuffer.native.single_steps import copy_drawn
from diskbuffer.reading.batches.single_steps import as_batch
from diskbuffer.samplers.sampler import Ahead

SIZES = (1, 8, 32, 64, 256)
STACK, STEPS = 4, 20_000
Calls = dict[str, Callable[[Any], Any]]


def rounds_of(report: Report) -> int:
    """Return how often each is called."""
    return 200 if report.quick else 2_000


def _of_vectors(buffer: db.ReplayBuffer, sampler: db.Uniform, size: int) -> Calls:
    """Return the parts of a batch that is read in one compiled call."""
    reader = buffer._reader
    single = reader.single_steps(None)
    assert single is not None
    drawn = sampler.next(reader.index, size).drawn
    filled = reader.copy_at_once(single, copy_drawn, size, drawn.streams, drawn.positions)
    assert filled is not None
    return {
        "draw": lambda _: sampler.next(reader.index, size),
        "find and copy": lambda _: reader.copy_at_once(single, copy_drawn, size, drawn.streams, drawn.positions),
        "tensors": lambda _: as_batch(single, filled),
    }


def _of_frames(buffer: db.ReplayBuffer, sampler: db.Uniform, size: int) -> Calls:
    """Return the parts of a batch that is planned and gathered."""
    reader = buffer._reader

    def draw(_: Any = None) -> Ahead:
        return sampler.next(reader.index, size)

    drawn = draw().drawn
    planned = reader.plan(lambda _: drawn, sampler.form)
    arrays = reader.pool.take(planned.request)
    return {
        "draw": draw,
        "plan": lambda _: reader.plan(lambda _: drawn, sampler.form),
        "take memory": lambda _: reader.pool.give(reader.pool.take(planned.request)),
        "gather": lambda _: planned.gather(arrays, threads=1),
        "tensors": lambda _: arrays.batch(),
    }


def sampling(kind: str, report: Report, directory: Path) -> None:
    """Time `sample` and its parts at each size."""
    torch.set_num_threads(1)
    buffer, theirs = _full(kind, directory)
    for _ in range(20):  # until it is seen that everything is in memory
        buffer.sample(256)
    for size in SIZES:
        sampler = db.Uniform(seed=0)
        parts = (_of_vectors if kind == "vectors" else _of_frames)(buffer, sampler, size)
        calls: Calls = {"the whole": lambda _, size=size: buffer.sample(size), **parts}  # type: ignore[misc]
        calls["Stable-Baselines3"] = lambda _, size=size: theirs.sample(size)  # type: ignore[misc]
        for name, seconds in in_turn(rounds_of(report), calls, lambda: None).items():
            report.times(f"sample({size}), {kind}: {name}", seconds, 1e6, "us")
    buffer.close()


def adding(report: Report, directory: Path) -> None:
    """Time `add` and its parts: numbers and arrays as an environment gives them."""
    columns = {"obs": db.Column((4,)), "action": db.Column((), "int64"), "reward": db.Column()}
    space, actions = spaces.Box(-10, 10, (4,), np.float32), spaces.Discrete(2)
    theirs = ReplayBuffer(STEPS, space, actions, "cpu")
    obs = np.random.default_rng(0).random((2, 4), np.float32)
    flags, reward, action = np.zeros(1, np.bool_), np.ones(1, np.float32), np.zeros(1, np.int64)
    infos: list[dict[str, Any]] = [{}]
    with db.ReplayBuffer(directory / "added", columns=columns, capacity=STEPS) as buffer:
        recorder = buffer._access.recorder()
        values = (action[0], 1.0, False, False, obs[0], obs[0])
        calls: Calls = {
            "the whole, numbers": lambda _: buffer.add(obs[0], action[0], 1.0, obs[0], False, False),
            "the whole, arrays": lambda _: buffer.add(obs[:1], action, reward, obs[:1], flags, flags),
            "the whole, a list": lambda _: buffer.add(obs[0].tolist(), action[0], 1.0, obs[0], False, False),
            "find and record": lambda _: recorder._add(values, None),
            "Stable-Baselines3": lambda _: theirs.add(obs[:1], obs[:1], action, reward, flags, infos),
        }
        for name, seconds in in_turn(rounds_of(report), calls, lambda: None, each=10).items():
            report.times(f"add, vectors: {name}", seconds, 1e6, "us")


def _full(kind: str, directory: Path) -> tuple[db.ReplayBuffer, ReplayBuffer]:
    """Return our buffer and theirs, full of the same steps."""
    rng, steps = np.random.default_rng(0), np.arange(STEPS)
    action, reward, ends = rng.integers(0, 2, STEPS), np.ones(STEPS, np.float32), steps % 500 == 499
    obs: Any
    shape: tuple[int, ...]
    if kind == "vectors":
        obs, shape, column = rng.random((STEPS + 1, 4), np.float32), (4,), db.Column((4,))
    else:
        obs, shape, column = frames(STEPS + 1), (STACK, 84, 84), db.Column((84, 84), "uint8")
    stack = 1 if kind == "vectors" else STACK
    columns = {"obs": column, "action": db.Column((), "int64"), "reward": db.Column()}
    ours = db.ReplayBuffer(directory / kind, columns=columns, capacity=2 * STEPS, frame_stack=stack, threads=1)
    ours.extend(obs[:-1], action, reward, obs[1:], terminated=ends, new_episode=np.roll(ends, 1))
    ours.flush(recompress=True)
    theirs = ReplayBuffer(STEPS, spaces.Box(0, 255, shape, obs.dtype.type), spaces.Discrete(2), "cpu")
    for k in range(stack):
        back = np.maximum(steps - stack + 1 + k, 0)
        for array, after in ((theirs.observations, 0), (theirs.next_observations, 1)):
            (array[:, 0] if stack == 1 else array[:, 0, k])[...] = obs[back + after]
    theirs.full = True
    return ours, theirs


PARTS: dict[str, Part] = {**{kind: partial(sampling, kind) for kind in ("vectors", "frames")}, "add": adding}

if __name__ == "__main__":
    run("calls", PARTS, parser(__doc__))
