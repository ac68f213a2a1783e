"""What our errors advise, in the terms of Stable-Baselines3's buffers, which take other arguments than ours."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from diskbuffer.errors import DiskBufferError, LockedError, ReadOnlyError, SchemaError

_ADVICE = {
    SchemaError: "Give the environment and the sizes that it was made with, or another path",
    LockedError: "Close it there, or give another path. To read beside it, add nothing: its first add opens a buffer to write",
    ReadOnlyError: "Without an add it is only read",
}


@contextmanager
def advising() -> Iterator[None]:
    """Replace the advice of our errors by what a caller of an adapter can do."""
    try:
        yield
    except DiskBufferError as error:
        if error.advice and type(error) in _ADVICE:
            raise error.advising(_ADVICE[type(error)]) from error
        raise
