"""Compiling all that is compiled, before it is needed."""

from __future__ import annotations

import itertools
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np


def warmup() -> float:
    """Compile everything that is compiled, so that no later use on this machine has to; return the seconds that it took.

    Uses each part of the library once, with a small store in a temporary directory. For images and CI: what is compiled is kept
    in numba's cache, beside the installed files, or where ``NUMBA_CACHE_DIR`` says.
    """
    begun = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="diskbuffer-warmup-") as directory:
        _use(Path(directory) / "store")
    return time.perf_counter() - begun


def _use(path: Path) -> None:
    import diskbuffer as db
    from diskbuffer.reading.gather.stored_parts import take_parts

    columns = {
        "obs/frame": db.Column((40, 40), "uint8"),
        "obs/achieved_goal": db.Column((3,), "float32"),
        "obs/desired_goal": db.Column((3,), "float32"),
        "obs/wide": db.Column((3,), "float64"),
        "obs/half": db.Column((3,), "float16"),
        "action": db.Column((), "int64"),
    }
    none = np.zeros(2, np.bool_)

    def obs(n: int, *axes: int) -> dict[str, Any]:
        found = {name[4:]: np.full((*axes, *columns[name].shape), n % 100, columns[name].dtype) for name in list(columns)[:-1]}
        if len(axes) == 1:  # of which stacks are given
            found["frame"] = np.stack([found["frame"]] * 2, axis=1)
        return found

    with db.ReplayBuffer(path, 400, columns=columns, n_envs=2, frame_stack=2, segment_rows=64, autoreset="next_step") as buffer:
        for step in range(60):
            now = obs(step // 20, 2)
            buffer.add(now, np.zeros(2, np.int64), np.ones(2), now, none, np.full(2, step % 20 == 19))
        for _ in range(3):
            buffer.extend({name: value[0] for name, value in obs(1, 1, 121).items()}, np.zeros(120, np.int64), np.ones(120))
        samplers = (
            db.Uniform(),
            db.Uniform(n_step=3),
            db.Uniform(half_life=10.0),
            db.Uniform(replace=False),
            db.Uniform(episodes=buffer.episodes),
            db.Slices(3, burn_in=2),
            db.Slices(3, strict=False, over="episodes"),
            db.Slices(3, crossing=True),
            db.Prioritized(),
            db.Prioritized(length=3, column="other"),
            db.Hindsight(lambda batch: batch["reward"]),
        )
        for sampler in samplers:
            batch = buffer.sample(8, sampler)
            for _ in itertools.islice(buffer.loader(8, sampler, rank=0, world_size=1), 2):
                pass
            if isinstance(sampler, db.Prioritized):
                sampler.update(batch["steps"], np.ones(8))
        planned = buffer._planned(8, db.Uniform())
        memory = buffer._reader.pool.take(planned.request).memories[0]
        take_parts(planned.portions[0].plans[0], memory.targets, 1 << 30)
        buffer.write("value", buffer.steps(), np.zeros(len(buffer), np.float32))
        buffer.returns_and_advantages(next_values="value")
        buffer.returns_and_advantages(values=None, out=("plain", ""))
        buffer.recent(np.arange(4), 0, n_step=2)
        buffer.elapsed(buffer.steps())
        buffer.seal()
        for _ in buffer.batches(64, shuffle=True, rank=0, world_size=1):
            pass
    with db.ReplayBuffer(path, mode="r") as buffer:
        buffer.sample(8)
    db.check(path, progress=False)
    pictures = {"obs": db.Column((8, 8), "uint8", transform=(db.Greyscale(), db.Resize(8, 8))), "action": db.Column((), "int64")}
    with db.ReplayBuffer(path.with_name("pictures"), columns=pictures) as buffer:
        buffer.add(np.zeros((9, 9, 3), np.uint8), 0, 0.0, np.zeros((9, 9, 3), np.uint8), False, False)
    flat = {"obs": db.Column((3,), "float32"), "action": db.Column((), "int64")}  # recorded and copied in another way
    limiter = db.SampleToInsertRatio(1, error_buffer=1000)
    with db.ReplayBuffer(path.with_name("flat"), columns=flat, limiter=limiter) as buffer:
        buffer.extend(np.zeros((121, 3), np.float32), np.zeros(120, np.int64), np.ones(120))
        for _ in range(20):  # until it is seen that nothing is waited for
            buffer.sample(8)
        buffer.stats()
        buffer._copied_recent(np.arange(4), 0, ("obs", "action"))
