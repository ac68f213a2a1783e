"""How far a writer's environments came, rows that are not stored among what they took."""

from __future__ import annotations

from diskbuffer.buffer import ReplayBuffer


def rows_taken(buffer: ReplayBuffer) -> list[int]:
    """Return a number for each environment, which grows with every row that the buffer takes of it.

    It is two for each step ever, and one where a reset row, which is no step, came since the last. It is what the store says, so
    that it is the same after a kill: a row of which nobody knows whether it came has not, where the number is that of before.
    A ReadOnlyError where the buffer is open for reading. Takes a microsecond for each environment.
    """
    recorder = buffer._access.recorder("rows_taken()")
    return [2 * ever + recorder.took_reset(env) for env, ever in enumerate(buffer.counts()[1].tolist())]
