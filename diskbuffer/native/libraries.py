"""C functions that zarr's own dependencies carry, made callable from compiled code, without the GIL.

numcodecs' extension module exports the c-blosc inside it, and the LZ4 inside that; google-crc32c carries a library for
checksums. All wheels of theirs for Linux and macOS do. Their addresses are looked up with ctypes and given to LLVM under names
of our own, so that `numba.types.ExternalFunction` finds them, also from code cached on disk.
"""

from __future__ import annotations

import ctypes
import importlib
from typing import Any

import llvmlite.binding
from numba import types


def _external(module: str | None, symbol: str, signature: Any) -> Any:
    """Return a C function of an extension module, or of the C library, for compiled code."""
    try:
        found = getattr(ctypes.CDLL(importlib.import_module(module).__file__ if module else None), symbol)
    except (ImportError, OSError, AttributeError) as error:
        package = str(module).split(".")[0].replace("_", "-")
        raise ImportError(
            f"diskbuffer calls the C function {symbol} inside {module}, and does not find it ({error}). The wheels of {package} "
            f"for Linux and macOS have it: pip install --force-reinstall --only-binary :all: {package}",
            name=module,
        ) from error
    llvmlite.binding.add_symbol(f"diskbuffer_{symbol}", ctypes.cast(found, ctypes.c_void_p).value)
    return types.ExternalFunction(f"diskbuffer_{symbol}", signature)


# Addresses are signed here: numba turns the sum of an int64 and a uint64 into a float.
_at, _i32, _u32 = types.intp, types.int32, types.uint32
_BLOSC, _CRC = "numcodecs.blosc", "google_crc32c._crc32c"

memcpy = _external(None, "memcpy", _at(_at, _at, _at))
memset = _external(None, "memset", _at(_at, _i32, _at))
memcmp = _external(None, "memcmp", _i32(_at, _at, _at))
madvise = _external(None, "madvise", _i32(_at, _at, _i32))
sched_yield = _external(None, "sched_yield", _i32())
pthread_mutex_init = _external(None, "pthread_mutex_init", _i32(_at, _at))
pthread_mutex_lock = _external(None, "pthread_mutex_lock", _i32(_at))
pthread_mutex_unlock = _external(None, "pthread_mutex_unlock", _i32(_at))
pthread_cond_init = _external(None, "pthread_cond_init", _i32(_at, _at))
pthread_cond_wait = _external(None, "pthread_cond_wait", _i32(_at, _at))
pthread_cond_signal = _external(None, "pthread_cond_signal", _i32(_at))
blosc_decompress = _external(_BLOSC, "blosc_decompress_ctx", _i32(_at, _at, _at, _i32))
blosc_compress = _external(_BLOSC, "blosc_compress_ctx", _i32(_i32, _i32, _at, _at, _at, _at, _at, _at, _at, _i32))
lz4_decompress_partial = _external(_BLOSC, "LZ4_decompress_safe_partial", _i32(_at, _at, _i32, _i32, _i32))
crc32c_extend = _external(_CRC, "crc32c_extend", _u32(_u32, _at, _at))  # of what comes before, address, size
