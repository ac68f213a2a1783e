"""What looks wrong in a store's values. Each finding is a plain sentence, with how many of how many."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from diskbuffer import Column
from diskbuffer.plugin import CUT_OFF, RUNNING, TAG, counted, is_observation

Array = npt.NDArray[Any]
Columns = dict[str, Array]

_PICTURE = 64  # values of a row with two axes or more, from which on it counts as a picture
_WIDE = 1024  # values of a row, up to which each is looked at on its own
_AT_AN_END = 0.1  # of values that are the largest or smallest of all: more of them look cut
_DIFFERENT = 20  # values, at least, for a column to be one of measured quantities, and not of levels
_FEW = 10  # of which nothing can be said
_WHITE = 0.2  # of a picture's values that are the largest of all


@dataclass(frozen=True)
class Finding:
    """One thing that looks wrong: its kind, the column, how many of how many, and the sentence that tells."""

    kind: str
    column: str
    count: int
    of: int
    text: str

    def to_json(self) -> dict[str, Any]:
        """Return it, as JSON has it."""
        return dataclasses.asdict(self)


@dataclass
class _Seen:
    """What was seen of one column."""

    column: Column
    rows: int = 0
    nan: int = 0
    infinite: int = 0
    black: int = 0
    flat: int = 0  # all values of the row are the same, and not zero
    pairs: int = 0  # of neighbours within an episode
    equal: int = 0
    longest: int = 0  # pairs of equal rows in a row
    run: int = 0  # of which so many are at the end of the last part
    before: Array | None = None  # the last row of the last part
    first: Array | None = None
    varies: Array | None = None
    low: float = np.inf
    high: float = -np.inf
    at_low: int = 0
    at_high: int = 0
    values: int = 0
    different: set[float] = dataclasses.field(default_factory=set)

    @property
    def is_picture(self) -> bool:
        shape = self.column.shape
        return len(shape) > 1 and int(np.prod(shape)) >= _PICTURE

    @property
    def is_measured(self) -> bool:
        """Tell whether equal rows would be a surprise: pictures, and vectors of floats."""
        return self.is_picture or (self.column.np_dtype.kind == "f" and int(np.prod(self.column.shape)) > 1)


class Findings:
    """Look at rows part by part, and tell at the end what looks wrong.

    Parameters
    ----------
    columns : mapping of str to Column
    """

    def __init__(self, columns: Mapping[str, Column]) -> None:
        self._seen = {path: _Seen(column) for path, column in columns.items()}
        self._found: list[Finding] = []
        self._ended = True  # whether the last row of the last part was the last of its episode

    def add(self, rows: Columns, last: npt.NDArray[np.bool_], *, follows: bool = False) -> None:
        """Look at consecutive rows of one stream.

        Parameters
        ----------
        rows : dict of str to array
            Observations have a value for every row, the other columns one for each that is a step.
        last : (n,) bool
            Whether a row is the last of its episode.
        follows : bool
            Whether these are the rows right after those of the call before.
        """
        within = follows and not self._ended
        for path, values in rows.items():
            if len(values):
                self._add(self._seen[path], values, last if is_observation(path) else None, within)
        self._ended = bool(last[-1])

    def _add(self, seen: _Seen, values: Array, last: npt.NDArray[np.bool_] | None, within: bool) -> None:
        flat = np.ascontiguousarray(values).reshape(len(values), -1)
        seen.rows += len(flat)
        if flat.dtype.kind in "fc":
            seen.nan += int(np.isnan(flat).any(axis=1).sum())
            seen.infinite += int(np.isinf(flat).any(axis=1).sum())
        if seen.first is None:
            seen.first, seen.varies = flat[0].copy(), np.zeros(flat.shape[1], np.bool_)
        assert seen.varies is not None
        same = flat == seen.first
        if flat.dtype.kind in "fc":
            same |= np.isnan(flat) & np.isnan(seen.first)
        seen.varies |= ~same.all(axis=0)
        if seen.is_picture:
            uniform = (flat == flat[:, :1]).all(axis=1)
            black = uniform & (flat[:, 0] == 0)
            seen.black, seen.flat = seen.black + int(black.sum()), seen.flat + int((uniform & ~black).sum())
        if last is not None and seen.is_measured:
            self._add_pairs(seen, flat, last, within)
        self._add_ends(seen, flat)

    def _add_pairs(self, seen: _Seen, flat: Array, last: npt.NDArray[np.bool_], within: bool) -> None:
        """Compare neighbours, the last row of the part before among them where it is `within` the same episode."""
        equal = (flat[1:] == flat[:-1]).all(axis=1) & ~last[:-1]
        seen.pairs += int((~last[:-1]).sum()) + within
        first = within and seen.before is not None and bool((flat[0] == seen.before).all())
        for same in (first, *equal.tolist()):
            seen.run = seen.run + 1 if same else 0
            seen.longest = max(seen.longest, seen.run)
        seen.equal += first + int(equal.sum())
        seen.before = flat[-1].copy()

    def _add_ends(self, seen: _Seen, flat: Array) -> None:
        """Count the values at the ends of what was seen so far."""
        if flat.dtype.kind not in "fiu":
            return
        values = flat[np.isfinite(flat)] if flat.dtype.kind == "f" else flat.reshape(-1)
        if not len(values):
            return
        low, high = float(values.min()), float(values.max())
        if low < seen.low:
            seen.low, seen.at_low = low, 0
        if high > seen.high:
            seen.high, seen.at_high = high, 0
        seen.at_low += int((values == seen.low).sum())
        seen.at_high += int((values == seen.high).sum())
        seen.values += len(values)
        if len(seen.different) < _DIFFERENT:
            seen.different |= set(np.unique(values[:: max(1, len(values) // 4096)]).tolist())

    def end(self, endings: Array, steps: int, damaged: int = 0) -> None:
        """Tell what was found, of episodes by how they ended, of steps by how many there were; and of rows that are damaged."""
        if damaged:
            text = f"{counted(damaged, 'row')} lie beside damage and could not be read: run diskbuffer check"
            self._tell("damaged", "", damaged, damaged, text)
        cut = int((endings == CUT_OFF).sum())
        if cut:
            self._tell(CUT_OFF, "", cut, len(endings), f"{_share(cut, len(endings), 'episode')} {_have(cut)} no end: {CUT_OFF}")
        over = int(np.isin(endings, (CUT_OFF, RUNNING), invert=True).sum())
        if not over and steps >= 1000:
            self._tell("no endings", "", 0, steps, "no episode has terminated or been truncated (is the end given to add()?)")
        for path, seen in self._seen.items():
            if seen.rows:
                self._numbers(path, seen)
                self._pictures(path, seen)
                if seen.rows >= _FEW:
                    self._variation(path, seen)
                    self._ends(path, seen)

    def _numbers(self, path: str, seen: _Seen) -> None:
        for kind, n, word in (("nan", seen.nan, "NaN"), ("infinite", seen.infinite, "infinite values")):
            if n:
                self._tell(kind, path, n, seen.rows, f"{path}: {_share(n, seen.rows, 'row')} {_have(n)} {word}")

    def _pictures(self, path: str, seen: _Seen) -> None:
        name = "frame" if seen.is_picture else "row"
        if seen.black:
            text = f"{path}: {_share(seen.black, seen.rows, 'frame')} {_are(seen.black)} black: all zeros"
            self._tell("black", path, seen.black, seen.rows, text)
        if seen.flat:
            text = f"{path}: {_share(seen.flat, seen.rows, 'frame')} {_are(seen.flat)} of one colour"
            self._tell("constant frame", path, seen.flat, seen.rows, text)
        if seen.equal:
            longest = f"; the longest stretch is of {seen.longest + 1:,}" if seen.longest > 1 else ""
            text = f"{path}: {_share(seen.equal, seen.pairs, name)} equal the one before, in the same episode{longest}"
            self._tell("duplicate", path, seen.equal, seen.pairs, text)

    def _variation(self, path: str, seen: _Seen) -> None:
        """Tell of what never varies; flags have their own findings, and one reward for all steps is common."""
        assert seen.first is not None
        assert seen.varies is not None
        name, n = path.split("/")[0], seen.rows
        if path in ("terminated", "truncated", TAG):
            return
        if not seen.varies.any():
            value = _shown(seen.first)
            if name == "reward":
                if not seen.first.any():
                    self._tell("no reward", path, n, n, f"{path}: always 0, in {counted(n, 'step')}")
                return
            kind = "action" if name == "action" else "constant"
            word = "never varies" if name == "action" else "is constant"
            self._tell(kind, path, n, n, f"{path}: {word}: always {value}, in {counted(n, 'row')}")
            return
        stuck = np.flatnonzero(~seen.varies)
        if len(stuck) and len(seen.varies) <= _WIDE and not seen.is_picture:
            shown = ", ".join(f"[{at}] is always {seen.first[at].item():g}" for at in stuck[:5].tolist())
            more = f", and {len(stuck) - 5:,} more" if len(stuck) > 5 else ""
            kind = "action" if name == "action" else "constant"
            text = f"{path}: {counted(len(stuck), 'value')} of {len(seen.varies):,} never {_vary(len(stuck))}: {shown}{more}"
            self._tell(kind, path, len(stuck), len(seen.varies), text)

    def _ends(self, path: str, seen: _Seen) -> None:
        """Tell of values that look cut: many of them are exactly the largest, or the smallest, of all."""
        if len(seen.different) < _DIFFERENT or seen.values < 100:
            return
        if seen.is_picture:
            if seen.column.np_dtype == np.uint8 and seen.high == 255 and seen.at_high > _WHITE * seen.values:
                share = 100 * seen.at_high / seen.values
                text = f"{path}: {share:.0f} % of all values are 255, the most that there is: overexposed?"
                self._tell("saturated", path, seen.at_high, seen.values, text)
            return
        if seen.column.np_dtype.kind != "f":
            return
        for n, end, word in ((seen.at_low, seen.low, "smallest"), (seen.at_high, seen.high, "largest")):
            if n > _AT_AN_END * seen.values and not (end == 0 and path.split("/")[0] == "reward"):
                text = f"{path}: {100 * n / seen.values:.0f} % of all values are {end:g}, the {word}: cut off there?"
                self._tell("saturated", path, n, seen.values, text)

    def _tell(self, kind: str, column: str, count: int, of: int, text: str) -> None:
        self._found.append(Finding(kind, column, count, of, text))

    def all(self) -> list[Finding]:
        """Return what was found."""
        return list(self._found)


def _share(n: int, of: int, what: str) -> str:
    percent = 100 * n / of if of else 0.0
    shown = f"{percent:.0f}" if percent >= 10 or percent == int(percent) else f"{percent:.2g}"
    return f"{n:,} of {counted(of, what)} ({shown} %)"


def _have(n: int) -> str:
    return "has" if n == 1 else "have"


def _are(n: int) -> str:
    return "is" if n == 1 else "are"


def _vary(n: int) -> str:
    return "varies" if n == 1 else "vary"


def _shown(values: Array) -> str:
    return f"{values[0].item():g}" if len(values) == 1 else f"the same {len(values):,} values"
