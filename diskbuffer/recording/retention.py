"""Which segments are old enough to go: never so many that fewer than the newest `capacity` steps remain."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable


class Retention:
    """Queue segments in the order in which they become evictable.

    A segment is evictable once its stream has written all of it, and as many rows more as the stack of the next step
    reaches back into it. It is evicted once `capacity` steps were added, by all streams, since then: the newest `capacity` are
    then certainly elsewhere. So what is kept is at most the capacity and one segment of every stream.

    Parameters
    ----------
    capacity : int or None
    streams : int
        Of environments.
    each : bool
        Whether every stream keeps its own newest ``capacity // streams`` steps, and only its own count.

    Attributes
    ----------
    look_at : float
        Number of steps added, by all streams, before which none may go.
    """

    def __init__(self, capacity: int | None, streams: int = 1, *, each: bool = False) -> None:
        self._each, self._share = each, streams if each else 1
        self._capacity = self._shared(capacity)
        self._queues: dict[
            int, deque[tuple[int, int]]
        ] = {}  # how many steps had been added, and the stream; by stream, or all in one
        self.look_at: float = float("inf")

    def _shared(self, capacity: int | None) -> int | None:
        return None if capacity is None else capacity // self._share

    def resize(self, capacity: int | None) -> None:
        """Go by another capacity from now on."""
        self._capacity, self.look_at = self._shared(capacity), 0

    def add(self, stream: int, added: int) -> None:
        """Note that a stream's oldest segment not noted yet became evictable when `added` of the steps that count had been."""
        self._queues.setdefault(stream if self._each else 0, deque()).append((added, stream))
        self.look_at = 0

    def forget(self, stream: int) -> None:
        """Forget a stream's oldest segment that was noted: it goes."""
        queue = self._queues[stream if self._each else 0]
        del queue[next(n for n, (_, of) in enumerate(queue) if of == stream)]

    def due(self, added: int, added_to: Callable[[int], int]) -> int | None:
        """Return a stream whose oldest segment may go, if there is one.

        `added` steps were, by all streams, and ``added_to(stream)`` by one.
        """
        self.look_at = float("inf")
        for key, queue in self._queues.items():
            if self._capacity is None or not queue:
                continue
            missing = queue[0][0] + self._capacity - (added_to(key) if self._each else added)
            if missing <= 0:
                self.look_at = 0
                return queue[0][1]
            self.look_at = min(self.look_at, added + missing)
        return None
