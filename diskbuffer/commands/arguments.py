"""Kinds of arguments of commands, and a check of paths."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from cyclopts import Parameter, Token

from diskbuffer.errors import InputError
from diskbuffer.plugin import shown, writers_of


def _whole(_: Any, tokens: Sequence[Token]) -> int:
    """Return an integer; a ValueError for what is none, where cyclopts would round."""
    try:
        return int(tokens[0].value)
    except ValueError:
        raise ValueError(f"expected a whole number, found {shown(tokens[0].value)}") from None


Whole = Annotated[int, Parameter(converter=_whole)]


def refuse_several(path: str, why: str) -> None:
    """Raise an InputError for a directory of several writers' stores, where a command is for one store."""
    names = writers_of(path)
    if names is not None:
        first = f"{path.rstrip('/')}/{next(iter(names))}" if names else "one of them"
        raise InputError(f"{path} has the stores of {len(names):,} writers, and {why}; give the path of one, such as {first}")
