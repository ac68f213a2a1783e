"""C functions that zarr's own dependencies carry, made callable from compiled code, without the GIL.

numcodecs' extension module exports the c-blosc inside it (and the LZ4 inside that) on Linux and macOS; google-crc32c carries
a library for checksums. Their addresses are looked up with ctypes and given to LLVM under names of our own, so that
`numba.types.ExternalFunction` finds them, also from code cached on disk.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import stat
import sys
import tempfile
import warnings
from collections.abc import Callable
from typing import Any, TypeVar

import llvmlite.binding
import llvmlite.ir
import numba
import numcodecs.blosc
import numpy as np
from numba import types
from numba.extending import intrinsic

from diskbuffer.native.compiling import announce

F = TypeVar("F", bound=Callable[..., Any])

announce()


def compiled(function: F) -> F:
    """Compile a function to machine code that holds no GIL and is cached on disk, where there is a place for that."""
    global _elsewhere
    try:
        if _elsewhere is None:
            return _compiled(function, cache=True)
    except RuntimeError:  # numba found no directory that it can write to: neither __pycache__ nor the user's cache
        _elsewhere = _private_directory()
        how = f"is kept in {_elsewhere}" if _elsewhere else "is compiled anew by every process, which takes up to a minute"
        warnings.warn(
            f"numba can write neither beside diskbuffer's files nor to the user's cache directory, so compiled code {how}; set "
            "NUMBA_CACHE_DIR to a directory of your own that can be written to",
            RuntimeWarning,
            stacklevel=2,
        )
    if _elsewhere:
        before, numba.config.CACHE_DIR = numba.config.CACHE_DIR, _elsewhere
        with contextlib.suppress(RuntimeError):  # by now it cannot be written to
            try:  # numba settles it here, and other packages' functions are none of our business
                return _compiled(function, cache=True)
            finally:
                numba.config.CACHE_DIR = before
    return _compiled(function, cache=False)


def _compiled(function: F, *, cache: bool) -> F:
    result: F = numba.njit(nogil=True, cache=cache)(function)
    return result


_elsewhere: str | None = None  # where compiled code is kept in place of numba's directories; "" for nowhere


def _private_directory() -> str:
    """Return a temporary directory that nobody else can write to, "" where there is none: who writes there runs code here."""
    try:
        parent = tempfile.gettempdir()
        if os.path.samefile(parent, os.curdir) and not os.environ.get("TMPDIR"):  # where tempfile goes when all else fails
            return ""
        if not hasattr(os, "getuid"):  # Windows, where temporary directories are a user's own
            path = os.path.join(parent, "diskbuffer-numba")
            os.makedirs(path, exist_ok=True)
            return path
        if _is_open_to_others(os.stat(parent)):
            return ""
        path = os.path.join(parent, f"diskbuffer-numba-{os.getuid()}")
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o700)
        found = os.lstat(path)
        own = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o022
        return path if own else ""
    except OSError:
        return ""


def _is_open_to_others(directory: os.stat_result) -> bool:
    """Tell whether others could put a directory of theirs in the place of one in this directory."""
    sticky, mode = directory.st_mode & stat.S_ISVTX, directory.st_mode
    return directory.st_uid not in (0, os.getuid()) or (bool(mode & 0o022) and not sticky)


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


def _loader(result: Any, bits: int) -> Any:
    @intrinsic  # type: ignore[untyped-decorator]
    def load(_: Any, address: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return builder.load(builder.inttoptr(args[0], llvmlite.ir.IntType(bits).as_pointer()))

        return result(types.intp), codegen

    return load


def _storer(value: Any) -> Any:
    @intrinsic  # type: ignore[untyped-decorator]
    def store(_: Any, address: Any, what: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            number = context.cast(builder, args[1], signature.args[1], value)
            builder.store(number, builder.inttoptr(args[0], number.type.as_pointer()))
            return context.get_dummy_value()

        return types.none(types.intp, value), codegen

    return store


load_i64, load_u32, load_u8 = _loader(types.int64, 64), _loader(types.uint32, 32), _loader(types.uint8, 8)
store_f32 = _storer(types.float32)
store_i64, store_u32, store_u8 = _storer(types.int64), _storer(types.uint32), _storer(types.uint8)


@intrinsic  # type: ignore[untyped-decorator]
def prefetch(_: Any, address: Any) -> Any:
    """Have a line of memory come into the caches, whatever the address."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        i32, byte = llvmlite.ir.IntType(32), llvmlite.ir.IntType(8).as_pointer()
        kind = llvmlite.ir.FunctionType(llvmlite.ir.VoidType(), [byte, i32, i32, i32])
        call = numba.core.cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        builder.call(call, [builder.inttoptr(args[0], byte), i32(0), i32(3), i32(1)])  # to be read, into all caches, as data
        return context.get_dummy_value()

    return types.none(types.intp), codegen


CRC_TABLE = np.zeros(256, np.uint32)  # of the reflected polynomial of CRC32C, 0x1EDC6F41
for _byte in range(256):
    _crc = _byte
    for _ in range(8):
        _crc = _crc >> 1 ^ (0x82F63B78 if _crc & 1 else 0)
    CRC_TABLE[_byte] = _crc


@compiled
def crc32c_slowly(crc: int, address: int, size: int) -> int:
    """Do what the C library's ``crc32c_extend`` does, a byte at a time."""
    found = np.uint32(~np.uint32(crc))
    for i in range(size):
        found = np.uint32(CRC_TABLE[(found ^ load_u8(address + i)) & np.uint32(0xFF)] ^ (found >> np.uint32(8)))
    return np.uint32(~found)  # type: ignore[return-value]


# crc32c_extend(crc of what comes before, address, size)
if HAVE_CRC:
    crc32c_extend = types.ExternalFunction("diskbuffer_crc32c_extend", types.uint32(types.uint32, _at, _at))
else:
    crc32c_extend = crc32c_slowly


@compiled
def _address(array: Any) -> int:
    return int(array.ctypes.data)


def address_of(array: Any) -> int:
    """Return where an array's data lie; four times as fast as ``array.ctypes.data``, but where numba does not know the dtype."""
    return int(array.ctypes.data if array.dtype == np.float16 else _address(array))


@intrinsic  # type: ignore[untyped-decorator]
def fetch_add(_: Any, address: Any, what: Any) -> Any:
    """Add to the int64 at an address, at once for all threads; return what was there. Orders what is before and after it."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        number = context.cast(builder, args[1], signature.args[1], types.int64)
        pointer = builder.inttoptr(args[0], llvmlite.ir.IntType(64).as_pointer())
        return builder.atomic_rmw("add", pointer, number, "seq_cst")

    return types.int64(types.intp, types.int64), codegen
