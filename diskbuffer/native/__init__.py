"""The compiled part: C++ kernels in `kernels/`, bound by a module of Cython for each concern.

In a checkout, importing this compares a hash of the sources with what was built from them; a wheel has no sources.
"""

import hashlib
from pathlib import Path

try:
    from diskbuffer.native.build import SOURCES
except ModuleNotFoundError as error:
    raise ImportError("diskbuffer's native code was not built; run `make native`, or `pip install .` in the checkout") from error


def _check() -> None:
    """Require that the native code was built from the sources that are here, if any are."""
    suffixes = {".pyx", ".pxd", ".hpp", ".cpp"}
    files = sorted(path for path in Path(__file__).parent.rglob("*") if path.suffix in suffixes)
    found = hashlib.sha256(b"".join(path.name.encode() + path.read_bytes() for path in files)).hexdigest()
    if files and found != SOURCES:
        raise ImportError("diskbuffer's native code was built from other sources than are here; run `make native`")


_check()
