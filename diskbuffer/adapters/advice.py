"""Errors and warnings in the terms of another library's buffers, which take other arguments than ours."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from diskbuffer.errors import DiskBufferError
from diskbuffer.options import OPEN_ALONE
from diskbuffer.store.system.writer_lock import READ_BESIDE, READ_ONLY

ADVICE = {
    OPEN_ALONE: "Give the environment and the sizes that it was made with",
    READ_BESIDE: "give another path. To read beside it, add nothing: a buffer is opened for writing by its first add",
    READ_ONLY: "without an add it is only read",
}
ON_CUT_OFFS = (
    "If an episode goes on, give its obs as the next_obs of the step before, the same values; if it does not, tell at its last "
    "step that it is over"
)


@contextmanager
def advising(advice: Mapping[str, str] = ADVICE) -> Iterator[None]:
    """Have our errors advise what a caller of an adapter can do: phrases of their texts are replaced."""
    try:
        yield
    except DiskBufferError as error:
        advise(error, advice)
        raise


def advise(error: DiskBufferError, advice: Mapping[str, str] = ADVICE) -> None:
    """Raise one of our errors with other advice, where it gives any of these."""
    text = str(error)
    for ours, its in advice.items():
        text = text.replace(ours, its)
    if text != str(error):
        raise type(error)(text) from error
