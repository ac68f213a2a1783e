"""Stacks turned, against numpy, and what is refused; `tests/recording/test_transforms.py` compares pictures with a model."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from diskbuffer.native.transforms import interleave, transform_pictures
from tests.amounts import examples


@examples(80, 1000)
@given(st.integers(0, 3), st.integers(1, 6), st.integers(0, 30), st.integers(1, 12))
def test_stacks_are_turned(n: int, stack: int, pixels: int, pixel_bytes: int) -> None:
    stacks = np.random.default_rng(n).integers(0, 256, (n, stack, pixels, pixel_bytes), np.uint8)
    turned = np.zeros((n, pixels, stack, pixel_bytes), np.uint8)
    interleave(stacks, turned)
    np.testing.assert_array_equal(turned, np.moveaxis(stacks, 1, 2))


def test_arrays_that_do_not_fit_are_refused() -> None:
    stacks, colour, grey, one = (np.zeros(shape, np.uint8) for shape in ((2, 4, 5, 1), (1, 4, 5, 3), (1, 2, 2, 1), (1, 2, 2, 3)))
    none, first = np.full(1, -1), np.zeros(1, np.int64)
    with pytest.raises(ValueError, match=r"shape \(2, 5, 4, 1\)"):
        interleave(stacks, stacks)
    with pytest.raises(ValueError, match="cannot become"):
        transform_pictures(colour, one, none, colour, one, grey=True)
    with pytest.raises(ValueError, match="cannot become"):
        transform_pictures(colour, grey, none, colour, grey, grey=False)
    with pytest.raises(ValueError, match=r"shape \(1, 4, 5, 3\)"):
        transform_pictures(colour, one, none, one, one, grey=False)
    with pytest.raises(ValueError, match="1 numbers of 0 pictures"):
        transform_pictures(colour, one, first, colour[:0], one[:0], grey=False)
    with pytest.raises(ValueError, match="1 to 8388608 pixels"):
        transform_pictures(colour[:, :0], one, none, colour[:, :0], one, grey=False)
