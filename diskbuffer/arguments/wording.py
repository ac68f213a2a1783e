"""Words of messages."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar

_for_command_line = ContextVar("whether messages are for a command line", default=False)


@contextlib.contextmanager
def for_command_line() -> Iterator[None]:
    """Name options in messages as a command line has them."""
    token = _for_command_line.set(True)
    try:
        yield
    finally:
        _for_command_line.reset(token)


def either(python: str, command_line: str) -> str:
    """Return how something is said in Python, or what it is on the command line where a message is for one."""
    return command_line if _for_command_line.get() else python


def format_option(name: str, value: object) -> str:
    """Return how an option of a format is given."""
    return either(f"{name}={value!r}", f"--option {name}={value}")


def counted(n: int, what: str) -> str:
    """Return a number of things, as a sentence has it: "1 episode", "2,000 episodes"."""
    return f"{n:,} {what}{'' if n == 1 else 's'}"


def size(n: float) -> str:
    """Return a number of bytes as people write it: "1 byte", "17.3 KB", "1.2 GB"."""
    if n == 1:
        return "1 byte"
    for unit in ("bytes", "KB", "MB", "GB", "TB"):
        if abs(n) < 1000 or unit == "TB":
            break
        n /= 1000
    return f"{n:,.0f} {unit}" if unit == "bytes" or abs(n) >= 100 else f"{n:.3g} {unit}"


def printable(text: str) -> str:
    """Return a text that a store holds, which may be a stranger's, without what a terminal would act upon."""
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in text)
