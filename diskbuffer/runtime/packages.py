"""Packages that only some of diskbuffer needs, and that may not be installed."""

from __future__ import annotations

import importlib
from typing import Any

from diskbuffer.errors import MissingPackageError


def require(module: str, package: str, extra: str, what_for: str = "for this") -> Any:
    """Import a module; a MissingPackageError where its package is not installed.

    Parameters
    ----------
    module : str
        Such as "PIL.Image".
    package, extra : str
        What pip calls the package, and the extra of diskbuffer that has it.
    what_for : str
        Such as "to draw pictures".
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingPackageError(
            f"{what_for} needs {package}, which cannot be imported ({error}): "
            f"pip install {package}, or pip install 'diskbuffer[{extra}]'"
        ) from error
