"""Kinds of arguments of commands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from cyclopts import Parameter, Token


def _whole(_: Any, tokens: Sequence[Token]) -> int:
    """Return an integer; a ValueError for what is none, where cyclopts would round."""
    try:
        return int(tokens[0].value)
    except ValueError:
        raise ValueError(f"expected a whole number, found {tokens[0].value!r}") from None


Whole = Annotated[int, Parameter(converter=_whole)]
