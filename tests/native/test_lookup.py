"""What native lookups refuse; what they find is compared with plain lists in tests/index."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from diskbuffer.index.fields import FIELDS
from diskbuffer.native import lookup

TABLE = np.zeros((2, FIELDS), np.int64)
THREE, FOUND = np.zeros(3, np.int64), np.zeros((4, 3), np.int64)

WRONG: list[tuple[Callable[..., Any], tuple[Any, ...], type[Exception], str]] = [
    (lookup.count_steps, (TABLE[:, :-1].copy(),), TypeError, "a table of 13 fields"),
    (lookup.count_steps, (TABLE.astype(np.int32),), TypeError, "contiguous array"),
    (lookup.count_steps, (TABLE.T,), TypeError, "not contiguous"),
    (lookup.count_steps, (TABLE.tolist(),), TypeError, "a numpy array, found list"),
    (lookup.locate, (TABLE, THREE, FOUND[:, :2].copy()), ValueError, r"shape \(4, 3\)"),
    (lookup.locate, (TABLE, THREE, FOUND[:3]), ValueError, r"shape \(4, 3\)"),
    (lookup.locate_recent, (TABLE, THREE[:2], THREE, FOUND), ValueError, "one length, found 2 and 3"),
    (lookup.locate_episodes, (TABLE, THREE.astype(float), FOUND), TypeError, "float64"),
    (lookup.find_episodes, (TABLE, THREE, THREE, FOUND[0], FOUND[1, :2]), ValueError, "one length"),
    (lookup.episodes_along, (TABLE, THREE, THREE, FOUND[:3], FOUND[:3, :2].copy()), ValueError, "one length"),
    (lookup.find_rows, (TABLE, THREE, THREE, 8, THREE[:1]), ValueError, "one length"),
]


@pytest.mark.parametrize(("function", "arguments", "error", "message"), WRONG)
def test_arrays_of_another_form_are_refused(
    function: Callable[..., Any], arguments: tuple[Any, ...], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        function(*arguments)
