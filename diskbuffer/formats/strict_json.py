"""JSON as its standard has it, for whoever reads it with something else than Python: without NaN and infinities."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any


def dumps(value: Any, **style: Any) -> str:
    """Return a value as JSON: numbers that are NaN or infinite are null, complex ones lists of two.

    Parameters
    ----------
    value : Any
    **style
        As `json.dumps` takes it.
    """
    return json.dumps(_plain(value), allow_nan=False, **style)


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, complex):
        return [_plain(value.real), _plain(value.imag)]
    if isinstance(value, Mapping):
        return {str(name): _plain(inner) for name, inner in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, list | tuple) else value
