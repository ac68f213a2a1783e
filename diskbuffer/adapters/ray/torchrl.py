"""TorchRL's collectors on Ray: each of them writes to its own node's disk, and no step passes through the learner's process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tensordict import TensorDict, TensorDictBase

from diskbuffer import ReplayBuffer, Sampler
from diskbuffer.adapters.ray.cluster import ClusterBuffer
from diskbuffer.errors import InputError
from diskbuffer.plugin import put_argument, value_at

Key = str | tuple[str, ...]
_COLUMNS: dict[str, Key] = {"obs": "observation", "action": "action"}
_OF_NEXT = ("reward", "terminated", "truncated")  # which have an axis more in a TensorDict


class CollectorBuffer:
    """What ``RayCollector(replay_buffer=...)`` takes, over a `ClusterBuffer`.

    Each collector opens a writer with its first batch. It continues the store of a collector that ended, if there is one.

    Parameters
    ----------
    buffer : ClusterBuffer
    columns : mapping of str to str or tuple of str, optional
        Where in a TensorDict the columns are, beside reward, terminated and truncated of ``next``. Those that begin with "obs"
        are read from ``next``, too. ``{"obs": "observation", "action": "action"}`` by default.
    """

    service_backend = "ray"  # what RayCollector asks for

    def __init__(self, buffer: ClusterBuffer, columns: Mapping[str, Key] | None = None) -> None:
        self.buffer, self._columns = buffer, dict(_COLUMNS if columns is None else columns)
        self._writer: ReplayBuffer | None = None
        self._keys = self._columns | {name: ("next", name) for name in _OF_NEXT}
        for column, key in self._columns.items():
            if column.split("/")[0] == "obs":
                self._keys["next_" + column] = ("next", *((key,) if isinstance(key, str) else key))

    def __reduce__(self) -> tuple[Any, ...]:
        """Return how a collector reaches the same buffer; it opens a writer of its own."""
        return type(self), (self.buffer, self._columns)

    def client(self) -> CollectorBuffer:
        """Return what a collector is given."""
        return self

    def clients(self, count: int) -> list[CollectorBuffer]:
        """Return what so many collectors are given."""
        return [self] * count

    @property
    def write_count(self) -> int:
        """How many steps were ever added, as far as nodes have told: those of about the last second may be missing."""
        return int(self.buffer.stats()["added"])

    def extend(self, data: TensorDictBase) -> None:
        """Store what was collected, (steps,) or (environments, steps), always of as many environments. The limiter may wait.

        Raises
        ------
        InputError
            The batch has other axes, or what is in it does not fit the columns.
        """
        if data.ndim not in (1, 2):
            raise InputError(f"expected a batch of shape (steps,) or (environments, steps), found {tuple(data.shape)}")
        rows = [data] if data.ndim == 1 else data.unbind(0)
        if self._writer is None:
            self._writer = self.buffer.writer(n_envs=len(rows), autoreset="disabled")
        if len(rows) != self._writer.n_envs:
            raise InputError(f"expected steps of {self._writer.n_envs} environments, as before, found {len(rows)}")
        for env, row in enumerate(rows):
            arguments: dict[str, Any] = {}
            for column, key in self._keys.items():
                if (value := row.get(key, None)) is not None:
                    flat = value.reshape(len(row)) if column in _OF_NEXT else value
                    put_argument(arguments, column, flat.numpy(force=True))
            self._writer.extend(env=env, **arguments)

    def sample(self, batch_size: int, sampler: Sampler | None = None) -> TensorDict:
        """Return steps as a TensorDict, as TorchRL's losses take them; ``node`` and ``steps`` name them."""
        drawn = self.buffer.sample(batch_size, sampler)
        batch = TensorDict({name: drawn[name] for name in ("node", "steps")}, drawn["steps"].shape)
        for column, key in self._keys.items():
            value = value_at(drawn, column)
            batch[key] = value.unsqueeze(-1) if column in _OF_NEXT else value
        batch["next", "done"] = batch["next", "terminated"] | batch["next", "truncated"]
        return batch

    def __len__(self) -> int:
        """Return how many steps can be sampled."""
        return len(self.buffer)
