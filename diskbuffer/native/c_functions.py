"""C functions that zarr's own dependencies carry, called through ctypes: without the GIL, and without compiling anything.

numcodecs' extension module exports the c-blosc inside it, and the LZ4 inside that; google-crc32c carries a library for
checksums. All wheels of theirs for Linux and macOS do. `diskbuffer.native.libraries` gives the same functions to compiled code.
"""

from __future__ import annotations

import ctypes
import importlib
from functools import cache
from typing import Any

BLOSC, CRC = "numcodecs.blosc", "google_crc32c._crc32c"
_at, _i32, _u32 = ctypes.c_ssize_t, ctypes.c_int32, ctypes.c_uint32


def find(module: str | None, symbol: str) -> Any:
    """Return a C function of an extension module, or of the C library, as ctypes has it."""
    try:
        return getattr(ctypes.CDLL(importlib.import_module(module).__file__ if module else None), symbol)
    except (ImportError, OSError, AttributeError) as error:
        package = str(module).split(".")[0].replace("_", "-")
        raise ImportError(
            f"diskbuffer calls the C function {symbol} inside {module}, and does not find it ({error}). The wheels of {package} "
            f"for Linux and macOS have it: pip install --force-reinstall --only-binary :all: {package}",
            name=module,
        ) from error


def address(module: str | None, symbol: str) -> int:
    """Return the address of a C function."""
    return int(ctypes.cast(find(module, symbol), ctypes.c_void_p).value or 0)


@cache
def _function(module: str, symbol: str, result: Any, *arguments: Any) -> Any:
    found = find(module, symbol)
    found.restype, found.argtypes = result, arguments
    return found


def crc32c_extend(crc: int, address: int, size: int) -> int:
    """Return the CRC32C of bytes at an address, after others whose checksum is `crc`."""
    return int(_function(CRC, "crc32c_extend", _u32, _u32, _at, _at)(crc, address, size))


def blosc_decompress(source: int, target: int, size: int, threads: int) -> int:
    """Decompress a Blosc chunk at an address to another with room for `size` bytes; return the bytes, or less than 0."""
    return int(_function(BLOSC, "blosc_decompress_ctx", _i32, _at, _at, _at, _i32)(source, target, size, threads))


def lz4_decompress_partial(source: int, target: int, size: int, wanted: int, room: int) -> int:
    """Decompress the first `wanted` bytes of an LZ4 block of `size` bytes; return the bytes, or less than 0."""
    arguments = (_at, _at, _i32, _i32, _i32)
    return int(_function(BLOSC, "LZ4_decompress_safe_partial", _i32, *arguments)(source, target, size, wanted, room))
