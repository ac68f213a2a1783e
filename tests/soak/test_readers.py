"""A short run of the campaign of readers beside a writer."""

from __future__ import annotations

import pytest

from soak import readers


@pytest.mark.nightly
def test_some_seconds_of_readers_beside_a_writer_show_no_wrong_row_and_no_error(any_seed: int) -> None:
    seconds = 20
    row = readers.main(seconds / 600, seed=any_seed)
    assert row.broken == 0, f"seed {any_seed}: {row}"
    assert row.done > 10 * seconds
