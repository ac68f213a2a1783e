"""Values by name of things with ids: a table in RAM to which rows are appended, and of an id's rows the newest counts."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from numpy.dtypes import StringDType

from diskbuffer.index.growing_array import GrowingArray

Int64 = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Value = bool | int | float | str

TRUTH, INTEGER, NUMBER, TEXT = "truth", "integer", "number", "text"
_KINDS = {bool: TRUTH, int: INTEGER, float: NUMBER, str: TEXT}
_DTYPES: dict[str, Any] = {TRUTH: np.bool_, INTEGER: np.int64, NUMBER: np.float64, TEXT: np.int64}
MOST_NAMES = 64  # each takes some bytes for every row
_FEW = 64  # ids that are looked for one by one


def kind_of(values: Iterable[Value]) -> str | None:
    """Return what values are: truths, integers, numbers or texts. None where they are not of one kind, or there is none."""
    kinds = {_KINDS[kind] for kind in set(map(type, values))}
    return NUMBER if kinds == {INTEGER, NUMBER} else kinds.pop() if len(kinds) == 1 else None


def joint_kind(one: str, other: str) -> str | None:
    """Return of what kind values of two kinds are together, None for none: integers beside numbers are numbers."""
    return one if one == other else NUMBER if {one, other} == {INTEGER, NUMBER} else None


class Texts:
    """Different texts, which are few as a rule, each with its number: its place in `all`. That of "" is 0."""

    def __init__(self) -> None:
        self.all, self._numbers = [""], {"": 0}

    def numbers(self, texts: Iterable[str]) -> Int64:
        """Return the numbers of texts, (n,); new ones get the next."""
        found = list[int]()
        for text in texts:
            found.append(number := self._numbers.setdefault(text, len(self.all)))
            if number == len(self.all):
                self.all.append(text)
        return np.array(found, np.int64)


class Named(NamedTuple):
    """The values of one name, (n,), and which of them were given; where not, they are False, 0 or "".

    Of texts, `values` are their numbers in `texts`.
    """

    kind: str
    values: npt.NDArray[Any]
    given: Bools
    texts: Texts

    @classmethod
    def none(cls, kind: str, n: int, texts: Texts) -> Named:
        """Return `n` values that were not given."""
        return cls(kind, np.zeros(n, _DTYPES[kind]), np.zeros(n, np.bool_), texts)

    @property
    def shown(self) -> npt.NDArray[Any]:
        """The values as users get them: numbers that were not given are NaN."""
        if self.kind == TEXT:
            used, at = np.unique(self.values, return_inverse=True)
            return np.array([self.texts.all[number] for number in used.tolist()], StringDType())[at]
        return self.values if self.kind == TRUTH or self.given.all() else np.where(self.given, self.values, np.nan)

    def listed(self) -> list[Value]:
        """Return them as a list."""
        values: list[Any] = self.values.tolist()
        return [self.texts.all[number] for number in values] if self.kind == TEXT else values

    def one(self, at: int) -> Value:
        """Return one of them."""
        return self.some(slice(at, at + 1)).listed()[0]

    def some(self, which: Any) -> Named:
        """Return some of them, by a slice, a mask or numbers."""
        return self._replace(values=self.values[which], given=self.given[which])

    def numbered_by(self, texts: Texts) -> Named:
        """Return the same, of texts with their numbers in others, which get those that are used."""
        if self.kind != TEXT:
            return self._replace(texts=texts)
        used, at = np.unique(self.values, return_inverse=True)
        return self._replace(values=texts.numbers(self.texts.all[number] for number in used.tolist())[at], texts=texts)


class NamedValues:
    """The table. Looking for an id costs O(log rows).

    Rows that were added since more than `_FEW` ids were looked for at once are in a dict, too, some 100 bytes each; looking for
    more sorts all rows.
    """

    def __init__(self) -> None:
        self._ids = GrowingArray()
        self._columns: dict[str, Named] = {}  # with room for more rows
        self._texts = Texts()  # of all columns
        self._sorted: tuple[Int64, Int64] = np.empty(0, np.int64), np.empty(0, np.int64)  # ids, and the newest row of each
        self._recent: dict[int, int] = {}  # rows that came since, by their ids

    def __len__(self) -> int:
        return len(self._ids)

    @property
    def ids(self) -> Int64:
        """Whose each row is, a view."""
        return self._ids.values

    def kinds(self) -> dict[str, str]:
        """Return the kind of each name's values."""
        return {name: column.kind for name, column in self._columns.items()}

    def largest(self, name: str) -> int:
        """Return how large integers of a name are at most, without their sign."""
        values = self._columns[name].values
        return max(-int(values.min(initial=0)), int(values.max(initial=0)))

    def append(self, ids: Sequence[int], rows: Sequence[Mapping[str, Value]]) -> str | None:
        """Append a row for each of some ids.

        Where a name's values would be of two kinds, or it is one too many, nothing is done, and the name is returned.
        """
        found = {name: [row[name] for row in rows if name in row] for name in dict.fromkeys(itertools.chain.from_iterable(rows))}
        kinds = self.kinds()
        for name, values in found.items():
            kind = kind_of(values)
            if kind is not None and name in self._columns:
                kind = joint_kind(kind, kinds[name])
            if kind is None or len(self._columns.keys() | found.keys()) > MOST_NAMES:
                return name
            kinds[name] = kind
        self._columns = {name: self._with_room(name, kind, len(self) + len(rows)) for name, kind in kinds.items()}
        for name, values in found.items():
            places = [at for at, row in enumerate(rows, len(self)) if name in row]
            column = self._columns[name]
            column.values[places] = self._texts.numbers(map(str, values)) if column.kind == TEXT else values
            column.given[places] = True
        self._recent.update(zip(ids, range(len(self), len(self) + len(rows)), strict=True))
        self._ids.extend(np.asarray(ids, np.int64))
        return None

    def _with_room(self, name: str, kind: str, rows: int) -> Named:
        old = self._columns.get(name)
        if old is not None and old.kind == kind and len(old.values) >= rows:
            return old
        new = Named.none(kind, 2 * rows, self._texts)
        if old is not None:
            new.values[: len(old.values)], new.given[: len(old.given)] = old.values[: 2 * rows], old.given[: 2 * rows]
        return new

    def newest(self, ids: Int64) -> Int64:
        """Return the newest row of each id, (n,); -1 where there is none."""
        if self._recent and len(ids) <= _FEW:
            rows = np.array([self._recent.get(id_, -1) for id_ in ids.tolist()], np.int64)
            return np.where(rows >= 0, rows, self._in_sorted(ids))
        if self._recent:
            self._sort()
        return self._in_sorted(ids)

    def _sort(self) -> None:
        every = self._ids.values
        order = np.argsort(every, kind="stable")
        last = np.append(every[order][1:] != every[order][:-1], True)[: len(order)]
        self._sorted, self._recent = (every[order[last]], order[last]), {}

    def _in_sorted(self, ids: Int64) -> Int64:
        known, rows = self._sorted
        if not len(known):
            return np.full(len(ids), -1, np.int64)
        at = np.minimum(np.searchsorted(known, ids), len(known) - 1)
        return np.where(known[at] == ids, rows[at], -1)

    def of(self, ids: Int64) -> dict[str, Named]:
        """Return the values of ids by name: of those names that one of them has a value of, sorted."""
        return self._of(self.newest(ids))

    def _of(self, rows: Int64) -> dict[str, Named]:
        known = rows >= 0
        found = {}
        for name, column in sorted(self._columns.items()):
            given = np.zeros(len(rows), np.bool_)
            given[known] = column.given[rows[known]]
            if given.any():
                values = np.zeros(len(rows), column.values.dtype)
                values[given] = column.values[rows[given]]
                found[name] = column._replace(values=values, given=given)
        return found

    def of_rows(self, rows: Int64) -> list[dict[str, Value]]:
        """Return of each row, or of no row where it is -1, its values by name."""
        found: list[dict[str, Value]] = [{} for _ in range(len(rows))]
        for name, column in self._of(rows).items():
            for at, value in zip(np.flatnonzero(column.given).tolist(), column.some(column.given).listed(), strict=True):
                found[at][name] = value
        return found

    def has_values(self, rows: int) -> Bools:
        """Return which of the first rows have any value, (rows,)."""
        has = np.zeros(rows, np.bool_)
        for column in self._columns.values():
            has |= column.given[:rows]
        return has

    def some(self, rows: Int64) -> NamedValues:
        """Return a table of some of the rows, which has their texts alone."""
        other = NamedValues()
        other._ids.extend(self._ids.values[rows])
        some = {name: column.some(rows) for name, column in self._columns.items() if column.given[rows].any()}
        other._columns = {name: column.numbered_by(other._texts) for name, column in some.items()}
        other._sort()
        return other


def joined(parts: Sequence[tuple[npt.NDArray[Any], Mapping[str, Named]]], n: int) -> dict[str, Named]:
    """Join values of some of `n` things each, with their places, to those of all.

    Where they are of different kinds, truths and numbers are numbers, and all else are texts.
    """
    found, texts = dict[str, Named](), Texts()
    for places, named in parts:
        for name, column in named.items():
            known = found.get(name) or Named.none(column.kind, n, texts)
            kind = joint_kind(known.kind, column.kind) or (TEXT if TEXT in (known.kind, column.kind) else NUMBER)
            found[name], its = _as_kind(known, kind, texts), _as_kind(column.numbered_by(texts), kind, texts)
            found[name].values[places], found[name].given[places] = its.values, its.given
    return dict(sorted(found.items()))


def _as_kind(named: Named, kind: str, texts: Texts) -> Named:
    if named.kind == kind:
        return named
    if kind != TEXT:
        return named._replace(kind=kind, values=named.values.astype(_DTYPES[kind]))
    pairs = zip(named.values.tolist(), named.given.tolist(), strict=True)
    return named._replace(kind=kind, values=texts.numbers(str(value) if given else "" for value, given in pairs))
