"""Arrays as JSON holds them."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as nps

from diskbuffer.inspect.page.plain_values import thinned, to_list

DTYPES = ["bool", "uint8", "int8", "int32", "int64", "uint64", "float16", "float32", "float64"]


@pytest.mark.nightly
@given(st.sampled_from(DTYPES).flatmap(lambda dtype: nps.arrays(dtype, st.integers(0, 40))))
def test_numbers_stay_what_they_are_to_six_digits(values: npt.NDArray[Any]) -> None:
    found = json.loads(json.dumps(to_list(values), allow_nan=False))
    assert len(found) == len(values)
    for one, value in zip(found, values.tolist(), strict=True):
        if isinstance(value, float) and not np.isfinite(value):
            assert one is None
        elif isinstance(value, float):
            assert one == pytest.approx(value, rel=1e-5, abs=1e-270)
        else:
            assert one == value


@given(nps.arrays("float64", st.tuples(st.integers(1, 400), st.integers(1, 3)), elements=st.floats(-9, 9)), st.integers(10, 200))
def test_what_is_drawn_looks_the_same(values: npt.NDArray[np.float64], most: int) -> None:
    kept = thinned(values, most)
    assert (np.diff(kept) > 0).all()
    assert {0, len(values) - 1} <= set(kept.tolist())
    assert len(kept) <= most + 2 + 2 * values.shape[1]
    assert len(values) > most or len(kept) == len(values)
    assert (values[kept].min(axis=0) == values.min(axis=0)).all()
    assert (values[kept].max(axis=0) == values.max(axis=0)).all()


def test_nan_is_no_reason_to_lose_a_peak() -> None:
    values = np.zeros((10_000, 1))
    values[5000], values[7000:8000] = 3, np.nan
    kept = thinned(values, 100)
    assert 5000 in kept


def test_thinned_values_keep_the_smallest_and_largest_beside_what_is_no_number() -> None:
    values = np.full((9000, 1), np.nan)
    values[::2, 0] = 5.0
    values[4000, 0], values[6000, 0], values[7001, 0] = 4.0, 6.0, np.inf
    kept = thinned(values, 400)
    shown = values[kept, 0]
    assert (np.nanmin(shown[np.isfinite(shown)]), np.nanmax(shown[np.isfinite(shown)])) == (4.0, 6.0)
