"""Tianshou's replay buffers, on disk."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from tianshou.data import PrioritizedReplayBuffer, PrioritizedVectorReplayBuffer, ReplayBuffer, VectorReplayBuffer

from diskbuffer.adapters.tianshou.backed import StoreBacked

Array = npt.NDArray[Any]


class DiskReplayBuffer(StoreBacked, ReplayBuffer):
    """Tianshou's `ReplayBuffer`, with its steps in a store on disk.

    What is drawn and returned is what Tianshou's own returns, with the same seed, but that with ``ignore_obs_next=True`` the
    observation after an episode's last step is the real one. Observations are stored once, as single frames; give `stack_num` for
    stacks, as of Tianshou. Infos are stored as far as they are numbers.

    The store is opened, never wiped, and read-only until the first `add`.

    Parameters
    ----------
    size, stack_num, ignore_obs_next, save_only_last_obs, sample_avail, random_seed
        As of Tianshou.
    path : path-like
        Where the store is, or will be.
    threads, segment_rows, metadata
        Of `diskbuffer.ReplayBuffer`.
    codec : str, or mapping of str to str, optional
        As of `diskbuffer.Column`, of all observations that are compressed, or of some by their column: "obs", "obs/camera".

    Raises
    ------
    SchemaError
        The store at `path` is of another size, or holds something else.
    LockedError
        By the first `add`: another training writes to this path.

    Examples
    --------
    >>> buffer = DiskReplayBuffer(1_000_000, path="runs/pong", stack_num=4, ignore_obs_next=True)  # doctest: +SKIP
    """


class DiskVectorReplayBuffer(StoreBacked, VectorReplayBuffer):
    """Tianshou's `VectorReplayBuffer`, with its steps in one store on disk; see `DiskReplayBuffer`.

    Parameters
    ----------
    total_size, buffer_num
        As of Tianshou.
    path, threads, segment_rows, codec, metadata
        As of `DiskReplayBuffer`.
    """


class _Prioritized(StoreBacked):
    """Weights, which are in memory, 16 bytes a step, and begin anew when a buffer is opened."""

    weight: Any

    def _load(self) -> None:
        super()._load()
        self._weigh()

    def _weigh(self) -> None:
        """Weigh the steps that are there, and no others, or Tianshou's own code would draw these."""
        present = self.stored.is_there(self._indices)
        gone, new = self._indices[~present], self._indices[present & (self.weight[self._indices] == 0)]
        if len(gone):  # or Tianshou's tree would loop for ever
            self.weight[gone] = 0.0
        if len(new):
            self.init_weight(new)

    def reset(self, keep_statistics: bool = False) -> None:
        """Drop all steps, and draw none of them any more; Tianshou's own would."""
        with self.stored.lock:
            super().reset(keep_statistics)
            self._weigh()

    def _note_added(self, numbers: Sequence[Sequence[Any]], envs: Iterable[int]) -> tuple[Array, Array, Array, Array]:
        added = super()._note_added(numbers, envs)
        self.init_weight(added[0])
        return added

    def __getitem__(self, index: Any) -> Any:
        """Return steps, with their weights."""
        with self.stored.lock:
            index = self._without_slices(index)
            batch = super().__getitem__(index)
            weight = self.get_weight(index)
            batch.weight = weight / np.max(weight) if self._weight_norm else weight
            return batch


class DiskPrioritizedReplayBuffer(_Prioritized, PrioritizedReplayBuffer):
    """Tianshou's `PrioritizedReplayBuffer`, with its steps in a store on disk; see `DiskReplayBuffer`.

    Parameters
    ----------
    size, alpha, beta, weight_norm
        As of Tianshou.
    path, threads, segment_rows, codec, metadata
        As of `DiskReplayBuffer`.
    """


class DiskPrioritizedVectorReplayBuffer(_Prioritized, PrioritizedVectorReplayBuffer):
    """Tianshou's `PrioritizedVectorReplayBuffer`, with its steps in one store on disk; see `DiskReplayBuffer`.

    Parameters
    ----------
    total_size, buffer_num
        As of Tianshou; `alpha` and `beta`, too, by name.
    path, threads, segment_rows, codec, metadata
        As of `DiskReplayBuffer`.
    """
