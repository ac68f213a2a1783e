"""What looks wrong in a store's values. Each finding is a plain sentence, with how many of how many."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from diskbuffer.plugin import CUT_OFF, RUNNING, TAG, counted, is_observation, picture_kind

Array = npt.NDArray[Any]

_WIDE = 1024  # values of a row, up to which each is looked at on its own
_AT_AN_END = 0.1  # of values that are the largest or smallest of all: more of them look cut
_WHITE = 0.2  # of a picture's values that are the largest there is
_DIFFERENT = 20  # values, at least, for a column to be one of measured quantities, and not of levels
_FEW = 10  # rows, of which nothing can be said
_MANY = 1000  # steps, among which some episode ends


@dataclass(frozen=True)
class Finding:
    """One thing that looks wrong: its kind, the column, how many of how many, and the sentence that tells."""

    kind: str
    column: str
    count: int
    of: int
    text: str


def of_episodes(endings: Array, steps: int) -> Iterator[Finding]:
    """Yield what is wrong with the ends of episodes, which are as `EpisodeTable.ending` has them, of so many steps."""
    n, total = int((endings == CUT_OFF).sum()), len(endings)
    if n:
        yield Finding(CUT_OFF, "", n, total, f"{_share(n, total, 'episode')} {'has' if n == 1 else 'have'} no end: {CUT_OFF}")
    if steps >= _MANY and np.isin(endings, (CUT_OFF, RUNNING)).all():
        yield Finding("no endings", "", 0, steps, "no episode has terminated or been truncated (is the end given to add()?)")


def of_values(values: Mapping[str, Array], adjacent: npt.NDArray[np.bool_]) -> Iterator[Finding]:
    """Yield what is wrong with the values of columns.

    Parameters
    ----------
    values : mapping of str to (n, ...) array
        Observations have a value for every row that is looked at, the other columns one for each that is a step.
    adjacent : (rows - 1,) bool
        Whether the row after this one comes right after it in the same episode.
    """
    for path, rows in values.items():
        if len(rows):
            yield from _of_column(path, rows, adjacent)


def _of_column(path: str, values: Array, adjacent: npt.NDArray[np.bool_]) -> Iterator[Finding]:
    is_picture, is_float = picture_kind(values.shape[1:], values.dtype) is not None, values.dtype.kind in "fc"
    n, flat = len(values), np.ascontiguousarray(values).reshape(len(values), -1)
    if is_float:
        for kind, word, wrong in (("nan", "NaN", np.isnan(flat)), ("infinite", "infinite values", np.isinf(flat))):
            if count := int(wrong.any(axis=1).sum()):
                text = f"{path}: {_share(count, n, 'row')} {'has' if count == 1 else 'have'} {word}"
                yield Finding(kind, path, count, n, text)
    if is_picture:
        uniform, is_zero = (flat == flat[:, :1]).all(axis=1), flat[:, 0] == 0
        for kind, words, rows in (
            ("black", "black: all zeros", uniform & is_zero),
            ("constant frame", "of one colour", uniform & ~is_zero),
        ):
            if count := int(rows.sum()):
                yield Finding(
                    kind, path, count, n, f"{path}: {_share(count, n, 'frame')} {'is' if count == 1 else 'are'} {words}"
                )
    if is_observation(path) and (is_picture or (is_float and flat.shape[1] > 1)):  # else, equal ones are no surprise
        yield from _repeated(path, flat, adjacent, "frame" if is_picture else "row")
    if n >= _FEW:
        yield from _constant(path, flat, is_picture=is_picture)
        yield from _saturated(path, flat, is_picture=is_picture)


def _repeated(path: str, flat: Array, adjacent: npt.NDArray[np.bool_], what: str) -> Iterator[Finding]:
    equal = (flat[1:] == flat[:-1]).all(axis=1) & adjacent
    count, pairs = int(equal.sum()), int(adjacent.sum())
    if count:
        ends = np.flatnonzero(np.diff(equal, prepend=False, append=False))  # where stretches begin and end, in turn
        longest = int(np.diff(ends)[::2].max())
        more = f"; the longest stretch is of {longest + 1:,}" if longest > 1 else ""
        text = f"{path}: {_share(count, pairs, what)} equal the one before, in the same episode{more}"
        yield Finding("duplicate", path, count, pairs, text)


def _constant(path: str, flat: Array, *, is_picture: bool) -> Iterator[Finding]:
    """Tell of what never varies; flags have their own findings, and one reward for all steps is common."""
    name, n, first = path.split("/")[0], len(flat), flat[0]
    if path in ("terminated", "truncated", TAG):
        return
    stuck = (flat == first).all(axis=0)
    if flat.dtype.kind in "fc":
        stuck |= np.isnan(flat).all(axis=0)
    kind = "action" if name == "action" else "constant"
    if not stuck.all():
        which = np.flatnonzero(stuck)
        if len(which) and len(stuck) <= _WIDE and not is_picture:
            shown = ", ".join(f"[{at}] is always {first[at].item():g}" for at in which[:5].tolist())
            more = f", and {len(which) - 5:,} more" if len(which) > 5 else ""
            never = f"{counted(len(which), 'value')} of {len(stuck):,} never {'varies' if len(which) == 1 else 'vary'}"
            yield Finding(kind, path, len(which), len(stuck), f"{path}: {never}: {shown}{more}")
    elif name != "reward":
        value = f"{first[0].item():g}" if len(first) == 1 else f"the same {len(first):,} values"
        word = "never varies" if name == "action" else "is constant"
        yield Finding(kind, path, n, n, f"{path}: {word}: always {value}, in {counted(n, 'row')}")
    elif not first.any():
        yield Finding("no reward", path, n, n, f"{path}: always 0, in {counted(n, 'step')}")


def _saturated(path: str, flat: Array, *, is_picture: bool) -> Iterator[Finding]:
    """Tell of values that look cut: many of them are exactly the largest, or the smallest, of all."""
    is_measured = flat.dtype == np.uint8 if is_picture else flat.dtype.kind == "f"
    if not is_measured:
        return
    values = flat.reshape(-1) if is_picture else flat[np.isfinite(flat)]
    if len(values) < 100 or len(np.unique(values[:: max(1, len(values) // 4096)])) < _DIFFERENT:
        return
    if is_picture:
        count = int((values == 255).sum())
        if count > _WHITE * len(values):
            share = f"{100 * count / len(values):.0f} %"
            text = f"{path}: {share} of all values are 255, the most that there is: overexposed?"
            yield Finding("saturated", path, count, len(values), text)
        return
    for end, word in ((values.min(), "smallest"), (values.max(), "largest")):
        count = int((values == end).sum())
        if count > _AT_AN_END * len(values) and not (end == 0 and path.split("/")[0] == "reward"):
            text = f"{path}: {100 * count / len(values):.0f} % of all values are {end:g}, the {word}: cut off there?"
            yield Finding("saturated", path, count, len(values), text)


def _share(n: int, of: int, what: str) -> str:
    percent = 100 * n / of
    shown = f"{percent:.0f}" if percent >= 10 or percent == int(percent) else f"{percent:.2g}"
    return f"{n:,} of {counted(of, what)} ({shown} %)"
