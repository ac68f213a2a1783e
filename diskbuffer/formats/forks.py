"""Processes that read for an import, forked from one that has imported what all of them need, which takes 0.3 s or more."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass

from diskbuffer.errors import SourceError

# Threads do not survive a fork; and glibc is to use the memory of a block again for the next one, for which page faults take
# as long as reading.
_ENVIRONMENT = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
_ENVIRONMENT |= {"MALLOC_MMAP_THRESHOLD_": str(64 * 1024**2), "MALLOC_TRIM_THRESHOLD_": str(256 * 1024**2)}
LONGEST_NAME = 256  # bytes, of a format: what comes after them is not told
_lock = threading.Lock()  # around what is sent to the one from which they fork, and its answer


@dataclass(frozen=True)
class Process:
    """A process, and the one that it was forked from."""

    forked_from: _Forking
    pid: int

    def end(self) -> int:
        """Kill it, if it lives; return how it ended, as `os.waitpid` has it."""
        with _lock:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            return self.forked_from.asked(lambda control: control.sendall(self.pid.to_bytes(8, "little")))


def start() -> None:
    """Start what processes are forked from, unless it is there: what it needs, it imports while this process goes on."""
    with _lock:
        _forking()


def fork(format: str) -> tuple[socket.socket, Process]:
    """Return a connection to a new process of `reading_process` for a source of that format, and the process."""
    name = format.encode()[:LONGEST_NAME]
    ours, theirs = socket.socketpair()
    with theirs, _lock:
        try:
            for _ in range(2):
                with contextlib.suppress(SourceError):  # it has just ended, as nothing was imported for a while
                    forking = _forking()
                    pid = forking.asked(lambda control: socket.send_fds(control, [name], [theirs.fileno()]))
                    return ours, Process(forking, pid)
            raise SourceError("the process that reads files for imports cannot be started")
        except BaseException:
            ours.close()
            raise


class _Forking:
    """The process that all others fork from. It ends with this one, or some seconds after the last of them."""

    def __init__(self) -> None:
        self._owner, self._path, self._is_usable = os.getpid(), _absolute(sys.path), True
        self._control, theirs = socket.socketpair()
        with theirs:
            program = (
                f"import sys; sys.path[:] = {self._path!r}; from diskbuffer.formats.reading_process import main; "
                f"main({theirs.fileno()})"
            )
            self._popen = subprocess.Popen(
                [sys.executable, "-P", "-c", program],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
                env={**os.environ, **_ENVIRONMENT},
            )
        weakref.finalize(self, _stop, self._control, self._popen, self._owner)

    def serves(self) -> bool:
        """Whether it is there, of this process, and imports modules from where this one does now."""
        return self._is_usable and self._owner == os.getpid() and self._path == _absolute(sys.path) and self._popen.poll() is None

    def asked(self, ask: Callable[[socket.socket], object]) -> int:
        """Return the number that it answers. After a Ctrl-C meanwhile, or where it is gone, another one is started next time."""
        try:
            ask(self._control)
            answer = self._control.recv(8, socket.MSG_WAITALL)
            if len(answer) == 8:
                return int.from_bytes(answer, "little")
        except OSError:
            pass
        except BaseException:
            self._give_up()
            raise
        self._give_up()
        raise SourceError("the process that reads files for imports was ended by somebody; import again")

    def _give_up(self) -> None:
        self._is_usable = False
        self._popen.kill()


_newest: _Forking | None = None


def _forking() -> _Forking:
    """Return the process that serves, or a new one."""
    global _newest
    if _newest is None or not _newest.serves():
        _newest = _Forking()
    return _newest


def _absolute(path: list[str]) -> list[str]:
    """Return those places of modules that are the same wherever a process is."""
    return [place for place in path if os.path.isabs(place)]


def _stop(control: socket.socket, popen: subprocess.Popen[bytes], owner: int) -> None:
    control.close()
    if owner == os.getpid():
        popen.kill()
        popen.wait()
    else:  # it is of the process that this one was forked from
        popen.returncode = 0
