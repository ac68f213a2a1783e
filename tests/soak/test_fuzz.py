"""A short campaign of hostile stores, chunks and states."""

from __future__ import annotations

from pathlib import Path

import pytest

from soak import fuzz
from soak.workers import Pool


@pytest.mark.nightly
def test_hostile_stores_are_refused_or_read_within_bounds(tmp_path: Path) -> None:
    with Pool("soak.fuzz", tmp_path, 1) as pool:
        chunks = 5000
        row = fuzz.chunks(pool, chunks, 0)
        assert (row.done, row.broken) == (chunks, 0), str(row)
        for what, count in (("store", 70), ("state", 30)):
            row, cases = fuzz.stores(pool, count, 0, what=what)
            assert (row.done, row.broken) == (count, 0), str(row)
            assert {answer["class"] for _, answer in cases} <= {"refused", "read"}
