"""Steps by id, over shards: each shard is asked for its own, and answers are put in the order that was asked for."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import ray
import torch
from ray.exceptions import GetTimeoutError, RayError, RayTaskError

from diskbuffer.adapters.ray.names import SHARDS
from diskbuffer.adapters.ray.packing import joined, unpack
from diskbuffer.adapters.ray.shards import Known, Shards, own_error
from diskbuffer.errors import InputError, UnreachableError
from diskbuffer.plugin import Batch, as_array, step_ids

Int64 = npt.NDArray[np.int64]
_AGAIN = 0.2  # seconds until a shard that did not answer is asked again
_LEAST = 30.0  # seconds that a shard has at least: it may be starting again, and recover its store


class StepsOfShards:
    """Read and write steps by their ids.

    What is asked for has one place only, so a shard that does not answer is waited for, `patience` or half a minute, and then an
    UnreachableError says which it is. Nothing was written by a shard that did not answer, or it is written again: writing the
    same twice does no harm.
    """

    def __init__(self, shards: Shards, *, compress: bool) -> None:
        self._shards, self._compress = shards, compress

    def every(self) -> Int64:
        """Return the ids of all steps: shard after shard."""
        known = self._shards.known
        answers = self._ask(dict.fromkeys((one.number for one in known), lambda one: one.handle.names.remote()))
        return np.concatenate([answers[one.number] for one in known])

    def at(self, steps: Any, length: int | None, columns: Sequence[str] | None, *, skip: bool = False) -> Batch | None:
        """Return given steps, or sequences that begin with them; with `skip` without those that are gone, None if all are."""
        ids = step_ids(steps)
        self._check(ids)
        groups = self._groups(ids) or {0: np.empty(0, np.int64)}
        calls = {number: self._reading(ids[places] // SHARDS, length, columns, skip) for number, places in groups.items()}
        answers = self._ask(calls)
        some = [number for number in groups if answers[number].batch is not None]
        if not some:
            return None
        places = [groups[number][answers[number].present] for number in some]
        together = joined([unpack(answers[number].batch) for number in some])
        order = np.argsort(np.concatenate(places), kind="stable")
        return together if (np.diff(order) == 1).all() else _taken(together, torch.from_numpy(order))

    def write(self, name: str, steps: Any, values: Any) -> int:
        """Write a column's values of steps; every shard has the column then. Return of how many steps."""
        ids, array = step_ids(steps, of_sequences=True), as_array("values", values)
        if array.shape[: ids.ndim] != ids.shape:
            raise InputError(f"values: there must be one for each of {ids.shape} steps, found shape {array.shape}")
        ids, array = ids.reshape(-1), array.reshape(-1, *array.shape[ids.ndim :])
        valid = ids >= 0
        ids, array = ids[valid], array[valid]
        self._check(ids)
        groups = self._groups(ids)
        none = np.empty(0, np.int64)
        calls = {}
        for one in self._shards.known:
            places = groups.get(one.number, none)
            calls[one.number] = _writing(name, ids[places] // SHARDS, array[places])
        return sum(self._ask(calls).values())

    def _reading(self, own: Int64, length: int | None, columns: Sequence[str] | None, skip: bool) -> Callable[[Known], Any]:
        return lambda one: one.handle.at.remote(own, length, columns, skip, self._compress)

    def _check(self, ids: Int64) -> None:
        wrong = (ids < 0) | (ids % SHARDS >= len(self._shards.known))
        if wrong.any():
            raise InputError(
                f"step {ids[wrong][0]} is of no shard: there are {len(self._shards.known)}. Steps are named as in a batch's "
                "steps, not counted from 0: steps() returns all names"
            )

    def _groups(self, ids: Int64) -> dict[int, Int64]:
        """Return where in `ids` the steps of each shard are."""
        of = ids % SHARDS
        return {int(number): np.flatnonzero(of == number) for number in np.unique(of)}

    def _ask(self, calls: dict[int, Callable[[Known], Any]]) -> dict[int, Any]:
        """Ask shards, all at the same time; again where one does not answer."""
        answers: dict[int, Any] = {}
        until = time.monotonic() + max(self._shards.patience, _LEAST)
        while len(answers) < len(calls):
            refs = {number: call(self._shards.known[number]) for number, call in calls.items() if number not in answers}
            for number, ref in refs.items():
                try:
                    answers[number] = ray.get(ref, timeout=max(until - time.monotonic(), 0.001))
                except RayTaskError as error:
                    raise own_error(error) from None
                except (GetTimeoutError, RayError) as error:
                    self._shards.known[number].missed(error)
            if len(answers) < len(calls):
                away = sorted(set(calls) - set(answers))
                if time.monotonic() > until:
                    raise UnreachableError(f"shards {away} do not answer, and these steps are theirs alone; stats() tells why")
                time.sleep(_AGAIN)
        return answers


def _writing(name: str, own: Int64, values: npt.NDArray[Any]) -> Callable[[Known], Any]:
    return lambda one: one.handle.write_column.remote(name, own, values)


def _taken(value: Any, order: torch.Tensor) -> Any:
    return {name: _taken(part, order) for name, part in value.items()} if isinstance(value, dict) else value[order]
