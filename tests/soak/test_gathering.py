"""A short run of the campaign of actors beside a learner."""

from __future__ import annotations

import pytest

from soak import gathering


@pytest.mark.nightly
def test_nothing_is_torn_lost_or_blocked_while_actors_are_killed(any_seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gathering, "LONGEST", 10.0)  # other tests run beside it
    row = gathering.main(seed=any_seed, minutes=0.3, count=4)
    assert row.broken == 0, row
