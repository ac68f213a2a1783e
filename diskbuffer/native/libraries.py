"""C functions that zarr's own dependencies carry, made callable from compiled code, without the GIL.

Their addresses, which `diskbuffer.native.c_functions` looks up, are given to LLVM under names of our own, so that
`numba.types.ExternalFunction` finds them, also from code cached on disk.
"""

from __future__ import annotations

from typing import Any

import llvmlite.binding
from numba import types

from diskbuffer.native.c_functions import CRC, address
from diskbuffer.native.checksums import ADDRESSES


def _external(module: str | None, symbol: str, signature: Any) -> Any:
    """Return a C function of an extension module, or of the C library, for compiled code."""
    llvmlite.binding.add_symbol(f"diskbuffer_{symbol}", address(module, symbol))
    return types.ExternalFunction(f"diskbuffer_{symbol}", signature)


def _native(name: str, signature: Any) -> Any:
    """Return a function of our own native code."""
    llvmlite.binding.add_symbol(f"diskbuffer_{name}", ADDRESSES[name])
    return types.ExternalFunction(f"diskbuffer_{name}", signature)


# Addresses are signed here: numba turns the sum of an int64 and a uint64 into a float.
_at, _i32, _u32 = types.intp, types.int32, types.uint32

memcpy = _external(None, "memcpy", _at(_at, _at, _at))
memset = _external(None, "memset", _at(_at, _i32, _at))
memcmp = _external(None, "memcmp", _i32(_at, _at, _at))
crc32c_extend = _external(CRC, "crc32c_extend", _u32(_u32, _at, _at))  # of what comes before, address, size
length_word = _native("length_word", _at(_at, _at))
row_seed = _native("row_seed", _at(_at, _at, _at, _at))
pad = _native("pad", _at(_at, _at))
