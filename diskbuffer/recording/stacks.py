"""Rolling stacks: observations as a frame-stacking wrapper makes them, of which only the newest frame is new.

A stack that does not roll would be stored wrong, so each is checked against the one before.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from diskbuffer.errors import StackError
from diskbuffer.native import address_of, compiled, load_u8, memcmp

Array = npt.NDArray[Any]

_SAME, _ROLLS, _STARTS, _NEXT_STARTS = 1, 2, 4, 8


class RollingStacks:
    """Check the stacks of one column.

    Parameters
    ----------
    path : str
    streams, frame_stack : int
    frame_bytes : int
    zeros : bool
        Whether an episode's first stack is filled up with zeros; if not, with its first frame.
    newest : callable
        Returns the stack (streams, frame_stack, ...) that each stream ends with, as stored.
    """

    def __init__(
        self, path: str, streams: int, frame_stack: int, frame_bytes: int, zeros: bool, newest: Callable[[], Array]
    ) -> None:
        self._path, self._stack, self._bytes, self._zeros, self._newest = path, frame_stack, frame_bytes, zeros, newest
        self._last = np.zeros((streams, frame_stack * frame_bytes), np.uint8)
        self._known = False
        self._found = np.zeros(streams, np.int64)

    def forget(self) -> None:
        """Do not rely on the last stack: rows were added without one."""
        self._known = False

    def check(self, obs: Array, next_obs: Array, running: npt.NDArray[np.bool_], resets: npt.NDArray[np.bool_]) -> Array:
        """Return which of the running streams go on with another episode than the one that runs, (streams,) bool.

        `running` tells which streams have an episode that is not over, `resets` where a reset step may be, whose ``obs`` is
        the last episode's. A StackError where a stack neither rolls on from the last nor starts an episode.
        """
        if not self._known:
            self._last[:] = np.ascontiguousarray(self._newest()).reshape(len(self._last), -1).view(np.uint8)
        _compare(address_of(obs), address_of(next_obs), self._last, self._stack, self._bytes, self._zeros, self._found)
        same, rolls, starts, next_starts = (self._found & bit > 0 for bit in (_SAME, _ROLLS, _STARTS, _NEXT_STARTS))
        fine = (rolls & starts) | (running & same & rolls) | (resets & same & next_starts)
        if not fine.all():
            env = int(np.flatnonzero(~fine)[0])
            why = (
                "next_obs is not obs moved on by one frame"
                if not rolls[env]
                else "obs is not the last next_obs, and does not start an episode "
                f"(a first stack is filled with {'zeros' if self._zeros else 'copies of its newest frame'})"
            )
            raise StackError(
                f"{self._path} of environment {env}: expected a rolling stack of {self._stack} frames, but {why}. "
                "Give single frames (the newest of each stack), or check frame_stack= and padding="
            )
        return np.asarray(running & ~(same & rolls))

    def accept(self, next_obs: Array) -> None:
        """Remember the newest stacks, once they are recorded."""
        self._last[:] = next_obs.reshape(self._last.shape[0], -1).view(np.uint8)
        self._known = True


@compiled
def _compare(obs: int, next_obs: int, last: Any, stack: int, frame: int, zeros: bool, found: Any) -> None:
    whole, older = stack * frame, (stack - 1) * frame
    for s in range(found.shape[0]):
        now, following, bits = obs + s * whole, next_obs + s * whole, 0
        if memcmp(now, last.ctypes.data + s * whole, whole) == 0:
            bits |= _SAME
        if memcmp(following, now + frame, older) == 0:
            bits |= _ROLLS
        if _starts(now, stack, frame, zeros):
            bits |= _STARTS
        if _starts(following, stack, frame, zeros):
            bits |= _NEXT_STARTS
        found[s] = bits


@compiled
def _starts(address: int, stack: int, frame: int, zeros: bool) -> bool:
    """Tell whether a stack is an episode's first: every frame but the newest is the filling."""
    if not zeros:
        return memcmp(address, address + frame, (stack - 1) * frame) == 0  # each is the same as the one after it
    for k in range((stack - 1) * frame):
        if load_u8(address + k):
            return False
    return True
