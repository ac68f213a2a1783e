"""What a buffer over Ray offers for steps by their ids: reading and writing them, and passes over all of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from diskbuffer.adapters.ray.delivering import Delivering
from diskbuffer.adapters.ray.passes import Pass, map_batches, shuffled
from diskbuffer.adapters.ray.shards import Shards
from diskbuffer.adapters.ray.steps import StepsOfShards
from diskbuffer.errors import InputError
from diskbuffer.plugin import Batch, Transform, integer, integer_or_none, step_ids


class StepsByName(ABC):
    """A part of `RayReplayBuffer`. Every step has one shard, which is waited for where it does not answer."""

    _shards: Shards
    _steps: StepsOfShards

    @abstractmethod
    def _check_open(self) -> None:
        """Refuse where the buffer was closed."""

    def steps(self) -> npt.NDArray[np.int64]:
        """Return the ids of all steps, as they are in a batch's ``steps``: shard after shard, each as `ReplayBuffer.steps`.

        Raises
        ------
        UnreachableError
            A shard does not answer, for half a minute or `patience`.
        """
        self._check_open()
        return self._steps.every()

    def at(self, steps: Any, length: int | None = None, *, columns: Sequence[str] | None = None) -> Batch:
        """Return given steps, in this order, as `ReplayBuffer.at` does; each shard reads its own.

        Raises
        ------
        InputError
            A step was evicted, or never was one.
        UnreachableError
            A shard that has some of them does not answer.
        """
        self._check_open()
        if isinstance(columns, str):
            raise InputError(f"columns must be a list of names, such as [{columns!r}], found a string")
        batch = self._steps.at(steps, integer_or_none("length", length), columns)
        assert batch is not None
        return batch

    def write(self, name: str, steps: Any, values: Any) -> int:
        """Write a column's values of some steps, as `Columns.write` does: in the stores of the shards that have them.

        Every shard has the column then, with zeros elsewhere, and it is part of every batch of loops that begin later. From then
        on batches come from the shards also where this process could read their disk.

        Returns
        -------
        int
            For how many steps; those that were evicted are left out.

        Raises
        ------
        SchemaError, InputError
            As of `Columns.write`. Shards that have none of the steps at fault may have written theirs.
        UnreachableError
            A shard does not answer. The others have written theirs; the same call again writes the rest.
        """
        self._check_open()
        written = self._steps.write(name, steps, values)
        self._shards.ask_all()
        return written

    def batches(
        self,
        batch_size: int,
        shuffle: bool = False,
        merge_last: bool = True,
        *,
        steps: Any = None,
        seed: int | None = None,
        device: torch.device | str | None = None,
        transform: Transform | None = None,
        prefetch: int = 3,
    ) -> Pass:
        """Return an iterable over every step that is there when a loop begins, once, as `ReplayBuffer.batches` does.

        Steps come shard after shard, or shuffled over all of them, or those of `steps` in their order. What is evicted meanwhile
        is left out. ``len()`` asks the shards how many batches there would be now.

        Raises
        ------
        UnreachableError
            From the loop: a shard does not answer for long, and a pass would not be whole without it.

        Notes
        -----
        The ids of all steps are in memory, 8 bytes each. A pass cannot be resumed, nor be shared out between ranks: take parts
        of `steps` for that.
        """
        self._check_open()
        if steps is not None and shuffle:
            raise InputError("steps come in the order in which they are given; shuffle them, or leave shuffle= out")
        requested = None if steps is None else step_ids(steps)

        def named() -> npt.NDArray[np.int64]:
            self._check_open()
            ids = self._steps.every() if requested is None else requested
            return shuffled(ids, seed) if shuffle else ids

        size, many = integer("batch_size", batch_size), integer("prefetch", prefetch)
        return Pass(self._steps, named, size, merge_last, Delivering(device, transform), many)

    def map(
        self,
        function: Callable[[Batch], Any],
        batch_size: int,
        out: str | Sequence[str],
        *,
        steps: Any = None,
        progress: bool = True,
        device: torch.device | str | None = None,
        prefetch: int = 2,
    ) -> int:
        """Call a function with batches of every step, and write what it returns to columns, as `Columns.map` does.

        It cannot be resumed: call it with the steps that are left.

        Returns
        -------
        int
            For how many steps the function was called.
        """
        names = self.steps() if steps is None else step_ids(steps)
        batches = self.batches(batch_size, merge_last=False, steps=names, device=device, prefetch=prefetch)
        done = map_batches(batches, self._steps, function, out, len(names), shown=progress)
        self._shards.ask_all()
        return done
