"""What a buffer lets its parts do."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class Access(NamedTuple):
    """Calls that raise an error where something is not to be done now, or not by this process.

    `check_open` raises a ClosedError. `write_columns` is called with the store's lock, and sees what another learner wrote;
    `must_write_columns` before it is taken, and says what is to be done to the buffer: "changed", "marked".
    """

    check_open: Callable[[], None]
    write_columns: Callable[[], None]
    must_write_columns: Callable[[str], None]
