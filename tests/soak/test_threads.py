"""Threads read a buffer, each in its way, beside one that changes it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from soak import threads


@pytest.mark.nightly
def test_nothing_is_read_that_was_not_written(amount: Callable[[int, int], int], any_seed: int) -> None:
    row = threads.main(amount(10, 60) / 600, seed=any_seed)
    assert row.broken == 0, f"seed {any_seed}: {row}"
    assert row.done > 1000
