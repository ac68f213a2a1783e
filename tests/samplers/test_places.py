"""Prioritized sampling where segments have numbers that only grow: its memory follows what is kept, whatever was there before."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import diskbuffer as db
from diskbuffer.columns.derived import ColumnSegments
from tests.amounts import amount

COLUMNS = {"obs": db.Column((2,), "float32"), "action": db.Column((), "int64")}


def masses_by_hand(buffer: db.ReplayBuffer, alpha: float) -> tuple[float, float]:
    """Return the sum and the least of the weights of all steps, from the column."""
    weights = buffer.at(buffer.steps())["priority"].numpy().astype(np.float64) ** alpha
    return float(weights.sum()), float(weights.min())


@pytest.mark.parametrize("few", [False, True], ids=["as many as there may be", "too few at first"])
@pytest.mark.parametrize("n_envs", [1, 3, 17])
@pytest.mark.parametrize("seed", range(amount(1, 20)))
def test_memory_follows_what_is_kept_and_masses_are_those_of_the_column(
    seed: int, n_envs: int, few: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("diskbuffer.open_store.FORMAT", 2)
    if few:
        monkeypatch.setattr(ColumnSegments, "places", 2)
    rng = np.random.default_rng([seed, n_envs])
    capacity = 64 * n_envs
    sampler = db.Prioritized(alpha=0.7, seed=3)
    sizes = set[int]()
    with db.ReplayBuffer(
        tmp_path / "store", capacity, columns=COLUMNS, n_envs=n_envs, segment_rows=8, autoreset="disabled"
    ) as buffer:
        for t in range(60):
            steps = int(rng.integers(1, 30))
            if rng.random() < 0.3:  # one environment alone: others' segments are ended
                one = np.zeros((steps + 1, 2), np.float32)
                buffer.extend(one, np.zeros(steps, int), np.zeros(steps), env=int(rng.integers(n_envs)))
            else:
                axes = (n_envs,) if n_envs > 1 else ()
                every = np.full((steps + 1, *axes, 2), t, np.float32)
                buffer.extend(every[:-1], np.zeros((steps, *axes), int), np.zeros((steps, *axes)), every[1:])
            if rng.random() < 0.05:
                buffer.clear()
                continue
            batch = buffer.sample(16, sampler)
            sampler.update(batch["steps"], rng.random(16) * 10)
            assert sampler.masses() == pytest.approx(masses_by_hand(buffer, 0.7), rel=1e-6)
            sizes.add(sampler._tree.size)
        newest = max(int(buffer._reader.index.newest_segments().max()), 1)
    assert max(sizes) <= 8 * 8 * (64 // 8 + 4) * n_envs
    assert max(sizes) < 8 * newest or n_envs > 1


def test_a_run_that_is_resumed_has_the_same_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("diskbuffer.open_store.FORMAT", 2)

    def run(path: Path, parts: list[int]) -> list[list[int]]:
        found, state, t = list[list[int]](), None, 0
        for rounds in parts:
            with db.ReplayBuffer(path, 100, columns=COLUMNS, n_envs=2, segment_rows=8, autoreset="disabled") as buffer:
                sampler = db.Prioritized(seed=5)
                if state is not None:
                    sampler.load_state_dict(state)
                for _ in range(rounds):
                    for _ in range(9):
                        obs = np.full((2, 2), t, np.float32)
                        buffer.add(obs, [0, 0], [0.0, 0.0], obs + 1, [False, t % 7 == 6], [t % 50 == 49, False])
                        t += 1
                    batch = buffer.sample(8, sampler)
                    found.append(batch["steps"].tolist())
                    sampler.update(batch["steps"], np.asarray(batch["steps"]) % 5)
                state = sampler.state_dict()
        return found

    assert run(tmp_path / "parts", [9, 14, 37]) == run(tmp_path / "whole", [60])
