"""Compiling functions to machine code, which is said once on stderr: the first use takes seconds."""

from __future__ import annotations

import contextlib
import os
import stat
import sys
import tempfile
import warnings
from collections.abc import Callable
from typing import Any, TypeVar

import numba
import numba.core.event as events

from diskbuffer.runtime import forks
from diskbuffer.runtime.signals import Uninterrupted

F = TypeVar("F", bound=Callable[..., Any])


class _Announce(events.Listener):  # type: ignore[misc]
    """Say once, on stderr, that functions of ours are being compiled; not where they come from numba's cache."""

    def __init__(self) -> None:
        self._lock, self._said = forks.new_lock(), False

    def on_start(self, event: Any) -> None:
        function = getattr(event.data.get("dispatcher"), "py_func", None)
        if not str(getattr(function, "__module__", "")).startswith("diskbuffer."):
            return
        with self._lock:
            said, self._said = self._said, True
        if not said:
            print(
                "diskbuffer: compiling for this machine. The first use of each part takes some seconds, once; "
                "`diskbuffer warmup` does all of it beforehand",
                file=sys.stderr,
                flush=True,
            )

    def on_end(self, event: Any) -> None:
        """Do nothing."""


events.register("numba:compile", _Announce())


def compiled(function: F) -> F:
    """Compile a function to machine code that holds no GIL and is cached on disk, where there is a place for that."""
    global _elsewhere
    try:
        if _elsewhere is None:
            return _compiled(function, cache=True)
    except RuntimeError:  # numba found no directory that it can write to: neither __pycache__ nor the user's cache
        _elsewhere = _private_directory()
        how = f"is kept in {_elsewhere}" if _elsewhere else "is compiled anew by every process, which takes up to a minute"
        warnings.warn(
            f"numba can write neither beside diskbuffer's files nor to the user's cache directory, so compiled code {how}; set "
            "NUMBA_CACHE_DIR to a directory of your own that can be written to",
            RuntimeWarning,
            stacklevel=2,
        )
    if _elsewhere:
        before, numba.config.CACHE_DIR = numba.config.CACHE_DIR, _elsewhere
        with contextlib.suppress(RuntimeError):  # by now it cannot be written to
            try:  # numba decides it here, and other packages' functions are none of our business
                return _compiled(function, cache=True)
            finally:
                numba.config.CACHE_DIR = before
    return _compiled(function, cache=False)


def _compiled(function: F, *, cache: bool) -> F:
    dispatcher: Any = numba.njit(nogil=True, cache=cache)(function)
    load_or_compile = dispatcher.compile

    def whole(signature: Any) -> Any:
        """Load or compile the function for one kind of arguments; a Ctrl-C within it would leave numba or LLVM half done."""
        with Uninterrupted():
            return load_or_compile(signature)

    dispatcher.compile = whole
    result: F = dispatcher
    return result


def entry_point(function: Any, *types: Any) -> Callable[..., Any]:
    """Load or compile a compiled function for arguments of some types, and return what may be called with these alone.

    So a call takes a tenth of a microsecond less: numba does not look at what it is given. Others are converted, or refused.
    """
    found: Callable[..., Any] = function.compile(types)
    return found


_elsewhere: str | None = None  # where compiled code is kept in place of numba's directories; "" for nowhere


def _private_directory() -> str:
    """Return a temporary directory that nobody else can write to, "" where there is none: who writes there runs code here."""
    try:
        parent = tempfile.gettempdir()
        if os.path.samefile(parent, os.curdir) and not os.environ.get("TMPDIR"):  # where tempfile goes when all else fails
            return ""
        if _is_open_to_others(os.stat(parent)):
            return ""
        path = os.path.join(parent, f"diskbuffer-numba-{os.getuid()}")
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o700)
        found = os.lstat(path)
        own = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o022
        return path if own else ""
    except OSError:
        return ""


def _is_open_to_others(directory: os.stat_result) -> bool:
    """Tell whether others could put a directory of theirs in the place of one in this directory."""
    sticky, mode = directory.st_mode & stat.S_ISVTX, directory.st_mode
    return directory.st_uid not in (0, os.getuid()) or (bool(mode & 0o022) and not sticky)
