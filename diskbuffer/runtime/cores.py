"""Which core a thread runs on, and leaving it to another thread."""

from __future__ import annotations

import ctypes
import os
import sys

if sys.platform == "linux":
    _libc = ctypes.PyDLL(None)

    def core() -> int:
        """Return the core that this thread runs on."""
        return int(_libc.sched_getcpu())

    def step_aside(taken: int) -> None:
        """Leave a core to the thread that runs there.

        A scheduler may wake a helper on its caller's core and move it only milliseconds later, when the batch is done.
        """
        allowed = os.sched_getaffinity(0)
        if core() == taken and len(allowed) > 1:
            os.sched_setaffinity(0, allowed - {taken})
            os.sched_setaffinity(0, allowed)
else:

    def core() -> int:
        """Return -1: not known."""
        return -1

    def step_aside(taken: int) -> None:
        """Trust the scheduler."""
