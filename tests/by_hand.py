"""In tests, and in campaigns, buffers are flushed by themselves only where that is asked for: not at a random moment."""

from __future__ import annotations

from diskbuffer.runtime.periodic import Periodic, Work

_LONG = 1.0  # seconds


def flush_by_hand() -> None:
    """Do in this process, and in its forks, nothing by itself that is to be done once in a long time."""
    real = Periodic.begin

    def begin(self: Periodic, work: Work, seconds: float) -> None:
        if seconds < _LONG:
            real(self, work, seconds)

    setattr(Periodic, "begin", begin)  # noqa: B010
