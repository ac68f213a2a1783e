"""What our errors advise, in the terms of Stable-Baselines3's buffers, which take other arguments than ours."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from diskbuffer.errors import DiskBufferError

_ADVICE = {  # by the kind of error
    "schema": "Give the environment and the sizes that it was made with, or another path",
    "locked": "Close it there, or give another path. To read beside it, add nothing: its first add opens a buffer to write",
    "read_only": "Without an add it is only read",
}


@contextmanager
def advising() -> Iterator[None]:
    """Replace the advice of our errors by what a caller of an adapter can do."""
    try:
        yield
    except DiskBufferError as error:
        if error.advice and error.kind in _ADVICE:
            raise error.advising(_ADVICE[error.kind]) from error
        raise
