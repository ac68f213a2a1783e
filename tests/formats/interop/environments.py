"""Python of the environments that `make interop` makes."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[3] / ".venv" / "interop"


def python_of(name: str, module: str) -> Path:
    """Return the Python of an environment; skip the test where there is none, or a module is missing that is no package."""
    python = _ROOT / name / "bin" / "python"
    if not python.exists():
        pytest.skip(f"no environment {name}: make interop")
    code = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({module!r}) is None)"
    if subprocess.run([python, "-c", code]).returncode:
        pytest.skip(f"{module} is not in the path of the environment {name}; see interop/{name}.txt")
    return python
