"""A short run of the campaign of real kills, and that it would see a store that is not as it should be."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from soak import kills
from soak.workers import scratch
from tests.support.experience import Experience, Feeder


@pytest.mark.nightly
def test_kills_lose_nothing(any_seed: int) -> None:
    row = kills.main(0.025, seed=any_seed)
    assert (row.done, row.broken) == (25, 0), f"seed {any_seed}: {row}"


@pytest.fixture
def directory() -> Iterator[Path]:
    with scratch() as name:
        yield name


def test_what_is_not_as_acknowledged_is_seen(directory: Path) -> None:
    world, rng = Experience(2), np.random.default_rng(0)
    with world.open(directory / "store", threads=1, segment_rows=64) as buffer:
        feeder = Feeder(world, buffer)
        feeder.add(50)
        known = kills.Known(world)
        known.heads[:] = feeder.heads
        assert known.steps == 100
    kills.judge(directory / "store", world, known, rng, full=True)
    known.written[:] = 10
    with pytest.raises(kills.WrongError, match="'written' is gone"):
        kills.judge(directory / "store", world, known, rng, full=False)
    known.written[:] = -1
    with pytest.raises(kills.WrongError, match="other contents") as caught:
        kills.judge(directory / "store", _Other(), known, rng, full=False)
    assert caught.value.lost == 100
    known.heads += 1
    with pytest.raises(kills.WrongError, match="acknowledged up to") as caught:
        kills.judge(directory / "store", world, known, rng, full=False)
    assert caught.value.lost >= 1
    shutil.rmtree(directory / "store" / "action")
    with pytest.raises(kills.WrongError) as caught:
        kills.judge(directory / "store", world, known, rng, full=False)
    assert caught.value.unopened


class _Other(Experience):
    def __init__(self) -> None:
        super().__init__(2)

    def actions(self, stream: int, positions: np.ndarray) -> np.ndarray:
        return super().actions(stream, positions) + 1
