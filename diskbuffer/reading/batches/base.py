"""The arrays of a batch: what is gathered for a form of sample, and what users get of it, tensors or arrays."""

from __future__ import annotations

import functools
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from diskbuffer.native import jobs
from diskbuffer.reading.gather.targets import Columns, Memory, new_array
from diskbuffer.runtime.signals import Uninterrupted
from diskbuffer.samplers.draws import Draw
from diskbuffer.schema.nested import leaves

if TYPE_CHECKING:
    import torch

    from diskbuffer.reading.gather.block import Block

_NOTE_BYTES = 64  # room for notes of a step: its id, its weight, and others
Batch = dict[str, Any]  # tensors, or arrays, nested for dict observations
A = TypeVar("A", npt.NDArray[Any], "torch.Tensor")


class Windows(NamedTuple):
    """Rows around drawn steps: `rows` of them, of which the drawn one is number `before`."""

    drawn: Draw
    before: int
    rows: int


class Request(NamedTuple):
    """What a batch is to be: `size` samples of a form, of these columns."""

    columns: Columns
    frame_stack: int
    form: Any
    size: int


class Arrays(ABC):
    """Memory for one batch."""

    def __init__(self, request: Request, pinned: bool = False) -> None:
        self.request = request
        self.copied: torch.Event | None = None  # after the last copy of this memory to an accelerator
        self._stack, self._form, self._size = request.frame_stack, request.form, request.size
        self.memories: list[Memory] = []  # what is gathered, in the order of `windows`
        self.notes: dict[str, npt.NDArray[Any]] = {}  # delivered, too, but new in every batch
        self._names: list[str] = []  # paths in a batch, of `_delivered`
        self._delivered: list[npt.NDArray[Any]] = []
        self._notes: dict[str, npt.NDArray[Any]] = {}  # where these are pinned, too
        self.block: Block | None = None
        if pinned:
            from diskbuffer.reading.gather.block import Block

            needed = Block()
            self.allocate(request.columns, needed)
            self.block = Block(needed.taken + _NOTE_BYTES * request.size * request.form.steps)
        self.allocate(request.columns, self.block)
        self._named = self.name(self._names, self._delivered)
        self._shared = self._memory()
        self._unused = self._references()

    def _memory(self) -> list[npt.NDArray[Any]]:
        """Return each array once that users may have a tensor or a view over."""
        gathered = (array for memory in self.memories for array in memory.arrays)
        return list({id(array): array for array in (*leaves(self._named), *self._delivered, *gathered)}.values())

    def _references(self) -> list[int]:
        return [*map(sys.getrefcount, self._shared)]

    @property
    def pinned(self) -> bool:
        """Whether it lies in a block, for an accelerator."""
        return self.block is not None

    @property
    def in_use(self) -> bool:
        """Whether somebody still holds a tensor or a view that `batch` made: it shares this memory."""
        return self._references() != self._unused

    @property
    def is_copied(self) -> bool:
        """Whether this memory can be filled again: no copy of it is under way."""
        return self.copied is None or self.copied.query()

    def batch(self, *, numpy: bool = False) -> Batch:
        """Return a batch of tensors over this memory, or of arrays."""
        if numpy:
            return views(self._named) | self.notes
        return as_tensors(self._named | self.notes)

    def arrays(self) -> list[npt.NDArray[Any]]:
        """Return what is to be copied elsewhere; notes come last."""
        return [*self._delivered, *self.notes.values()]

    def deliver(self, tensors: list[torch.Tensor]) -> Batch:
        """Make a batch of copies of what `arrays` returned."""
        batch = self.name(self._names, tensors[: len(self._delivered)])
        batch.update(zip(self.notes, tensors[len(self._delivered) :], strict=True))
        return batch

    def note(self, drawn: Draw, steps: npt.NDArray[Any]) -> None:
        """Take what is delivered beside the columns: the ids of the steps, and what the sampler tells of them."""
        notes = drawn.delivered_notes() | {"steps": steps}
        self.notes = {name: self._pin(name, note) for name, note in notes.items()} if self.pinned else notes
        if self.pinned:
            self._unused = self._references()  # of notes, too

    def _pin(self, name: str, note: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Copy a note to pinned memory, which is used again as all else here."""
        known = self._notes.get(name)
        if known is None or known.shape != note.shape or known.dtype != note.dtype:
            assert self.block is not None
            block = self.block if self.block.has_room(note.nbytes) else type(self.block)(note.nbytes)
            known = self._notes[name] = new_array(note.shape, note.dtype, block)
            self._shared = [*self._shared, known]
        known[...] = note
        return known

    @abstractmethod
    def allocate(self, columns: Columns, block: Block | None) -> None:
        """Set `memories`, and `_delivered`: what users get of them, and of other memory; it lies in the block if there is one.

        These are the columns that are delivered; what the form needs beside them is read, too.
        """

    @staticmethod
    @abstractmethod
    def windows(request: Request, drawn: Draw) -> list[Windows]:
        """Return what is to be gathered."""

    def plan_finish(self, job: jobs.Job, drawn: Draw) -> None:  # noqa: B027  most need nothing
        """Tell a job what follows from what it gathers."""

    def finish(self, drawn: Draw) -> None:  # noqa: B027
        """Compute what follows, and needs Python."""

    @abstractmethod
    def name(self, paths: Sequence[str], arrays: Sequence[A]) -> Batch:
        """Name arrays, or tensors, and take ``obs`` and ``next_obs`` out of the frames."""


def views(arrays: dict[str, Any]) -> Batch:
    """Return views of arrays, of which Python counts that somebody holds them."""
    return _each(np.ndarray.view, arrays)


def as_tensors(arrays: dict[str, Any]) -> Batch:
    """Return tensors over arrays."""
    return _each(tensor_maker(), arrays)


@functools.cache
def tensor_maker() -> Callable[[npt.NDArray[Any]], torch.Tensor]:
    """Import PyTorch, which takes seconds and 200 MB, when its tensors are first made; return what makes one over an array."""
    with Uninterrupted():  # half of it, which a Ctrl-C would leave, crashes the interpreter
        import torch

    return torch.from_numpy


def _each(function: Callable[[npt.NDArray[Any]], Any], arrays: dict[str, Any]) -> Batch:
    if dict not in map(type, arrays.values()):
        return dict(zip(arrays, map(function, arrays.values()), strict=True))
    return {name: _each(function, value) if isinstance(value, dict) else function(value) for name, value in arrays.items()}
