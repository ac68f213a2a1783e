"""A signal at the wrong moment, such as Ctrl-C: what must happen as a whole does, and what the handler raises comes after."""

from __future__ import annotations

import importlib
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import CodeType, FrameType, TracebackType
from typing import Any

# The functions that those of the module signal call, between changes of integers to enums and back: 0.1 us in place of 2.
_c: Any = importlib.import_module("_signal")
Handler = Callable[[int, FrameType | None], Any]

_MOMENT = 0.01  # seconds between two looks at whether the main thread has left a function
# Those whose handlers are known to raise: KeyboardInterrupt, SystemExit of a job that is to end, timeouts.
_SIGNALS = [int(each) for each in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)]


class _Deferring:
    """Stand in for a signal's handler: note the signal while its block is active; else have it handled, and all that were noted.

    So whether signals are put off is one store to `Uninterrupted.active`, at whatever instruction one comes. One of these that
    stays in place, as another signal came while it was taken out, does no harm: it takes itself out at the next.
    """

    def __init__(self, block: Uninterrupted, number: int, handler: Handler) -> None:
        self.block, self.number, self.handler = block, number, handler

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.block.came[number] = frame
        if not self.block.active:
            self.take_out()
            self.block.handle()

    def take_out(self) -> None:
        """Put the handler back, if this is in its place."""
        current = _c.getsignal(self.number)
        if current is self:
            _c.signal(self.number, self.handler)


class Uninterrupted:
    """Put signals off until the block is left. Costs some microseconds, so not for every step.

    Attributes
    ----------
    active : bool
        Whether signals are put off.
    came : dict of int to frame
        Those that were, in order, each with where it came last, which its handler is told.
    """

    def __init__(self) -> None:
        self.active = False
        self.came: dict[int, FrameType | None] = {}
        self._in_place: list[_Deferring] = []

    def __enter__(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return  # others are never interrupted
        try:
            self._put_in_place()
            self.active = True
        except BaseException:
            self._leave()
            raise

    def _put_in_place(self) -> None:
        """Put a stand-in in every handler's place.

        No loop within a `try`: of one that ends with an `if`, Python 3.13 leaves an instruction out of the `try`.
        """
        for number in _SIGNALS:
            handler: Any = _c.getsignal(number)
            while isinstance(handler, _Deferring) and not handler.block.active:
                handler = handler.handler
            if callable(handler):
                deferring = _Deferring(self, number, handler)
                self._in_place.append(deferring)
                _c.signal(number, deferring)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self._leave()

    def _leave(self) -> None:
        """Handle the signals that came, and take the stand-ins out.

        That twice, as one more signal may come within the first time, and its handler raise there. One that comes before has a
        stand-in still, which has all of them handled.
        """
        try:
            try:
                self.active = False
                self.handle()
            finally:
                self._take_out()
        finally:
            self._take_out()

    def _take_out(self) -> None:
        for deferring in self._in_place:
            deferring.take_out()

    def handle(self) -> None:
        """Handle the signals that came, all of them, though a handler raises."""
        numbers = list(self.came)  # in one instruction, as one more may come after any
        if numbers:
            number = numbers[0]
            handler = next(each.handler for each in self._in_place if each.number == number)
            try:
                handler(number, self.came.get(number))
            finally:
                self.came.pop(number, None)  # a frame keeps all that was open in it
                self.handle()


class Interruptible(Uninterrupted):
    """Put signals off but for where `look` is called: for what takes long, and must clean up after a Ctrl-C at any instant.

    One within another does nothing, so that `look` within both handles signals, unless an `Uninterrupted` lies between them.
    """

    _current: Interruptible | None = None  # of the main thread
    _outer: Interruptible | None

    def __enter__(self) -> None:
        outer = Interruptible._current
        if outer is not None and outer._is_innermost():
            return
        super().__enter__()
        if self.active:
            self._outer, Interruptible._current = outer, self

    def _is_innermost(self) -> bool:
        return self.active and all(_c.getsignal(each.number) is each for each in self._in_place)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        if self.active:
            Interruptible._current = self._outer
        super().__exit__(kind, error, traceback)


def look() -> None:
    """Handle the signals that an `Interruptible` has put off: to be called where what a handler raises does no harm."""
    current = Interruptible._current
    if current is not None and current.came and threading.current_thread() is threading.main_thread():
        current.handle()


class PutOff(Uninterrupted):
    """Put signals off from now on until `end`, which must be called where this was made.

    In functions that Python calls around a fork, what a handler raises is printed, and lost. So handlers are called later.
    """

    def __init__(self) -> None:
        super().__init__()
        try:
            self.__enter__()
        except KeyboardInterrupt:  # just before
            self.came[int(signal.SIGINT)] = None

    def end(self, within: CodeType) -> None:
        """End the deferral; signals that came are handled once the main thread has left a function."""
        self._take_out()
        if self.came:
            threading.Thread(target=self._hand_on, args=(within,), name="diskbuffer-signals", daemon=True).start()

    def _hand_on(self, within: CodeType) -> None:
        is_within = True
        while is_within:
            time.sleep(_MOMENT)
            frame = sys._current_frames().get(threading.main_thread().ident or 0)
            while frame is not None and frame.f_code is not within:
                frame = frame.f_back
            is_within = frame is not None
        for number in list(self.came):
            signal.pthread_kill(threading.main_thread().ident or 0, number)  # which ends what it waits for, such as a sleep

    def forget(self) -> None:
        """End the deferral, and forget the signals that came."""
        self._take_out()
