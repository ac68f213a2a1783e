"""The arrays of a batch: what is gathered for a form of sample, and the tensors that users get of it."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import numpy.typing as npt
import torch

from diskbuffer.native import jobs
from diskbuffer.reading.gather.targets import Block, ColumnMemory, Columns, Memory
from diskbuffer.samplers.draws import Draw
from diskbuffer.schema.nested import leaves

_NOTE_BYTES = 64  # room for notes of a step: its id, its weight, and others
Batch = dict[str, Any]  # tensors, nested for dict observations


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
        self._delivered: list[ColumnMemory] = []
        self._notes: dict[str, ColumnMemory] = {}  # where these are pinned, too
        self.block: Block | None = None
        if pinned:
            needed = Block()
            self.allocate(request.columns, needed)
            self.block = Block(needed.taken + _NOTE_BYTES * request.size * request.form.steps)
        self.allocate(request.columns, self.block)
        self._named = as_arrays(self.name([memory.tensor() for memory in self._delivered]))
        self._shared = [*leaves(self._named), *(memory.array for memory in self._delivered)]  # by those whom we gave tensors
        self._unused = self._references()

    def _references(self) -> list[int]:
        return [*map(sys.getrefcount, self._shared)]

    @property
    def pinned(self) -> bool:
        """Whether it lies in a block, for an accelerator."""
        return self.block is not None

    @property
    def in_use(self) -> bool:
        """Whether somebody still holds a tensor that `batch` made: it shares this memory."""
        return self._references() != self._unused

    @property
    def is_copied(self) -> bool:
        """Whether this memory can be filled again: no copy of it is under way."""
        return self.copied is None or self.copied.query()

    def batch(self) -> Batch:
        """Return a batch of tensors over this memory."""
        batch = _as_tensors(self._named)
        for name, note in self.notes.items():
            batch[name] = torch.from_numpy(note)
        return batch

    def tensors(self) -> list[torch.Tensor]:
        """Return tensors over this memory, to be copied elsewhere; notes come last."""
        return [*(memory.tensor() for memory in self._delivered), *map(torch.from_numpy, self.notes.values())]

    def deliver(self, tensors: list[torch.Tensor]) -> Batch:
        """Make a batch of copies of what `tensors` returned."""
        batch = self.name(tensors[: len(self._delivered)])
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
        if known is None or known.array.shape != note.shape or known.array.dtype != note.dtype:
            block = self.block if self.block is not None and self.block.has_room(note.nbytes) else Block(note.nbytes)
            known = self._notes[name] = ColumnMemory(note.shape, note.dtype, block)
            self._shared = [*self._shared, known.array]
        known.array[...] = note
        return known.array

    @abstractmethod
    def allocate(self, columns: Columns, block: Block | None) -> None:
        """Set `memories`, and `_delivered`: what users get of them, and of other memory; it lies in the block if there is one."""

    @staticmethod
    @abstractmethod
    def windows(frame_stack: int, form: Any, drawn: Draw) -> list[Windows]:
        """Return what is to be gathered."""

    def plan_finish(self, job: jobs.Job, drawn: Draw) -> None:  # noqa: B027  most need nothing
        """Tell a job what follows from what it gathers."""

    def finish(self, drawn: Draw) -> None:  # noqa: B027
        """Compute what follows, and needs Python."""

    @abstractmethod
    def name(self, tensors: list[torch.Tensor]) -> Batch:
        """Name the tensors, and take ``obs`` and ``next_obs`` out of the frames."""


def as_arrays(batch: Batch) -> dict[str, Any]:
    """Return arrays over the memory of a batch's tensors."""
    return {name: as_arrays(value) if isinstance(value, dict) else value.numpy() for name, value in batch.items()}


def _as_tensors(arrays: dict[str, Any]) -> Batch:
    if dict not in map(type, arrays.values()):
        return dict(zip(arrays, map(torch.from_numpy, arrays.values()), strict=True))
    return {name: _as_tensors(value) if isinstance(value, dict) else torch.from_numpy(value) for name, value in arrays.items()}
