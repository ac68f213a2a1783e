"""The words of messages."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diskbuffer.arguments.wording import counted, size

UNITS = {"bytes": 1, "byte": 1, "KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}


@given(st.integers(0, 10**15) | st.integers(0, 2000) | st.integers(0, 50).map(lambda e: 2**e))
def test_a_size_has_three_digits_that_count(n: int) -> None:
    found = re.fullmatch(r"([0-9,.]+) (\w+)", size(n))
    assert found is not None
    number, unit = float(found[1].replace(",", "")), found[2]
    assert number * UNITS[unit] == (n if n < 1000 else pytest.approx(n, rel=0.006))
    assert number <= 1000 or unit == "TB"
    assert (unit == "byte") == (n == 1)


def test_numbers_of_things() -> None:
    assert [counted(n, "step") for n in (0, 1, 2, 12_000)] == ["0 steps", "1 step", "2 steps", "12,000 steps"]
