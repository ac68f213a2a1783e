"""A short run of the campaign of limiters."""

from __future__ import annotations

import pytest

from soak import limiter


@pytest.mark.nightly
def test_the_ratio_holds_and_nobody_is_stuck_while_processes_are_killed(any_seed: int) -> None:
    for row in limiter.main(0.02, seed=any_seed % 1000):
        assert row.broken == 0, row
