"""Where the C functions are that zarr's own dependencies carry.

numcodecs' extension module exports the c-blosc inside it, and the LZ4 inside that; google-crc32c carries a library for
checksums. All wheels of theirs for Linux and macOS do.
"""

from __future__ import annotations

import ctypes
import importlib
from typing import Any

BLOSC, CRC = "numcodecs.blosc", "google_crc32c._crc32c"


def find(module: str, symbol: str) -> Any:
    """Return a C function of an extension module, as ctypes has it."""
    try:
        return getattr(ctypes.CDLL(importlib.import_module(module).__file__), symbol)
    except (ImportError, OSError, AttributeError) as error:
        package = str(module).split(".")[0].replace("_", "-")
        raise ImportError(
            f"diskbuffer calls the C function {symbol} inside {module}, and does not find it ({error}). The wheels of {package} "
            f"for Linux and macOS have it: pip install --force-reinstall --only-binary :all: {package}",
            name=module,
        ) from error


def address(module: str, symbol: str) -> int:
    """Return the address of a C function."""
    return int(ctypes.cast(find(module, symbol), ctypes.c_void_p).value or 0)
