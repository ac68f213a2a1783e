"""Options of formats, which users type."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any

from diskbuffer.errors import InputError

_ONE = re.compile(r"((str|int|float|bool|None)( \| )?)+")  # the annotation of an option that has one value


def check(format: str, call: Callable[..., Any], apart: int, options: Mapping[str, Any]) -> None:
    """Raise an InputError where there is no such option, or where it has one value, and several are given.

    Parameters
    ----------
    format : str
        Its name.
    call : callable
        Its `read` or `write`.
    apart : int
        How many of its parameters, the first ones, are no options.
    options : mapping of str to Any
        Options by name.
    """
    parameters = list(inspect.signature(call).parameters.values())[apart:]
    known = [parameter.name for parameter in parameters if parameter.kind is not parameter.VAR_KEYWORD]
    unknown = sorted(set(options) - set(known))
    if unknown and len(known) == len(parameters):
        raise InputError(f"{format} has no option {unknown[0]!r} here; it has {', '.join(known) or 'none'}")
    for parameter in parameters:
        value, kind = options.get(parameter.name), str(parameter.annotation)
        if isinstance(value, list | tuple | dict | set) and _ONE.fullmatch(kind):
            raise InputError(f"{parameter.name} must be {kind.removesuffix(' | None')}, found {str(value)[:100]}")


def names_in(option: str, value: Any) -> list[str]:
    """Return names, of a text that has commas between them, or of a list; an InputError where it is something else."""
    names = (
        value.split(",")
        if isinstance(value, str)
        else list(value)
        if isinstance(value, list | tuple | set | frozenset)
        else [None]
    )
    if not all(isinstance(name, str) for name in names):
        raise InputError(f"{option} must be names, with commas between them, found {str(value)[:100]}")
    return [name for name in names if name]


def as_texts(options: Mapping[str, Any]) -> dict[str, str]:
    """Return options in JSON, so that an interrupted run can tell whether it was given the same ones."""
    return {name: str(value) for name, value in sorted(options.items())}
