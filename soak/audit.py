"""What a process does that strangers' files have it do, as Python's audit events tell of it."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any


class Watch:
    """See which files are opened, and whether code is run, while it is armed; there is one for the whole process.

    Parameters
    ----------
    tell : callable, optional
        ``tell(kind, what)`` is called at once of what is seen, in place of keeping it in `seen`.
    modules : bool
        Whether to see imports, too.
    """

    def __init__(self, tell: Callable[[str, str], None] | None = None, modules: bool = False) -> None:
        self.root: str | None = None
        self.seen: list[tuple[str, str]] = []
        self._tell = tell or (lambda kind, what: self.seen.append((kind, what)))
        self._modules = modules
        own = [sys.prefix, sys.base_prefix, *sys.path, "/proc", "/sys", str(Path(__file__).resolve().parent.parent)]
        self._own = tuple(os.path.realpath(path) + os.sep for path in own if path) + ("/dev/null", "/dev/urandom")
        sys.addaudithook(self._audit)

    @contextlib.contextmanager
    def over(self, root: Path) -> Iterator[None]:
        """Watch what happens while a store is open."""
        self.arm(root)
        try:
            yield
        finally:
            self.root = None

    def arm(self, root: Path) -> None:
        """Watch from now on."""
        self.root, self.seen = os.path.realpath(root) + os.sep, []

    def _audit(self, event: str, args: tuple[Any, ...]) -> None:
        root = self.root
        if root is None:
            return
        self.root = None  # what is done here is not watched
        try:
            if event == "open" and not isinstance(args[0], int):
                path = os.fsdecode(args[0])
                if args[2] & os.O_NOFOLLOW and "/" not in path and path != "..":
                    return  # in a directory that is open already, and that it cannot lead out of
                refused = args[2] & os.O_NOFOLLOW and os.path.islink(path)
                path = os.path.realpath(os.path.dirname(path) if refused else path)
                if not (path + os.sep).startswith((root, *self._own)):
                    self._tell("outside", path)
            elif event in ("pickle.find_class", "marshal.loads", "os.system", "os.exec", "subprocess.Popen", "code.__new__"):
                if not _by_import():
                    self._tell("code", f"{event} {str(args)[:100]}")
            elif event == "import" and self._modules:
                self._tell("module", str(args[0]))
            elif event in ("exec", "compile") and not _by_import():
                name = args[0].co_filename if event == "exec" else os.fsdecode(args[1] or b"?")
                harmless = name.startswith("<frozen")
                if event == "compile":  # by `ast.literal_eval`, or by Cython, which makes functions for tracebacks
                    harmless = harmless or name == "<unknown>" or not name.startswith(("<", os.sep))
                if not harmless and (name.startswith("<") or not os.path.realpath(name).startswith(self._own)):
                    self._tell("code", f"{event} {name}")
        finally:
            self.root = root


def _by_import() -> bool:
    """Tell whether it is the import of a module that asks, which loads code that was there before."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        if frame.f_globals.get("__name__", "").startswith(("importlib", "_frozen_importlib")):
            return True
        frame = frame.f_back
    return False
