"""A short run of the campaign of small rings, and that it would see a store that is not as it should be."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import diskbuffer as db
from soak import rings


@pytest.mark.nightly
@pytest.mark.parametrize("often", [0.0, 0.1])
@pytest.mark.parametrize("kind", rings.KINDS)
def test_a_small_ring_that_turns_fast_keeps_what_it_must(kind: str, often: float, any_seed: int) -> None:
    assert rings.run(kind, any_seed, often) == "", f"{kind}, seed {any_seed}"


def test_a_ring_that_lost_a_step_is_seen(tmp_path: Path) -> None:
    steps = rings.Steps(1, np.random.default_rng(0), 20)
    taken = steps.array(0, 100)
    columns = {"obs": db.Column((3,), "float32"), "action": db.Column((), "int64")}
    with db.ReplayBuffer(tmp_path / "store", 64, columns=columns, segment_rows=8) as buffer:
        now, then = (rings.observations(taken[:, k], False) for k in (0, 1))
        buffer.extend(now[:99], taken[:99, 0], np.zeros(99), then[:99], taken[:99, 2] > 0)
    with pytest.raises(AssertionError, match="steps were ever added"):
        rings.judge(tmp_path / "store", steps, False, 64)
