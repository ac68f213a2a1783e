"""Batches of every form, and their memory, which is used again."""

from __future__ import annotations

from diskbuffer.reading.batches.across_episodes import RowArrays
from diskbuffer.reading.batches.base import Arrays, Request, Windows
from diskbuffer.reading.batches.hindsight import RelabelledArrays
from diskbuffer.reading.batches.n_step import NStepArrays
from diskbuffer.reading.batches.offsets import OffsetArrays
from diskbuffer.reading.batches.transitions import StepArrays
from diskbuffer.runtime import forks
from diskbuffer.samplers import draws
from diskbuffer.samplers.draws import Draw, Form

_ARRAYS: dict[type[Form], type[Arrays]] = {
    draws.Steps: StepArrays,
    draws.NSteps: NStepArrays,
    draws.Rows: RowArrays,
    draws.Relabelled: RelabelledArrays,
    draws.Offsets: OffsetArrays,
}


def windows_of(request: Request, drawn: Draw) -> list[Windows]:
    """Return what is to be gathered for drawn steps."""
    return _ARRAYS[type(request.form)].windows(request, drawn)


def allocate(request: Request, pinned: bool = False) -> Arrays:
    """Return memory for a batch."""
    return _ARRAYS[type(request.form)](request, pinned)


class ArraysPool:
    """Memory of batches that nobody holds any more, used again: fresh pages cost more than the gather itself.

    `kept` is how many at most; more are waited for where they are being copied, and forgotten where somebody holds them.
    """

    def __init__(self, kept: int = 4) -> None:
        self._kept = kept
        self._arrays: list[Arrays] = []
        self._lock = forks.new_lock()
        forks.renew(self)

    def after_fork(self) -> None:
        """Do without the arrays, which a thread that is not in the child may have been taking."""
        self._arrays = []

    def take(self, request: Request, pinned: bool = False) -> Arrays:
        """Return arrays that nobody else uses; give them back with `give`."""
        with self._lock:
            for n, arrays in enumerate(self._arrays):
                if arrays.request == request and arrays.pinned == pinned and arrays.is_copied and not arrays.in_use:
                    return self._arrays.pop(n)
            copying = [arrays for arrays in self._arrays if arrays.copied is not None]
            if not pinned or len(copying) < self._kept or copying[0].request != request or copying[0].in_use:
                return allocate(request, pinned)
            self._arrays.remove(copying[0])
        assert copying[0].copied is not None
        copying[0].copied.synchronize()
        return copying[0]

    def give(self, arrays: Arrays) -> None:
        """Return arrays for reuse, once the tensors over them are gone."""
        with self._lock:
            self._arrays.append(arrays)
            del self._arrays[: -self._kept]
