"""A short run of the campaign of readers beside a writer."""

from __future__ import annotations

import os

from soak import readers


def test_ten_seconds_of_readers_beside_a_writer_show_no_wrong_row_and_no_error() -> None:
    row = readers.main(seed=int.from_bytes(os.urandom(2), "little"), minutes=10 / 60)
    assert row.broken == 0, str(row)
    assert row.done > 200
