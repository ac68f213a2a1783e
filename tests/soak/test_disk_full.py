"""A short run of the campaigns of disks that are full or fail."""

from __future__ import annotations

import pytest

from soak import disk_full


@pytest.mark.nightly
def test_where_operations_fail_nothing_is_lost_and_calls_can_be_made_again() -> None:
    count, room = 40, 12
    cases, disk = disk_full.main(seed=1, count=count, room=room, step=16)
    assert (cases.done, cases.broken) == (count, 0), str(cases)
    assert (disk.done, disk.broken) in ((room, 0), (0, 0)), str(disk)
    if not disk.done:
        pytest.skip(str(disk))
