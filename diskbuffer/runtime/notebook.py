"""The one way from the core to what shows it: found in `diskbuffer.inspect` when it is first asked for, and imported nowhere."""

from __future__ import annotations

import importlib
from typing import Any


def notebook(module: str) -> Any:
    """Return a module of `diskbuffer.inspect.notebook`: "buffer", "episode", "episodes", "pandas_tables"."""
    return importlib.import_module(f"diskbuffer.inspect.notebook.{module}")
