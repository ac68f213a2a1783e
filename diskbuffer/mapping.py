"""A function over every step, its values written back: in bounded memory, and to be resumed where it was interrupted."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from typing import Any

from diskbuffer.bars import bar
from diskbuffer.derived import DerivedColumns
from diskbuffer.errors import InputError
from diskbuffer.inputs import as_array
from diskbuffer.loader import Loader
from diskbuffer.passes import Part, Pass
from diskbuffer.samplers.epochs import Place
from diskbuffer.store.store import Store

_NOTED_EVERY = 1.0  # seconds


class Mark:
    """How far a function has come over a store, kept beside the first column that it writes."""

    def __init__(self, store: Store, columns: tuple[str, ...]) -> None:
        self._files, self._columns, self._name = store.files, list(columns), f"{columns[0]}/map.json"

    def read(self) -> Place | None:
        """Return the place where it was interrupted; None if it was not."""
        try:
            found = json.loads(self._files.read(self._name))
            frozen = [[int(n) for n in row] for row in found["frozen"]]
            place = Place(0, frozen, int(found["steps"]), int(found["at"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None
        sane = 0 <= place.at <= place.steps == sum(row[-1] for row in frozen) and all(
            len(row) == 2 and min(row) >= 0 for row in frozen
        )
        return place if sane and found.get("out") == self._columns else None

    def note(self, place: Place) -> None:
        """Note a place behind which nothing is written yet."""
        self._files.replace_contents(self._name, json.dumps({"out": self._columns, **vars(place)}).encode(), sync=False)

    def remove(self) -> None:
        """Forget it: everything is written."""
        self._files.remove(self._name)


def map_steps(
    source: Pass,
    loader: Loader[Part],
    columns: DerivedColumns,
    function: Callable[[Any], Any],
    out: tuple[str, ...],
    mark: Mark,
    progress: bool,
) -> int:
    """Call a function with every batch of a pass, and write what it returns; return the number of steps."""
    steps, noted = 0, time.monotonic()
    begun = source.place.at
    with bar(source.place.steps, begun, progress, " steps") as shown:
        for batch in loader:
            found = function(batch)
            results = found if len(out) > 1 else (found,)
            if not isinstance(results, tuple | list) or len(results) != len(out):
                raise InputError(
                    f"the function must return {len(out)} arrays, for {', '.join(out)}, found {type(found).__name__}"
                )
            for name, values in zip(out, results, strict=True):
                array = as_array(name, values)
                if array.shape[:1] != batch["steps"].shape:
                    raise InputError(
                        f"{name}: the function must return a value for each of {len(batch['steps'])} steps, found shape "
                        f"{array.shape}"
                    )
                columns.write(name, batch["steps"].cpu(), array)
            steps += len(batch["steps"])
            shown.update(len(batch["steps"]))
            del batch, found, results, values, array  # before the next is taken
            if time.monotonic() - noted > _NOTED_EVERY:
                mark.note(source.place)
                noted = time.monotonic()
    mark.remove()
    return steps


def names_of(out: str | Sequence[str]) -> tuple[str, ...]:
    """Return the columns to write to, as a user named them."""
    names = tuple(out) if isinstance(out, list | tuple) else (out,)
    if not names or not all(isinstance(name, str) for name in names) or len(set(names)) < len(names):
        raise InputError(f"out must be a column's name, or several different ones, found {out!r}")
    return names
