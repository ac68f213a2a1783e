"""Trajectories in a ring, found by the steps that are new, are those that a look at all steps finds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("torchrl")

from diskbuffer.adapters.torchrl.places import Ring
from diskbuffer.adapters.torchrl.trajectories import Trajectories


def scan(values: np.ndarray[Any, Any], ring: Ring, lane: int, *, is_number: bool) -> list[tuple[int, int, int, int]]:
    """Return (lane, start, stop, length) of a lane's trajectories, by the place where they stop."""
    places = [(ring.newest + 1 - ring.filled + n) % ring.size for n in range(ring.filled)]
    found, start = [], 0
    for n, place in enumerate(places):
        is_last = n == ring.filled - 1
        ends = is_last or (values[place, lane] != values[places[n + 1], lane] if is_number else values[place, lane])
        if ends:
            found.append((lane, places[start], place, n + 1 - start))
            start = n + 1
    return sorted(found, key=lambda one: one[2])


@pytest.mark.parametrize("is_number", [False, True])
@pytest.mark.parametrize("seed", range(20))
def test_they_are_those_of_a_scan(seed: int, is_number: bool) -> None:
    rng = np.random.default_rng(seed)
    size, lanes, probability = int(rng.integers(1, 40)), int(rng.integers(1, 4)), float(rng.choice([0.02, 0.2, 0.7, 1]))
    order = rng.permutation(lanes)
    known = Trajectories(order, is_number=is_number)
    values: np.ndarray[Any, Any] = np.zeros((size, lanes), np.int64 if is_number else np.bool_)
    ring, number = Ring(size, 0, -1, rng.integers(0, 50, lanes)), 0
    for _ in range(60):
        if rng.random() < 0.1:  # the storage is emptied
            ring = Ring(size, 0, -1, ring.ever)
        n = int(rng.integers(0, size + 1)) if rng.random() < 0.2 else int(rng.integers(0, min(size, 5) + 1))
        places = (ring.newest + 1 + np.arange(n)) % size
        ends = rng.random((n, lanes)) < probability
        values[places] = np.cumsum(ends, axis=0) + number if is_number else ends
        number += n + 1
        ring = Ring(size, min(ring.filled + n, size), (ring.newest + n) % size if n else ring.newest, ring.ever + n)
        if not ring.filled or rng.random() < 0.3:
            continue
        known.bring_up_to(ring, lambda places: values[places])
        for least in rng.choice([1, 2, 3, 5], 2).tolist():
            found, expected = known.of(least), list[Any]()
            for lane in order.tolist():
                expected += [one for one in scan(values, ring, lane, is_number=is_number) if one[3] >= least]
            assert len(found) == len(expected)
            if expected:
                which = rng.permutation(len(found))
                assert list(zip(*(of.tolist() for of in found.at(which)), strict=True)) == [expected[n] for n in which.tolist()]
