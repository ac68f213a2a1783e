"""A short run of the campaign of writers beside a learner, and that it would see values that are on other steps, or lost."""

from __future__ import annotations

import pytest

from diskbuffer.store.following import Following
from diskbuffer.writers.columns import Columns
from soak import learners
from soak.judging import BrokenError


def test_what_a_learner_writes_survives(any_seed: int) -> None:
    assert learners.run(any_seed, 1)[0] == ""


@pytest.mark.nightly
def test_what_a_learner_writes_survives_many_schedules(any_seed: int) -> None:
    row = learners.main(60 / 2000, seed=any_seed)
    assert row.broken == 0, row


@pytest.mark.nightly
def test_values_that_go_to_other_steps_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Following, "identity", lambda self, slot: self._table.identity(slot))
    monkeypatch.setattr(Following, "refuse_evicted", lambda *_: None)
    assert any(learners.run(0, number)[0] for number in range(40, 48))


@pytest.mark.nightly
def test_values_that_no_flush_brings_to_the_disk_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Columns, "to_sync", lambda _: [])
    assert any(learners.run(0, number)[0] for number in range(30))


def test_a_name_that_is_given_twice_is_seen() -> None:
    model = learners.Model()
    model.episode_of = {1: 1, 2: 1}
    model.name(1024, 1)
    with pytest.raises(BrokenError, match="name 1024 was given to step 1, and to step 2"):
        model.name(1024, 2)
