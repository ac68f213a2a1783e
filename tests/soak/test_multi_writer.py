"""A short run of the campaign of actors beside a learner."""

from __future__ import annotations

import pytest

from soak import multi_writer


@pytest.mark.nightly
def test_nothing_is_torn_or_lost_while_actors_are_killed(any_seed: int) -> None:
    row = multi_writer.main(0.03, seed=any_seed)
    assert row.broken == 0, row
    assert row.done > 0
