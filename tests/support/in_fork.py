"""Something that is done in a fork."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable


def in_fork(work: Callable[[], object], seconds: float = 60) -> int:
    """Do something in a fork; return its exit status, or the signal that ends it when it takes too long, negative."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
        except BaseException:  # noqa: BLE001
            sys.excepthook(*sys.exc_info())
            os._exit(1)
        os._exit(0)
    deadline = time.monotonic() + seconds
    while (ended := os.waitpid(pid, os.WNOHANG))[0] == 0:
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)
            return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        time.sleep(0.002)
    return os.waitstatus_to_exitcode(ended[1])
