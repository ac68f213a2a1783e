"""Integers that users give: one rule, wherever they do."""

from __future__ import annotations

import operator
from typing import Any

from diskbuffer.errors import InputError

MOST = 2**63 - 1  # what the int64 of numpy holds


def integer(name: str, value: Any, least: int = 1, most: int | None = MOST) -> int:
    """Return an integer from `least` to `most` as one of Python's; an InputError for anything else.

    Numbers of numpy and tensors of one integer are such, too. Truth values, strings and floats are not, whatever their value: who
    gives them mostly means something else.
    """
    return _checked(name, value, least, most, "an integer")


def integer_or_none(name: str, value: Any, least: int = 1, most: int | None = MOST) -> int | None:
    """Return an integer as `integer` does, or None for None."""
    return None if value is None else _checked(name, value, least, most, "None or an integer")


def shown(value: Any) -> str:
    """Return a value as an error shows it: cut short, as users may give anything."""
    try:
        text = repr(value)
    except ValueError:  # an integer of thousands of digits
        return f"a {type(value).__name__} that is too long to show"
    return text if len(text) <= 80 else f"{text[:80]}..."


def _checked(name: str, value: Any, least: int, most: int | None, expected: str) -> int:
    number = _index(value)
    if number is None or number < least or (most is not None and number > most):
        unlimited = most is None or (most == MOST and (number is None or number < least))
        span = f"of at least {least}" if unlimited else f"from {least} to {most}"
        raise InputError(f"{name} must be {expected} {span}, found {shown(value)}", option=name)
    return number


def _index(value: Any) -> int | None:
    if type(value) is int:  # most are; looking for a dtype takes longer than all else here
        return value
    if isinstance(value, bool) or str(getattr(value, "dtype", "")).endswith("bool"):
        return None
    try:
        return operator.index(value)
    except (TypeError, ValueError):
        return None
