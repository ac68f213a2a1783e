"""Which segments are old enough to go: never so many that fewer than the newest `capacity` steps remain."""

from __future__ import annotations

from collections import deque


class Retention:
    """Queue segments in the order in which they are left behind.

    A segment is left behind once its stream has written all of it, and as many rows more as the stack of the next step
    reaches back into it. It may go once `capacity` steps were added, by all streams, since then: the newest `capacity` are
    then certainly elsewhere. So what is kept is at most the capacity and one segment of every stream.
    """

    def __init__(self, capacity: int | None) -> None:
        self._capacity = capacity
        self._left: deque[tuple[int, int]] = deque()  # how many steps had been added, and the stream
        self.evict_at: float = float("inf")  # number of steps added at which the next segment goes

    def leave(self, stream: int, added: int) -> None:
        """Note that a stream's oldest segment not noted yet was left behind when `added` steps had been added."""
        self._left.append((added, stream))
        self._set()

    def pop(self) -> int:
        """Return the stream whose oldest segment goes now."""
        _, stream = self._left.popleft()
        self._set()
        return stream

    def _set(self) -> None:
        if self._capacity is not None:
            self.evict_at = self._left[0][0] + self._capacity if self._left else float("inf")
