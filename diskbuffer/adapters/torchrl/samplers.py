"""diskbuffer's samplers, which ask the store's index, for TorchRL's buffers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from tensordict import TensorDict
from torchrl.data.replay_buffers.samplers import PrioritizedSampler
from torchrl.data.replay_buffers.samplers import Sampler as TorchRLSampler

from diskbuffer import Prioritized, Sampler
from diskbuffer.adapters.torchrl.entries import as_entries
from diskbuffer.adapters.torchrl.storage import DiskStorage
from diskbuffer.adapters.torchrl.stored import uncompiled
from diskbuffer.errors import EmptyBufferError, InputError
from diskbuffer.plugin import flatten

_TRIES = 100
_SAVED = "sampler.pt"
_NONE = float(torch.finfo(torch.float32).min)
_HARDLY_ANY = "hardly any of the steps on the disk is in use; sample with TorchRL's own samplers"
Int64 = npt.NDArray[np.int64]


def _index(storage: DiskStorage, steps: Int64, places: Int64) -> Any:
    """Return an index of places, (n,), as TorchRL has it: a tensor of them, or one for each axis of the storage."""
    if storage.ndim == 1:
        return torch.from_numpy(places)
    shape = storage.stored.ring.lanes
    lanes = np.unravel_index(steps % math.prod(shape), shape)
    return (torch.from_numpy(places), *map(torch.from_numpy, lanes))


def _draw_in_use(storage: DiskStorage, n: int, draw: Callable[[int], dict[str, Any]]) -> tuple[dict[str, Any], Int64]:
    """Draw ``draw(n)`` until all "steps" have places in the storage, as some may wait on the disk to be evicted.

    Return what was drawn, and the places, of the shape of the steps.
    """
    parts, where = list[dict[str, Any]](), list[Int64]()
    for _ in range(_TRIES):
        drawn = draw(n)
        places = storage.places(drawn["steps"])
        good = (places >= 0).all(axis=tuple(range(1, places.ndim)))
        parts.append(drawn if good.all() else {name: values[good] for name, values in drawn.items()})
        where.append(places[good])
        n -= int(good.sum())
        if n == 0:
            if len(parts) == 1:
                return parts[0], where[0]
            return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}, np.concatenate(where)
    raise EmptyBufferError(_HARDLY_ANY)


def draws_windows(sampler: Sampler) -> bool:
    """Return whether a sampler draws windows."""
    return hasattr(sampler.form, "columns")


def length_of(sampler: Sampler) -> int:
    """Return how many steps one sample is; an InputError where TorchRL has no place for what is drawn."""
    if not isinstance(sampler, Sampler):
        raise InputError(f"expected one of diskbuffer's samplers, such as diskbuffer.Uniform(), found {sampler!r}")
    form = sampler.form
    if not draws_windows(sampler) and (not hasattr(form, "burn_in") or form.burn_in or getattr(form, "padded", False)):
        raise InputError(
            f"a TorchRL buffer reads steps, whole sequences or windows; this {type(sampler).__name__} draws something else, "
            "as with n_step=, burn_in= or strict=False"
        )
    return int(getattr(form, "length", None) or 1)


def ends_of(ended: Mapping[str, torch.Tensor], length: int) -> dict[tuple[str, str], torch.Tensor]:
    """Return the flags that TorchRL has of sequences, (n, 1), from those of their steps, (n,): the last is truncated."""
    terminated, truncated = ended["terminated"][:, None], ended["truncated"][:, None].clone()
    truncated[length - 1 :: length] = True
    return {
        ("next", "terminated"): terminated,
        ("next", "truncated"): truncated,
        ("next", "done"): truncated | terminated,
    }


def per_sample(batch_size: int, length: int) -> int:
    """Return how many samples a batch is, of which each is so many steps."""
    if batch_size % length:
        raise InputError(f"the batch size must be a multiple of the sequences' length, {length}, found {batch_size}")
    return batch_size // length


class DiskSampler(TorchRLSampler):  # type: ignore[misc]
    """One of diskbuffer's samplers, such as `diskbuffer.Prioritized()`, for a TorchRL buffer on a `DiskStorage`.

    Sequences, of `Slices`, come one behind the other, as TorchRL's slices do: the batch size counts steps. Weights are under
    "priority_weight"; ``rb.update_priority(index, priority)``, or ``rb.update_tensordict_priority(batch)`` with "td_error", tells
    new priorities.

    Of `Windows`, entries have an axis for their offsets behind the batch's, and there are none but those whose columns are named:
    ``"obs/pixels"`` for an entry "pixels" that is below "next", too, "reward" for ("next", "reward"), and "action" for itself.
    Masks, where windows are padded, are below "mask".

    Parameters
    ----------
    sampler : diskbuffer.Sampler
        One that draws steps, sequences of a fixed length, or windows.
    """

    def __new__(cls, sampler: Sampler | None = None) -> Any:
        """Make one that TorchRL's buffers take for a prioritized one, where it is: they ask for the class."""
        return super().__new__(_PrioritizedDiskSampler if cls is DiskSampler and hasattr(sampler, "update") else cls)

    def __init__(self, sampler: Sampler) -> None:
        self.sampler, self._length, self._has_windows = sampler, length_of(sampler), draws_windows(sampler)

    @uncompiled
    def sample(self, storage: Any, batch_size: int) -> tuple[Any, dict[Any, Any]]:
        """Draw places of the storage."""
        if not isinstance(storage, DiskStorage):
            raise InputError(f"a DiskSampler draws from a DiskStorage, found {type(storage).__name__}")
        n = per_sample(batch_size, self._length)
        if self._has_windows:
            return self._read_windows(storage, n)
        steps, places, notes = self._draw(storage, n)
        info: dict[Any, Any] = {}
        if "weights" in notes:
            info["priority_weight"] = torch.from_numpy(np.repeat(notes["weights"], self._length))
        if self._length > 1:
            info |= ends_of(storage.reading().at(steps.ravel(), columns=["terminated", "truncated"]), self._length)
        return _index(storage, steps.ravel(), places), info

    def _read_windows(self, storage: DiskStorage, n: int) -> tuple[Any, dict[Any, Any]]:
        """Draw places of the storage, and hand what is around them to it, which TorchRL asks for that next."""
        buffer = self._opened(storage)
        if buffer.frame_stack > 1:
            raise InputError("windows are of single frames: make the storage without frame_stack, and name a stack's offsets")
        rows, places = _draw_in_use(storage, n, lambda n: flatten(buffer.sample(n, self.sampler, numpy=True)))
        steps, info = rows.pop("steps"), dict[Any, Any]()
        if "weights" in rows:
            info["priority_weight"] = torch.from_numpy(rows.pop("weights"))
        index = _index(storage, steps, places)
        storage.hand_over(index, TensorDict(as_entries(rows), [n], device=storage.device))
        return index, info

    def _opened(self, storage: DiskStorage) -> Any:
        """Return the storage's buffer, open for writing where priorities are a column of it."""
        if not storage.initialized:
            raise EmptyBufferError("there are no steps yet; extend the buffer before sampling")
        if hasattr(self.sampler, "update"):
            storage.open_to_write()
        return storage.reading()

    def _draw(self, storage: DiskStorage, n: int) -> tuple[Any, Any, dict[str, Any]]:
        """Return steps, (n, length), their places, (n * length,), and what the sampler tells of each sequence."""
        buffer = self._opened(storage)

        def draw(n: int) -> dict[str, Any]:
            drawn: dict[str, Any] = buffer.draw(n, self.sampler)
            return {**drawn, "steps": drawn["steps"][:, None] + np.arange(self._length) * buffer.n_envs}

        notes, places = _draw_in_use(storage, n, draw)
        return notes.pop("steps"), places.ravel(), notes

    @uncompiled
    def update_priority(self, index: Any, priority: Any, *, storage: Any = None) -> None:
        """Tell new priorities of steps."""
        if not hasattr(self.sampler, "update"):
            raise InputError(f"{type(self.sampler).__name__} knows no priorities")
        if bool((torch.as_tensor(priority) == _NONE).all()):  # what TorchRL tells where it was told nothing
            return
        steps = storage.steps(index if isinstance(index, tuple) else torch.as_tensor(index)).ravel()
        values = torch.as_tensor(priority).detach().cpu().reshape(-1)
        values = values.expand(len(steps)) if values.numel() == 1 else values
        if self._length > 1:  # of whole sequences, as they were drawn
            if len(steps) % self._length or len(values) != len(steps):
                raise InputError(
                    f"expected whole sequences of {self._length} steps, and a priority for each step, found {len(steps):,} steps "
                    f"and {len(values):,} priorities"
                )
            steps, values = steps.reshape(-1, self._length), values.reshape(-1, self._length)
        self.sampler.update(steps, values)

    def state_dict(self) -> dict[str, Any]:
        """Return the sampler's state."""
        return self.sampler.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a state."""
        self.sampler.load_state_dict(state_dict)

    def dumps(self, path: Any) -> None:
        """Save the sampler's state."""
        Path(path).mkdir(parents=True, exist_ok=True)
        torch.save(self.state_dict(), Path(path) / _SAVED)

    def loads(self, path: Any) -> None:
        """Go on from a saved state."""
        self.load_state_dict(torch.load(Path(path) / _SAVED, weights_only=True))

    def _empty(self) -> None:
        """Do nothing: the storage knows which steps are in use."""


class _PrioritizedDiskSampler(DiskSampler, PrioritizedSampler):  # type: ignore[misc]
    """Draw by priorities of the store, as a sampler of which TorchRL's buffers know that it does.

    Attributes
    ----------
    reduction : str
        How TorchRL makes one priority of several values of a step.
    default_priority : float
        A number that stands for none: steps that nobody told a priority have the largest in the store, and what is there stays.
    """

    sampler: Prioritized
    reduction, default_priority = "max", _NONE
    __getstate__ = object.__getstate__

    def __repr__(self) -> str:
        return f"DiskSampler({self.sampler!r})"

    @property
    def alpha(self) -> float:
        """As of the sampler."""
        return self.sampler.alpha

    @property
    def beta(self) -> float:
        """As of the sampler; TorchRL's schedulers change it."""
        return self.sampler.beta

    @beta.setter
    def beta(self, value: float) -> None:
        self.sampler.beta = float(value)

    def add(self, index: Any) -> None:
        """Do nothing: the store knows which steps are new."""

    def extend(self, index: Any) -> None:
        """Do nothing: the store knows which steps are new."""

    def mark_update(self, index: Any, *, storage: Any = None) -> None:
        """Do nothing: a step that is written anew keeps its priority."""
