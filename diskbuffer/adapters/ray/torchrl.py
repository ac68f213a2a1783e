"""TorchRL's collectors on Ray: each of them writes into a shard near by, and no step passes through the learner's process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tensordict import TensorDict, TensorDictBase

from diskbuffer import Sampler
from diskbuffer.adapters.ray.buffer import RayReplayBuffer
from diskbuffer.errors import InputError
from diskbuffer.plugin import put_argument, value_at

Key = str | tuple[str, ...]
_COLUMNS: dict[str, Key] = {"obs": "observation", "action": "action"}
_OF_NEXT = ("reward", "terminated", "truncated")


class CollectorShards:
    """What ``RayCollector(replay_buffer=...)`` takes, over the shards of a `RayReplayBuffer`.

    Collectors add what they collect as steps of one environment, or of one for each row of a batch of environments; so the buffer
    must have been made with as many, ``n_envs=``. They go on once the shard has acknowledged a batch, and wait where the buffer's
    limiter has it so.

    Parameters
    ----------
    buffer : RayReplayBuffer
    columns : mapping of str to str or tuple of str, optional
        Where in a TensorDict the columns are, beside reward, terminated and truncated of ``next``. Those that begin with "obs"
        are read from ``next``, too. ``{"obs": "observation", "action": "action"}`` by default.

    Attributes
    ----------
    service_backend : str
        "ray": what RayCollector asks for.
    """

    service_backend = "ray"

    def __init__(self, buffer: RayReplayBuffer, columns: Mapping[str, Key] | None = None) -> None:
        self.buffer, self._columns = buffer, dict(_COLUMNS if columns is None else columns)

    def client(self) -> CollectorShards:
        """Return what a collector is given; in its process it is a way to the same shards."""
        return self

    def clients(self, count: int) -> list[CollectorShards]:
        """Return that for so many collectors."""
        return [self] * count

    @property
    def write_count(self) -> int:
        """How many steps were ever added, by all collectors."""
        return int(self.buffer.stats()["added"])

    def extend(self, data: TensorDictBase) -> None:
        """Add what a collector has collected, (steps,) or (environments, steps), and wait until it is acknowledged.

        Raises
        ------
        InputError
            The batch has other axes, or what is in it does not fit the columns.
        """
        if data.ndim not in (1, 2):
            raise InputError(f"expected a batch of shape (steps,) or (environments, steps), found {tuple(data.shape)}")
        for env, one in enumerate([data] if data.ndim == 1 else data.unbind(0)):
            self.buffer.extend(env=env, **self._values(one))
        self.buffer.flush(sync=False)

    def _values(self, data: TensorDictBase) -> dict[str, Any]:
        arguments: dict[str, Any] = {}
        following = data.get("next")
        for column, key in self._columns.items():
            if column.split("/")[0] == "obs":
                put_argument(arguments, "next_" + column, following.get(key).numpy(force=True))
            put_argument(arguments, column, data.get(key).numpy(force=True))
        for name in _OF_NEXT:
            values = following.get(name, None)
            if values is not None:
                arguments[name] = values.reshape(len(data)).numpy(force=True)
        return arguments

    def sample(self, batch_size: int, sampler: Sampler | None = None) -> TensorDict:
        """Return steps as a TensorDict, as TorchRL's losses take them; ``steps`` names them."""
        batch = self.buffer.sample(batch_size, sampler)
        shape = batch["steps"].shape
        current, following = TensorDict(batch_size=shape), TensorDict(batch_size=shape)
        for column, key in self._columns.items():
            current[key] = value_at(batch, column)
            if column.split("/")[0] == "obs":
                following[key] = value_at(batch, "next_" + column)
        for name in _OF_NEXT:
            following[name] = batch[name].unsqueeze(-1)
        following["done"] = following["terminated"] | following["truncated"]
        current["next"], current["steps"] = following, batch["steps"]
        return current

    def __len__(self) -> int:
        """Return how many steps can be sampled."""
        return len(self.buffer)
