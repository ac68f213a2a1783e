"""The compiled part: C++ kernels in `kernels/`, bound by a module of Cython for each concern.

In a checkout, importing this compares a hash of the sources with what was built from them; a wheel has no sources.
"""

from pathlib import Path

from diskbuffer.native.sources import hash_of, native_sources

try:
    from diskbuffer.native.build import SOURCES
except ModuleNotFoundError as error:
    raise ImportError("diskbuffer's native code was not built; run `make native`, or `pip install .` in the checkout") from error


def _check() -> None:
    """Require that the native code was built from the sources that are here, if any are."""
    sources = native_sources(Path(__file__).parent)
    if sources and hash_of(sources) != SOURCES:
        raise ImportError("diskbuffer's native code was built from other sources than are here; run `make native`")


_check()
