"""A short campaign of hostile stores, chunks and states."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from soak import fuzz
from soak.workers import Pool


def test_hostile_stores_are_refused_or_read_within_bounds(tmp_path: Path, amount: Callable[[int, int], int]) -> None:
    with Pool(fuzz.MODULE, tmp_path, 1) as pool:
        fuzz.prepare(pool, 0)
        chunks = amount(1000, 10_000)
        row = fuzz.chunks(pool, chunks, 0)
        assert (row.done, row.broken) == (chunks, 0), str(row)
        for what, count in (("store", amount(15, 80)), ("state", amount(10, 40)), ("links that lead outside", amount(3, 10))):
            row, cases = fuzz.stores(pool, count, 0, what=what)
            assert (row.done, row.broken) == (count, 0), str(row)
            assert {answer["class"] for _, answer in cases} <= {"refused", "read"}
