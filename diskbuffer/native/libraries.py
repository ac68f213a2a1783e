"""C functions that zarr's own dependencies carry, made callable from compiled code, without the GIL.

numcodecs' extension module exports the c-blosc inside it (and the LZ4 inside that) on Linux and macOS; google-crc32c carries
a library for checksums. Their addresses are looked up with ctypes and given to LLVM under names of our own, so that
`numba.types.ExternalFunction` finds them, also from code cached on disk.
"""

from __future__ import annotations

import ctypes
import sys

import llvmlite.binding
import numcodecs.blosc
from numba import types


def _export(name: str, library: ctypes.CDLL, symbol: str) -> bool:
    try:
        address = ctypes.cast(getattr(library, symbol), ctypes.c_void_p).value
    except AttributeError:
        return False
    llvmlite.binding.add_symbol(f"diskbuffer_{name}", address)
    return True


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL("msvcrt" if sys.platform == "win32" else None)


def _export_all() -> tuple[bool, bool, bool]:
    _export("memcmp", _libc(), "memcmp")
    _export("memcpy", _libc(), "memcpy")
    _export("memset", _libc(), "memset")
    _export("madvise", _libc(), "madvise")
    try:
        from google_crc32c import _crc32c  # absent where only its slow Python version could be installed

        have_crc = _export("crc32c_extend", ctypes.CDLL(_crc32c.__file__), "crc32c_extend")
    except (OSError, ImportError):
        have_crc = False
    blosc = ctypes.CDLL(numcodecs.blosc.__file__)
    found = [
        have_crc,
        _export("decompress", blosc, "blosc_decompress_ctx"),
        _export("compress", blosc, "blosc_compress_ctx"),
    ]
    return all(found), _export("lz4_partial", blosc, "LZ4_decompress_safe_partial"), have_crc


# Whether c-blosc can be called at all, whether the LZ4 in it can, too, which decodes only as much of a chunk as is wanted, and
# whether the library for checksums can.
HAVE_BLOSC, HAVE_LZ4, HAVE_CRC = _export_all()
HAVE_MADVISE = sys.platform != "win32"

# Addresses are signed here: numba turns the sum of an int64 and a uint64 into a float.
_at, _i32 = types.intp, types.int32
memcpy = types.ExternalFunction("diskbuffer_memcpy", _at(_at, _at, _at))
memset = types.ExternalFunction("diskbuffer_memset", _at(_at, _i32, _at))
memcmp = types.ExternalFunction("diskbuffer_memcmp", _i32(_at, _at, _at))
madvise = types.ExternalFunction("diskbuffer_madvise", _i32(_at, _at, _i32))
blosc_decompress = types.ExternalFunction("diskbuffer_decompress", _i32(_at, _at, _at, _i32))
blosc_compress = types.ExternalFunction("diskbuffer_compress", _i32(_i32, _i32, _at, _at, _at, _at, _at, _at, _at, _i32))
lz4_decompress_partial = types.ExternalFunction("diskbuffer_lz4_partial", _i32(_at, _at, _i32, _i32, _i32))
crc32c_extend = types.ExternalFunction("diskbuffer_crc32c_extend", types.uint32(types.uint32, _at, _at)) if HAVE_CRC else None
