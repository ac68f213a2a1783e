"""Options of formats on the command line: NAME=VALUE."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from diskbuffer.errors import InputError


def parse(given: Sequence[str]) -> dict[str, Any]:
    """Return options by name. Values that are JSON (30, true, [1, 2]) are read as such, all others are texts."""
    found: dict[str, Any] = {}
    for one in given:
        name, equals, value = one.partition("=")
        if not equals or not name.isidentifier():
            raise InputError(f"an option is NAME=VALUE, such as --option fps=30, found {one!r}")
        try:
            found[name] = json.loads(value)
            json.dumps(found[name], allow_nan=False)  # or it was NaN, or too large for a float, and is no JSON
        except (ValueError, RecursionError):
            found[name] = value
    return found


def parse_transforms(given: Sequence[str]) -> dict[str, Any]:
    """Return transforms by column, of texts such as "obs=greyscale,resize:84x84"."""
    found: dict[str, Any] = {}
    for one in given:
        path, equals, transform = one.partition("=")
        if not equals or not path:
            raise InputError(f"a transform is COLUMN=greyscale,resize:HEIGHTxWIDTH, such as obs=resize:84x84, found {one!r}")
        found[path] = transform.split(",")
    return found
