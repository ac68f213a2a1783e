"""Samplers for TorchRL's buffers that look at new steps, or ask the store's index, where TorchRL's scan the storage."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torchrl.data.replay_buffers.samplers import Sampler as TorchRLSampler
from torchrl.data.replay_buffers.samplers import SliceSampler

from diskbuffer import Sampler
from diskbuffer.adapters.torchrl.columns import uncompiled
from diskbuffer.adapters.torchrl.entries import as_tuple
from diskbuffer.adapters.torchrl.storage import DiskStorage
from diskbuffer.adapters.torchrl.trajectories import Source
from diskbuffer.errors import EmptyBufferError, InputError

_TRIES = 100
_SAVED = "sampler.pt"


class DiskSliceSampler(SliceSampler):  # type: ignore[misc]
    """TorchRL's `SliceSampler`, with all its arguments but `fragmented`, in a time that does not grow with the storage.

    Trajectories are found by the same entries, and the slices are the same for the same generator. TorchRL's own looks at all
    steps of the storage for every batch after something was added, and at all trajectories for every batch; this one looks at the
    steps that are new, and keeps 8 bytes a trajectory, 16 of one that is too short. Where places were not written to in a ring,
    it is TorchRL's own.
    """

    def sample(self, storage: Any, batch_size: int) -> tuple[Any, dict[Any, Any]]:
        """Draw slices of trajectories."""
        steps = batch_size * (self._batch_size_multiplier or 1)
        length, n = self._adjusted_batch_size(steps)
        found, *longer = self._find(storage, length)
        if not found:
            drawn: tuple[Any, dict[Any, Any]] = super().sample(storage, batch_size)
            return drawn
        which = torch.randint(len(found), (n,), generator=self._rng)
        lanes, starts, stops, lengths = found.at(which.numpy())
        axes = np.unravel_index(lanes, storage._total_shape[1:]) if storage.ndim > 1 else ()
        lengths = torch.from_numpy(lengths)
        padded = None
        if longer and len(longer[0]) < len(found):  # as TorchRL does where some are shorter
            padded, length = length if self.pad_output else None, lengths.clamp_max(length)
        result: tuple[Any, dict[Any, Any]] = self._get_index(
            lengths=lengths,
            start_idx=torch.from_numpy(np.stack([starts, *axes], axis=1)),
            stop_idx=torch.from_numpy(np.stack([stops, *axes], axis=1)),
            num_slices=n,
            seq_length=length,
            storage_length=storage.shape[0],
            traj_idx=torch.arange(n),
            target_seq_length=padded,
            storage=storage,
        )
        return result

    def _find(self, storage: Any, length: int) -> Sequence[Any]:
        """Return the trajectories to draw from, and where these may be shorter, those that are long enough, too.

        The first are none where TorchRL has to look for them.
        """
        none: Sequence[Any] = ((),)
        if not isinstance(storage, DiskStorage) or self._gpu_device is not None or "static-stop-and-length" in self._cache:
            return none
        if self._traj_key_auto:
            self._resolve_traj_key(storage)
        keys = (self._used_traj_key,) if self._fetch_traj else self.end_keys or (self.end_key,)
        least = (length,) if self.strict_length else (1, length)
        return storage.trajectories(Source(tuple(map(as_tuple, keys)), is_number=self._fetch_traj), least) or none


class DiskSampler(TorchRLSampler):  # type: ignore[misc]
    """One of diskbuffer's samplers, such as `diskbuffer.Prioritized()`, for a TorchRL buffer on a `DiskStorage`.

    Sequences, of `Slices`, come one behind the other, as TorchRL's slices do: the batch size counts steps. Weights are under
    "priority_weight"; ``rb.update_priority(index, priority)`` tells new priorities.

    Parameters
    ----------
    sampler : diskbuffer.Sampler
        One that draws steps, or sequences of a fixed length.
    """

    def __init__(self, sampler: Sampler) -> None:
        length = getattr(sampler.form, "length", None) or 1
        if getattr(sampler.form, "burn_in", 0) or getattr(sampler.form, "padded", False) or not hasattr(sampler.form, "length"):
            raise InputError(f"a TorchRL buffer reads steps, or whole sequences; {type(sampler).__name__} draws something else")
        self.sampler, self._length = sampler, int(length)

    @uncompiled
    def sample(self, storage: Any, batch_size: int) -> tuple[Any, dict[Any, Any]]:
        """Draw places of the storage."""
        if not isinstance(storage, DiskStorage):
            raise InputError(f"a DiskSampler draws from a DiskStorage, found {type(storage).__name__}")
        if batch_size % self._length:
            raise InputError(f"the batch size must be a multiple of the sequences' length, {self._length}, found {batch_size}")
        steps, places, notes = self._draw(storage, batch_size // self._length)
        info: dict[Any, Any] = {}
        if "weights" in notes:
            info["priority_weight"] = torch.from_numpy(np.repeat(notes["weights"], self._length))
        if self._length > 1:
            ends = torch.zeros(batch_size, 1, dtype=torch.bool)
            ends[self._length - 1 :: self._length] = True
            ended = storage.reading().at(steps.ravel(), columns=["terminated", "truncated"])
            truncated, terminated = ended["truncated"][:, None] | ends, ended["terminated"][:, None]
            info["next", "truncated"], info["next", "terminated"] = truncated, terminated
            info["next", "done"] = truncated | terminated
        if storage.ndim == 1:
            return torch.from_numpy(places), info
        shape = tuple(storage._total_shape[1:])
        lanes = np.unravel_index(steps.ravel() % math.prod(shape), shape)
        return (torch.from_numpy(places), *map(torch.from_numpy, lanes)), info

    def _draw(self, storage: DiskStorage, n: int) -> tuple[Any, Any, dict[str, Any]]:
        """Draw until all steps are in places: some may wait on the disk to be evicted.

        Return the steps, (n, length), their places, (n * length,), and what the sampler tells of each sequence.
        """
        if not storage.initialized:
            raise EmptyBufferError("there are no steps yet; extend the buffer before sampling")
        if hasattr(self.sampler, "update"):  # priorities are a column of the store
            storage.open_to_write()
        buffer = storage.reading()
        found, where, notes = list[Any](), list[Any](), list[dict[str, Any]]()
        for _ in range(_TRIES):
            drawn = buffer.draw(n, self.sampler)
            steps = drawn.pop("steps")[:, None] + np.arange(self._length) * buffer.n_envs
            places = storage.places(steps)
            good = (places >= 0).all(axis=1)
            found.append(steps[good])
            where.append(places[good].ravel())
            notes.append({name: values[good] for name, values in drawn.items()})
            n -= int(good.sum())
            if n == 0:
                told = {name: np.concatenate([note[name] for note in notes]) for name in notes[0]}
                return np.concatenate(found), np.concatenate(where), told
        raise EmptyBufferError("hardly any of the steps on the disk is in use; sample with TorchRL's own samplers")

    @uncompiled
    def update_priority(self, index: Any, priority: Any, *, storage: Any = None) -> None:
        """Tell new priorities of steps."""
        if not hasattr(self.sampler, "update"):
            raise InputError(f"{type(self.sampler).__name__} knows no priorities")
        values = torch.as_tensor(priority).detach().cpu().reshape(-1)
        steps = storage.steps(index if isinstance(index, tuple) else torch.as_tensor(index)).ravel()
        self.sampler.update(steps, values.expand(len(steps)) if values.numel() == 1 else values)

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
