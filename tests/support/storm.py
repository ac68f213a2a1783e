"""Ctrl-C after a given time, or at a given instruction."""

from __future__ import annotations

import dis
import itertools
import signal
from functools import cache
from types import CodeType, FrameType
from typing import Any

from diskbuffer.runtime import signals


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


@cache
def _begin_blocks(code: CodeType) -> frozenset[int]:
    """Return the places of instructions that come right after a call of `__enter__`."""
    instructions = list(dis.get_instructions(code))
    return frozenset(after.offset for one, after in itertools.pairwise(instructions) if one.opname == "BEFORE_WITH")


class Strike:
    """Send a signal at one instruction of a file's code, by default the guard's, and count them.

    The interpreter looks for no signals between a call of `__enter__` and its block, so there none is sent.
    """

    def __init__(self, at: int, number: int, file: str = signals.__file__) -> None:
        self.at, self.number, self.file, self.instructions = at, number, file, 0

    def trace(self, frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code.co_filename != self.file:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode" and frame.f_lasti not in _begin_blocks(frame.f_code):
            self.instructions += 1
            if self.instructions == self.at:
                signal.raise_signal(self.number)
        return self.trace
