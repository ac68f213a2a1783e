"""Steps that tell who added them, for tests of a cluster's stores."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

import diskbuffer as db

COLUMNS = {"obs": db.Column((2,), "int64"), "action": db.Column((), "int64")}
PATIENCE = 600.0  # seconds: no node is left out for being slow, on a machine that is busy


def step(who: int, n: int) -> tuple[Any, ...]:
    """Return what `add` takes of one step."""
    return np.array([who, n]), n, float(n), np.array([who, n + 1]), False, False


def steps(who: int, first: int, count: int, end: bool = False) -> dict[str, Any]:
    """Return a trajectory whose observations tell who added it, and its number."""
    n = np.arange(first, first + count + 1)
    obs = np.stack([np.full(count + 1, who), n], 1)
    return {"obs": obs, "action": n[:-1], "reward": n[:-1], "terminated": (n[:-1] == first + count - 1) & end}


def is_right(batch: dict[str, Any]) -> bool:
    """Return whether what belongs to one step came together."""
    n = batch["obs"][:, 1]
    same = (batch["action"] == n).all() and (batch["reward"] == n).all() and (batch["next_obs"][:, 1] == n + 1).all()
    return bool(same and (batch["obs"][:, 0] == batch["next_obs"][:, 0]).all())


def stored(path: Path) -> Counter[tuple[int, int]]:
    """Count each step in a node's directory, by who added it and its number."""
    with db.ReplayBuffer(path, mode="r") as buffer:
        batch = buffer.at(buffer.steps(), numpy=True)
        assert is_right(batch)
        return Counter(map(tuple, batch["obs"].tolist()))
