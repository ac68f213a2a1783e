"""When segments go, by the steps that were added since."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from diskbuffer.recording.retention import Retention


def test_a_segment_goes_once_the_capacity_was_added_after_it_was_left_behind() -> None:
    retention = Retention(100)
    assert retention.look_at == float("inf")
    retention.add(1, 40)
    retention.add(0, 55)
    retention.add(1, 60)
    assert gone(retention, 200, lambda added, stream: 0) == [(140, 1), (155, 0), (160, 1)]


def test_each_stream_may_count_its_own_steps() -> None:
    retention = Retention(100, 2, each=True)
    retention.add(1, 10)
    retention.add(0, 20)
    retention.add(1, 30)
    assert gone(retention, 300, lambda added, stream: added // 4 if stream == 1 else added) == [(70, 0), (240, 1)]


def gone(retention: Retention, steps: int, added_to: Callable[[int, int], int]) -> list[tuple[int, int]]:
    """Return after how many steps segments went, and of which stream; checked where `look_at` tells, and everywhere."""
    found = []
    for added in range(steps):
        looked_at = added >= retention.look_at
        while (stream := retention.due(added, partial(added_to, added))) is not None:
            assert looked_at
            retention.forget(stream)
            found.append((added, stream))
    return found


def test_without_a_capacity_nothing_goes() -> None:
    retention = Retention(None)
    retention.add(0, 10)
    assert retention.due(10**9, lambda stream: 10**9) is None
    assert retention.look_at == float("inf")
