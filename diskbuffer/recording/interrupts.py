"""Ctrl-C at the wrong moment: what must happen as a whole does, and the KeyboardInterrupt comes behind it."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any


class Uninterrupted:
    """Put SIGINT off until the block is left. Costs 2 us, so not for every step.

    Other signals whose handlers raise are not put off; after those, open the store again.
    """

    def __enter__(self) -> None:
        self._came = False
        self._handler: Any = None
        if threading.current_thread() is threading.main_thread():  # others are never interrupted
            self._handler = signal.getsignal(signal.SIGINT)
            if callable(self._handler):
                signal.signal(signal.SIGINT, self._note)

    def _note(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        self._came = True

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        if callable(self._handler):
            signal.signal(signal.SIGINT, self._handler)
            if self._came:
                self._handler(signal.SIGINT, None)
