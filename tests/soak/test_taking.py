"""A short run of the campaign of readers beside calls that take steps away."""

from __future__ import annotations

import pytest

from soak import taking


@pytest.mark.nightly
def test_what_readers_find_beside_calls_that_take_steps_away_was_there_at_one_moment(any_seed: int) -> None:
    for row in taking.main(0.05, seed=any_seed):
        assert row.broken == 0, f"seed {any_seed}: {row}"
        assert row.done > 20
