"""Which segments go, against a list of all steps: the newest `capacity` stay, and no more than a segment of each environment."""

from __future__ import annotations

import numpy as np
import pytest

from diskbuffer.recording.segment_retention import Retention
from tests.amounts import amount

ROWS = 8


@pytest.mark.parametrize("each", [False, True])
@pytest.mark.parametrize("seed", range(amount(30, 500)))
def test_the_newest_steps_stay_and_nothing_much_older(seed: int, each: bool) -> None:
    rng = np.random.default_rng([seed, each])
    environments, context = int(rng.integers(1, 5)), int(rng.integers(0, 4))
    capacity = int(rng.integers(1, 20)) * 8 * environments
    retention = Retention(capacity, environments, context, each=each)
    heads, lows = np.full(environments, -1), np.zeros(environments, np.int64)
    steps: list[tuple[int, int]] = []  # of all environments, in the order in which they came
    for _ in range(600):
        environment = int(rng.integers(environments))
        heads[environment] += 1
        steps.append((environment, int(heads[environment])))
        if heads[environment] % ROWS == 0 and heads[environment] > 0:
            retention.add(np.array([environment]), heads[[environment]])
        counts = np.bincount([of for of, _ in steps], minlength=environments)
        retention.note(heads, counts if each else np.full(environments, len(steps)), lambda _, positions: positions)
        if len(steps) >= retention.look_at:
            for gone in retention.due(len(steps), counts).tolist():
                lows[gone] += ROWS
        wanted = [[p for of, p in steps if of == e][-capacity // environments :] for e in range(environments)] if each else []
        newest = [(e, p) for e, some in enumerate(wanted) for p in some] if each else steps[-capacity:]
        assert all(position >= lows[of] + (context if lows[of] else 0) for of, position in newest), "a step of the newest is gone"
    kept = int((heads + 1 - lows).sum())
    assert kept <= capacity + (2 * ROWS + context) * environments
