"""Ctrl-C after a given time."""

from __future__ import annotations

import signal
from types import FrameType


class Storm:
    """Raise a KeyboardInterrupt, as Ctrl-C does, after `arm`; again and again until `calm`, for in a __del__ it is lost."""

    def __init__(self) -> None:
        self._armed = False

    def arm(self, seconds: float) -> None:
        self._armed = True
        signal.setitimer(signal.ITIMER_REAL, seconds, 0.2)

    def calm(self) -> None:
        self._armed = False
        signal.setitimer(signal.ITIMER_REAL, 0)

    def strike(self, number: int, frame: FrameType | None) -> None:
        if self._armed:
            signal.raise_signal(signal.SIGINT)
