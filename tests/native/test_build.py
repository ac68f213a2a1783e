"""What the native code was built from is compared with the sources that are there when it is imported."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "diskbuffer"
USE = "import diskbuffer.native.checksums as native; print(native.crc32c(0, 0, 0))"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Return a directory with a copy of the package, whose native code is built."""
    shutil.copytree(PACKAGE, tmp_path / "diskbuffer", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def run(checkout: Path) -> subprocess.CompletedProcess[str]:
    """Use the native code of a checkout in a process of its own."""
    return subprocess.run([sys.executable, "-c", USE], cwd=checkout, capture_output=True, text=True)


def test_native_code_that_was_built_from_the_sources_is_imported(checkout: Path) -> None:
    assert run(checkout).stdout == "0\n"


def test_native_code_without_its_sources_is_imported_as_from_a_wheel(checkout: Path) -> None:
    for pattern in ("*.pyx", "*.pxd", "*.hpp", "*.cpp"):
        for path in (checkout / "diskbuffer" / "native").rglob(pattern):
            path.unlink()
    assert run(checkout).stdout == "0\n"


def test_native_code_that_was_built_from_other_sources_is_refused(checkout: Path) -> None:
    with (checkout / "diskbuffer" / "native" / "kernels" / "checksums.cpp").open("a") as file:
        file.write("// changed\n")
    done = run(checkout)
    assert done.returncode
    assert "built from other sources than are here; run `make native`" in done.stderr


def test_native_code_that_was_not_built_is_an_error_that_says_how(checkout: Path) -> None:
    for path in (checkout / "diskbuffer" / "native").glob("*.so"):
        path.unlink()
    done = run(checkout)
    assert done.returncode
    assert "was not built; run `make native`" in done.stderr
