"""Rolling stacks: observations as a frame-stacking wrapper makes them, of which only the newest frame is new.

Each is compared with the one before: what does not roll on from it starts an episode, and brings earlier frames of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from diskbuffer.native.arrays import address_of
from diskbuffer.native.compiling import compiled
from diskbuffer.recording.equality import all_zero, float_bytes, same_values

Array = npt.NDArray[Any]
Bools = npt.NDArray[np.bool_]

_SAME, _ROLLS, _STARTS = 1, 2, 4


class Compared(NamedTuple):
    """What the stacks of one step are, (streams,) bool each.

    Attributes
    ----------
    same
        ``obs`` is the stack that its stream ends with.
    rolls
        ``next_obs`` is ``obs`` moved on by one frame.
    starts
        ``obs`` is filled up as an episode's first stack is.
    """

    same: Bools
    rolls: Bools
    starts: Bools


class RollingStacks:
    """Compare the stacks of one column.

    Parameters
    ----------
    streams, frame_stack, frame_bytes : int
    dtype : numpy.dtype
    zeros : bool
        Whether an episode's first stack is filled up with zeros; if not, with its first frame.
    newest : callable
        Returns the stack (streams, frame_stack, ...) that each stream ends with, as stored.
    lossy : bool
        Whether its frames, but for the last, may have lost something: then they are not compared.

    Attributes
    ----------
    last : (streams, bytes of a stack) uint8
        The stacks that the last step led to, if they are known.
    known : (1,) int64
        Whether they are; compiled code reads and writes both.
    """

    def __init__(
        self,
        streams: int,
        frame_stack: int,
        frame_bytes: int,
        dtype: np.dtype[Any],
        zeros: bool,
        newest: Callable[[], Array],
        *,
        lossy: bool = False,
    ) -> None:
        self._stack, self._bytes, self._zeros, self._newest = frame_stack, frame_bytes, zeros, newest
        self._float, self._lossy = float_bytes(dtype), lossy
        self.last = np.zeros((streams, frame_stack * frame_bytes), np.uint8)
        self.known = np.zeros(1, np.int64)
        self._found = np.zeros(streams, np.int64)

    def forget(self) -> None:
        """Do not rely on the last stack: rows were added without one."""
        self.known[0] = 0

    def compare(self, obs: Array, next_obs: Array) -> Compared:
        """Compare the stacks of a step of every stream, (streams, frame_stack, ...)."""
        if not self.known[0]:
            self.last[:] = np.ascontiguousarray(self._newest()).reshape(len(self.last), -1).view(np.uint8)
            if self._lossy:
                self.last[:, : -self._bytes] = obs.reshape(self.last.shape).view(np.uint8)[:, : -self._bytes]
        last, zeros = self.last, self._zeros
        _compare(address_of(obs), address_of(next_obs), last, self._stack, self._bytes, self._float, zeros, self._found)
        return Compared(*(self._found & bit > 0 for bit in (_SAME, _ROLLS, _STARTS)))

    def accept(self, next_obs: Array, goes_on: Bools) -> None:
        """Remember the newest stacks as they are stored, once the step that was compared last is recorded.

        Where an episode goes on from a stack that is not the last ``next_obs``, as the caller said so, the stored one keeps the
        frames that it had, and has one more.
        """
        following = next_obs.reshape(self.last.shape[0], -1).view(np.uint8)
        rolled = np.flatnonzero(goes_on & (self._found & _SAME == 0))
        if len(rolled):
            following = following.copy()
            following[rolled, : -self._bytes] = self.last[rolled, self._bytes :]
        self.last[:] = following
        self.known[0] = 1


@compiled
def _compare(obs: int, next_obs: int, last: Any, stack: int, frame: int, width: int, zeros: bool, found: Any) -> None:
    whole, older = stack * frame, (stack - 1) * frame
    for s in range(found.shape[0]):
        now, following, bits = obs + s * whole, next_obs + s * whole, 0
        if same_values(now, last.ctypes.data + s * whole, whole, width):
            bits |= _SAME
        if same_values(following, now + frame, older, width):
            bits |= _ROLLS
        if all_zero(now, older, width) if zeros else same_values(now, now + frame, older, width):
            bits |= _STARTS
        found[s] = bits
