"""What several commands take, what their help says of it, and checks of it."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Sequence
from typing import Annotated, Any

from cyclopts import Parameter, Token

from diskbuffer.errors import InputError
from diskbuffer.plugin import shown


def _whole(_: Any, tokens: Sequence[Token]) -> int:
    """Return an integer; a ValueError for what is none, where cyclopts would round."""
    try:
        return int(tokens[0].value)
    except ValueError:
        raise ValueError(f"expected a whole number, found {shown(tokens[0].value)}") from None


Whole = Annotated[int, Parameter(converter=_whole)]
AnyStore = Annotated[
    str, Parameter(help="The directory of the store, or of several writers' stores. A training may be writing to it.")
]
Where = Annotated[
    str | None, Parameter(help="Which episodes, as `diskbuffer episodes` takes it: \"return > 10 and ending == 'terminated'\".")
]
Columns = Annotated[
    list[str] | None,
    Parameter(help='One of the columns that are wanted; may be given several times. All by default; "obs" is all below "obs/".'),
]
Options = Annotated[
    list[str] | None, Parameter(help="An option of the format, as NAME=VALUE; may be given several times: see docs/formats.md.")
]
Restart = Annotated[bool, Parameter(help="Begin anew, where a run with other options, or of another source, was not finished.")]
Quiet = Annotated[bool, Parameter(help="Show no progress.")]
Json = Annotated[bool, Parameter(help="Print JSON, with all figures.")]


def pairs(option: str, texts: Sequence[str] | None, form: str, example: str, *, empty: bool = False) -> dict[str, str]:
    """Read what was given to an option as LEFT=RIGHT, once or several times; with `empty`, RIGHT may be nothing."""
    values: dict[str, str] = {}
    for text in texts or ():
        left, found, right = text.partition("=")
        if not left or not (right or (empty and found)):
            raise InputError(f"--{option} is {form}, such as --{option} {example}, found {text!r}")
        if values.setdefault(left, right) != right:
            raise InputError(f"--{option} is given twice for {left}: {values[left]} and {right}")
    return values


def format_options(texts: Sequence[str] | None, run: Callable[..., Any]) -> dict[str, Any]:
    """Return options of a format by name. Values that are JSON (30, true, [1, 2]) are read as such, all others are texts.

    An InputError where `run`, which is given them, has a parameter of that name for all formats.
    """
    options: dict[str, Any] = dict(pairs("option", texts, "NAME=VALUE", "fps=30", empty=True))
    taken = inspect.getfullargspec(run)
    for name, value in options.items():
        if name in taken.args or name in taken.kwonlyargs:
            raise InputError(f"{name} is no option of a format, but of all of them; say it without --option")
        try:
            options[name] = json.loads(value)
            json.dumps(options[name], allow_nan=False)  # or it was NaN, or too large for a float, and is no JSON
        except (ValueError, RecursionError):
            options[name] = value
    return options
