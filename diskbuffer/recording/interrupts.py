"""A signal at the wrong moment, such as Ctrl-C: what must happen as a whole does, and what the handler raises comes behind."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

# Those whose handlers are known to raise: KeyboardInterrupt, SystemExit of a job that is to end, timeouts.
_SIGNALS = [
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGALRM", "SIGHUP", "SIGUSR1", "SIGUSR2") if hasattr(signal, name)
]


class Uninterrupted:
    """Put signals off until the block is left. Costs some microseconds, so not for every step."""

    def __enter__(self) -> None:
        self._came: list[int] = []
        self._handlers: dict[int, Callable[[int, FrameType | None], Any]] = {}
        if threading.current_thread() is threading.main_thread():  # others are never interrupted
            for number in _SIGNALS:
                handler = signal.getsignal(number)
                if callable(handler):
                    self._handlers[number] = handler
                    signal.signal(number, self._note)

    def _note(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        if number not in self._came:
            self._came.append(number)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        for number in self._came:
            self._handlers[number](number, None)
