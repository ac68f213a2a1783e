"""Threads read a buffer, each in its way, beside one that changes it."""

from __future__ import annotations

import pytest

from soak import threads


@pytest.mark.nightly
def test_nothing_is_read_that_was_not_written(any_seed: int) -> None:
    rows = 0
    for number, name in enumerate(threads.NAMES, any_seed):
        wrong, done = threads.run(name, number, 60 / len(threads.NAMES))
        assert wrong == "", f"{name}, seed {number}"
        rows += done["rows"]
    assert rows > 1000
