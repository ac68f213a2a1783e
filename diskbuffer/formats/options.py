"""Options of formats, which users type."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Any

from diskbuffer.errors import InputError


def check(format: str, call: Callable[..., Any], apart: int, given: Collection[str]) -> None:
    """Raise an InputError where there is no such option.

    Parameters
    ----------
    format : str
        Its name.
    call : callable
        Its `read` or `write`.
    apart : int
        How many of its parameters, the first ones, are no options.
    given : collection of str
        Names of options.
    """
    parameters = list(inspect.signature(call).parameters.values())[apart:]
    known = [parameter.name for parameter in parameters if parameter.kind is not parameter.VAR_KEYWORD]
    unknown = sorted(set(given) - set(known))
    if unknown and len(known) == len(parameters):
        raise InputError(f"{format} has no option {unknown[0]!r} here; it has {', '.join(known) or 'none'}")


def as_texts(options: Mapping[str, Any]) -> dict[str, str]:
    """Return options in JSON, so that an interrupted run can tell whether it was given the same ones."""
    return {name: str(value) for name, value in sorted(options.items())}
