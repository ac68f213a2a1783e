"""A function over every step, its values written back: in bounded memory, and to be resumed where it was interrupted."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy.typing as npt

from diskbuffer.arguments.inputs import as_array
from diskbuffer.columns.derived import DerivedColumns
from diskbuffer.errors import InputError
from diskbuffer.index.index import Index
from diskbuffer.loading.loader import Loader
from diskbuffer.loading.passes import Listed, Pass
from diskbuffer.runtime.progress import bar
from diskbuffer.samplers.epochs import EpochPosition
from diskbuffer.store.store import Store

_NOTED_EVERY, _SHARE = 1.0, 0.05  # seconds; and of the time, which noting takes at most


class Progress:
    """How far a function has come over a store, kept beside the first column that it writes.

    A power loss may leave it and take what was written before it, unless that was flushed before.
    """

    def __init__(self, store: Store, columns: tuple[str, ...], flush: Callable[[], None]) -> None:
        self._store, self._files = store, store.files
        self._columns, self._name, self._flush = list(columns), f"{columns[0]}/map.json", flush

    def read(self, index: Index) -> EpochPosition | None:
        """Return the position at which it was interrupted; None if it was not, or if no step that it was over is left."""
        try:
            saved = json.loads(self._files.read(self._name))
            frozen = [[int(n) for n in row] for row in saved["frozen"]]
            position = EpochPosition(0, frozen, int(saved["steps"]), int(saved["at"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None
        sane = 0 <= position.at <= position.steps == sum(row[-1] for row in frozen) and all(
            len(row) == 2 and min(row) >= 0 for row in frozen
        )
        same = saved.get("out") == self._columns and saved.get("removals") == self._store.layout.removals  # or one was made anew
        if not (sane and same and len(position.frozen) <= len(index.table)):
            return None
        left = any(index.first_step(stream) < sum(row) for stream, row in enumerate(position.frozen))
        return position if left else None

    def note(self, position: EpochPosition) -> None:
        """Note a position before which everything is written, and sync that first."""
        self._flush()
        with self._store.writing():
            self._files.replace_contents(self._name, self._contents(position))

    def _contents(self, position: EpochPosition) -> bytes:
        return json.dumps({"out": self._columns, "removals": self._store.layout.removals, **vars(position)}).encode()

    def remove(self) -> None:
        """Forget it, for good: another function's values would pass for what is written next."""
        with self._store.writing():
            if self._files.exists(self._name):
                self._files.remove(self._name)
                self._files.sync(self._columns[0])


def map_steps(
    source: Pass | Listed,
    loader: Loader[Any],
    columns: DerivedColumns,
    function: Callable[[Any], Any],
    out: tuple[str, ...],
    done: Progress,
    progress: bool,
) -> int:
    """Call a function with every batch of a pass, and write what it returns; return the number of steps.

    How far a pass over everything has come is noted.
    """
    steps, due = 0, time.monotonic() + _NOTED_EVERY
    with bar(source.steps, source.begun, progress, " steps") as shown:
        for batch in loader:
            returned = function(batch)
            arrays = arrays_of(returned, out, len(batch["steps"]))
            for name, array in zip(out, arrays, strict=True):
                columns.write(name, as_array("steps", batch["steps"]), array)
            steps += len(batch["steps"])
            shown.update(len(batch["steps"]))
            del batch, returned, arrays, array  # before the next is taken
            if isinstance(source, Pass) and (begin := time.monotonic()) > due:
                done.note(source.position)
                due = time.monotonic() + max(_NOTED_EVERY, (time.monotonic() - begin) / _SHARE)
    done.remove()
    return steps


def arrays_of(returned: Any, out: tuple[str, ...], steps: int) -> list[npt.NDArray[Any]]:
    """Return what a function returned for a batch as arrays, one for each column to write; an InputError where they are not."""
    results = returned if len(out) > 1 else (returned,)
    if not isinstance(results, tuple | list) or len(results) != len(out):
        raise InputError(f"the function must return {len(out)} arrays, for {', '.join(out)}, found {type(returned).__name__}")
    arrays = [as_array(name, values) for name, values in zip(out, results, strict=True)]
    for name, array in zip(out, arrays, strict=True):
        if array.shape[:1] != (steps,):
            raise InputError(f"{name}: the function must return a value for each of {steps} steps, found shape {array.shape}")
    return arrays


def names_of(out: str | Sequence[str]) -> tuple[str, ...]:
    """Return the columns to write to, as a user named them."""
    names = tuple(out) if isinstance(out, list | tuple) else (out,)
    if not names or not all(isinstance(name, str) for name in names) or len(set(names)) < len(names):
        raise InputError(f"out must be a column's name, or several different ones, found {out!r}")
    return names
