"""Compiling all that is compiled, before it is needed."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np


def warmup() -> float:
    """Compile everything that is compiled, so that no later use on this machine has to; return the seconds that it took.

    That is recording: it records into small stores in a temporary directory. For images and CI: what is compiled is kept
    in numba's cache, beside the installed files, or where ``NUMBA_CACHE_DIR`` says.
    """
    begun = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="diskbuffer-warmup-") as directory:
        _use(Path(directory) / "store")
    return time.perf_counter() - begun


def _use(path: Path) -> None:
    import diskbuffer as db

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
    flat = {"obs": db.Column((3,), "float32"), "action": db.Column((), "int64")}  # recorded in another way
    with db.ReplayBuffer(path.with_name("flat"), columns=flat) as buffer:
        buffer.extend(np.zeros((121, 3), np.float32), np.zeros(120, np.int64), np.ones(120))
