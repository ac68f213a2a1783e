"""When episodes ended: how many steps of all environments had been added by then."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import diskbuffer as db

COLUMNS = {"obs": db.Column((), "int64"), "action": db.Column((), "int8")}
ENVS = 3


@dataclass
class Recorded:
    """Steps that are added of all environments together, and now and then of one for itself; when each episode ended."""

    rng: np.random.Generator
    added: int = 0
    begun: list[int] = field(default_factory=lambda: [0] * ENVS)
    heads: list[int] = field(default_factory=lambda: [0] * ENVS)
    ended: dict[int, int] = field(default_factory=dict)

    def add_to(self, buffer: db.ReplayBuffer, steps: int) -> None:
        until = self.added + steps
        while self.added < until:
            if self.rng.random() < 0.9:
                zeros, ends = np.zeros(ENVS), self.rng.random(ENVS) < 0.1
                buffer.add(zeros, zeros, zeros, zeros, ends, np.zeros(ENVS, bool))
                self.added += ENVS
                for env in range(ENVS):
                    self._note(env, ends=bool(ends[env]))
            else:
                env, n = int(self.rng.integers(ENVS)), int(self.rng.integers(1, 40))
                zeros, ends = np.zeros(n), np.arange(n) == n - 1
                buffer.extend(obs=zeros, action=zeros, reward=zeros, next_obs=zeros, terminated=ends, env=env)
                for k in range(n):
                    self.added += 1
                    self._note(env, ends=k == n - 1)

    def _note(self, env: int, *, ends: bool) -> None:
        self.heads[env] += 1
        if ends:
            self.ended[self.begun[env] * ENVS + env] = self.added
            self.heads[env] += 1
            self.begun[env] = self.heads[env]


@pytest.mark.parametrize("each", [False, True])
def test_when_episodes_ended_is_told_over_environments_of_different_speed_and_reopening(tmp_path: Path, each: bool) -> None:
    recorded, path = Recorded(np.random.default_rng(3)), tmp_path / "store"
    sizes: dict[str, Any] = {"capacity": 2100, "capacity_each": each, "segment_rows": 64}
    with db.ReplayBuffer(path, columns=COLUMNS, n_envs=ENVS, autoreset="disabled", **sizes) as buffer:
        recorded.add_to(buffer, 1000)
    with db.ReplayBuffer(path) as buffer:
        recorded.add_to(buffer, 2000)
        episodes = buffer._reader.episodes()
        over = episodes.ending != "running"
        expected = np.array([recorded.ended[id_] for id_ in episodes.id[over].tolist()])
        found = buffer._reader.when_they_ended(episodes)[over]
    assert len(expected) > 100
    assert np.abs(found - expected).max() <= 80  # twice what the others may have to wait
    assert (np.sign(found[:, None] - found) != np.sign(expected[:, None] - expected)).mean() < 0.01
