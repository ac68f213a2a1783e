"""Which library is tested: the release that is installed, not what lies in a checkout of its repository."""

from __future__ import annotations

from importlib.metadata import distribution
from pathlib import Path
from types import ModuleType


def installed(library: ModuleType, package: str) -> str:
    """Return the release of a library that was imported, and where it lies; an ImportError where another one was imported."""
    found = distribution(package)
    expected = Path(str(found.locate_file(library.__name__))).resolve()
    imported = Path(str(library.__file__)).resolve().parent
    if imported != expected:
        raise ImportError(
            f"expected {package} {found.version} from {expected}, imported {imported}: leave the checkout out of PYTHONPATH, and "
            f"install the release (pip install {package}), not the checkout"
        )
    return f"{package} {found.version}, {imported}"
