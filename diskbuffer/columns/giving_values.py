"""Values that users give to episodes, by name: what may be one, and whose they become."""

from __future__ import annotations

import keyword
import unicodedata
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
from diskbuffer.index.named_values import INTEGER, MOST_NAMES, NUMBER, Value, joint_kind, kind_of
from diskbuffer.store.episode_values import EpisodeValues

Int64 = npt.NDArray[np.int64]

_FINE = (bool, float, type(None))  # kinds of values of which any may be one
_EXACT = 2**53  # up to which float64 has every integer
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
        kinds = {name: kind_of(value for value in each if value is not None) for name, each in given.items()}
        stored = store.episode_values
        if _refused(given, kinds, stored) is not None:  # perhaps for what names had once
            stored.compact(store.lock, columns.reader.index.episode_ids, at_once=True)
            if (what := _refused(given, kinds, stored)) is not None:
                raise InputError(what)
        before: dict[int, dict[str, Any]] = dict(zip(ids.tolist(), stored.rows(ids), strict=True))
        after = before.copy()
        for at, id_ in enumerate(ids.tolist()):
            after[id_] = after[id_] | {name: each[at] for name, each in given.items()}
        after = {id_: {name: value for name, value in row.items() if value is not None} for id_, row in after.items()}
        changed = {id_: row for id_, row in after.items() if row != before[id_]}
        if changed:
            stored.append(list(changed), list(changed.values()))
    return len(ids)


def _refused(given: Mapping[str, list[Any]], kinds: Mapping[str, str | None], stored: EpisodeValues) -> str | None:
    """Return why values cannot be given beside those that are stored; None where they can."""
    known = stored.kinds()
    if len(known.keys() | given.keys()) > MOST_NAMES:
        return f"a buffer has {MOST_NAMES} names of values at most; there are {', '.join(sorted(known))}"
    for name, each in given.items():
        kind, what = kinds[name], None
        together = joint_kind(kind, known.get(name, kind)) if kind else None
        if together is None and any(value is not None for value in each):
            what = f"must be {SHOWN[known[name]]}, as they are in this buffer" if kind else "must be of one kind"
        elif together == NUMBER:
            integers = [abs(value) for value in each if type(value) is int]
            if max([*integers, stored.largest(name) if known.get(name) == INTEGER else 0]) > _EXACT:
                what = "would be float64 together, which is not exact beyond 2**53: give integers alone, or numbers up to there"
        if what is not None:
            found = ", ".join(sorted({shown(value) for value in each[:1000] if value is not None})[:3])
            return f"values of {name!r} {what}; found {found}"
    return None


def values_that_fit(rows: Sequence[Mapping[str, Any]]) -> tuple[list[dict[str, Any]], set[str]]:
    """Return of what others tell of episodes what can be their values, and the names of what cannot.

    It can be what has a name that values may have, and is of one kind in all of them.
    """
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
    fits = set(sorted(fits - wrong)[:MOST_NAMES])
    return [{name: value for name, value in row.items() if name in fits} for row in rows], (found.keys() | wrong) - fits


def _checked(name: str, value: Any, n: int) -> list[Any]:
    """Return a value for each of `n` episodes, None to take it away."""
    _check_name(name)
    if is_tensor(value) or (hasattr(value, "tolist") and hasattr(value, "dtype")):  # arrays, and series of pandas
        value = value.tolist()
    if isinstance(value, str | bytes) or not isinstance(value, Sequence):
        return [_one(name, value)] * n
    if len(value) != n:
        raise InputError(f"{name}: expected one value, or one for each of {n:,} episodes, found {len(value):,}")
    return [each if type(each) in _FINE else _one(name, each) for each in value]


def _check_name(name: str) -> None:
    is_plain = name.isidentifier() and not keyword.iskeyword(name) and unicodedata.normalize("NFKC", name) == name
    if not is_plain or name in KNOWN or len(name) > 100:
        raise InputError(
            "a value's name must be an identifier, such as success, of 100 characters at most, and none of "
            f"{', '.join(KNOWN)}; found {name!r}"
        )


def _one(name: str, value: Any) -> Value | None:
    if isinstance(value, np.generic):
        value = value.item()
    match value:
        case None | bool() | float():
            return value
        case int() if -(2**63) <= value < 2**63:
            return int(value)
        case str():
            try:
                if len(value.encode()) <= _MOST_TEXT and "\0" not in value:
                    return str(value)
            except UnicodeEncodeError:
                pass
    raise InputError(
        f"{name}: expected True, False, a number of 64 bits, a text of at most {_MOST_TEXT:,} bytes of UTF-8 without NUL, None, "
        f"or one of these for each episode; found {shown(value)}"
    )
