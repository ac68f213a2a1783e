"""Values that users give to episodes, by name: what may be one, and whose they become."""

from __future__ import annotations

import keyword
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from diskbuffer.arguments.inputs import is_tensor
from diskbuffer.arguments.integers import shown
from diskbuffer.columns.derived import DerivedColumns
from diskbuffer.columns.tags import episodes_that_are_over
from diskbuffer.episode_table.conditions import KNOWN, SHOWN
from diskbuffer.errors import InputError
from diskbuffer.index.named_values import MOST_NAMES, Value, kind_of, together

Int64 = npt.NDArray[np.int64]

_FINE = (bool, float, type(None))  # kinds of values of which any may be one
_MOST_TEXT = 64 * 1024  # bytes of UTF-8


def give_values(columns: DerivedColumns, steps: Int64, values: Mapping[str, Any], *, each_once: bool) -> int:
    """Give the episodes that steps lie in values, or one each, in the order of the steps; return how many episodes those are.

    With `each_once` they are taken in the order of the streams, and of time.
    """
    store, streams = columns.store, columns.store.layout.streams
    with store.writing():
        episodes = episodes_that_are_over(columns.reader.index, steps, "given values")
        if each_once:
            episodes = np.unique(episodes, axis=1)
        ids = episodes[1] * streams + episodes[0]
        given = {name: _checked(name, value, len(ids)) for name, value in values.items()}
        known = store.episode_values.kinds()
        if len(known.keys() | given.keys()) > MOST_NAMES:
            raise InputError(f"a buffer has {MOST_NAMES} names of values at most; there are {', '.join(sorted(known))}")
        for name, each in given.items():
            some = [value for value in each if value is not None]
            kind = kind_of(some)
            if some and (kind is None or together(kind, known.get(name, kind)) is None):
                expected = f"{SHOWN[known[name]]}, as they are in {store.root}" if kind else "of one kind"
                found = ", ".join(sorted({shown(value) for value in some})[:3])
                raise InputError(f"values of {name!r} must be {expected}; found {found}")
        rows = store.episode_values.rows(ids)
        changed = dict[int, dict[str, Value]]()
        for at, (id_, row) in enumerate(zip(ids.tolist(), rows, strict=True)):
            new = row | {name: each[at] for name, each in given.items()}
            new = {name: value for name, value in new.items() if value is not None}
            if new != row:
                changed[id_] = new
        if changed:
            store.episode_values.append(list(changed), list(changed.values()))
    return len(ids)


def names_that_fit(rows: Sequence[Mapping[str, Any]]) -> set[str]:
    """Return of what is told of episodes by others what can be their values: by its name, and of one kind in all of them."""
    found: dict[str, list[Any]] = {}
    wrong = set[str]()
    for row in rows:
        for name, value in row.items():
            try:
                _check_name(name)
                found.setdefault(name, []).append(_one(name, value))
            except InputError:
                wrong.add(name)
    fits = {name for name, values in found.items() if kind_of(value for value in values if value is not None)}
    return set(sorted(fits - wrong)[:MOST_NAMES])


def _checked(name: str, value: Any, n: int) -> list[Any]:
    """Return a value for each of `n` episodes, None to take it away."""
    _check_name(name)
    if is_tensor(value) or isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if not isinstance(value, list | tuple):
        return [_one(name, value)] * n
    if len(value) != n:
        raise InputError(f"{name}: expected one value, or one for each of {n:,} episodes, found {len(value):,}")
    return [each if type(each) in _FINE else _one(name, each) for each in value]


def _check_name(name: str) -> None:
    if not name.isidentifier() or keyword.iskeyword(name) or name in KNOWN or len(name) > 100:
        raise InputError(
            f"a value's name must be one of Python's, of 100 characters at most, and none of {', '.join(KNOWN)}; found {name!r}"
        )


def _one(name: str, value: Any) -> Value | None:
    if isinstance(value, np.generic):
        value = value.item()
    match value:
        case None | bool() | float():
            return value
        case int() if abs(value) < 2**63:
            return int(value)
        case str():
            try:
                if len(value.encode()) <= _MOST_TEXT:
                    return str(value)
            except UnicodeEncodeError:
                pass
    raise InputError(
        f"{name}: expected True, False, a number of 64 bits, a text of at most {_MOST_TEXT:,} bytes of UTF-8, or None; "
        f"found {shown(value)}"
    )
