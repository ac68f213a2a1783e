"""A short run of the campaigns of disks that are full or fail."""

from __future__ import annotations

import pytest

from soak import disk_full


@pytest.mark.nightly
def test_where_operations_fail_nothing_is_lost_and_calls_can_be_made_again() -> None:
    cases, disk = disk_full.main(0.02, seed=1)
    assert (cases.done, cases.broken) == (60, 0), str(cases)
    assert (disk.done, disk.broken) in ((12, 0), (0, 0)), str(disk)
    if not disk.done:
        pytest.skip(str(disk))
