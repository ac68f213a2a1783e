"""CRC32C of memory, from compiled code: 64 bytes at a time, where the processor can.

`crc32c_extend` is google-crc32c's, with the processor's CRC32 instruction, 8 bytes a cycle at best. With carry-less
multiplication of vectors 256 bytes take about as long as 32 there: what came before is multiplied so that it stands for the
same, 256 bytes later, and added to what comes (Gopal et al., 2009, "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ
Instruction"). On processors without it (AVX-512 and VPCLMULQDQ: Intel since Ice Lake, AMD since Zen 4) it is the library's
function alone, of which this is a stand-in in every respect.
"""

from __future__ import annotations

import platform
from typing import Any

import llvmlite.binding
import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from diskbuffer.native import libraries
from diskbuffer.native.compiling import compiled
from diskbuffer.native.memory import load_u8

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


crc32c_extend: Any = libraries.crc32c_extend or crc32c_slowly  # of what comes before, address, size

_LINE, _LINES, _WORD = 64, 4, 8
_I8, _I32, _I64 = (ir.IntType(bits) for bits in (8, 32, 64))
_VECTOR = ir.VectorType(_I64, _LINE // _WORD)


def _have_instructions() -> bool:
    if numba.config.CPU_NAME or numba.config.CPU_FEATURES or platform.machine() not in ("x86_64", "AMD64"):
        return False
    features = llvmlite.binding.get_host_cpu_features()
    return all(features.get(name) for name in ("sse4.2", "avx512f", "vpclmulqdq"))


def _shift(words: int) -> int:
    """Return what 64 bits are multiplied by to be, in 128 bits, what they are with so many words of zeros behind.

    That is x to the power of 64 * words - 33, modulo the polynomial, its bits in CRC32C's order.
    """
    x = 1
    for _ in range((words - 1) * _WORD):
        x = int(CRC_TABLE[x & 0xFF]) ^ x >> 8
    return x


def _fold(builder: Any, vector: Any, words: int, onto: Any) -> Any:
    """Have a vector stand for the same so many words later, and add it to what is there."""
    kind = ir.FunctionType(_VECTOR, [_VECTOR, _VECTOR, _I8])
    multiply = cgutils.get_or_insert_function(builder.module, kind, "llvm.x86.pclmulqdq.512")
    factors = ir.Constant(_VECTOR, [_shift(words + 1), _shift(words)] * 4)
    low, high = (builder.call(multiply, [vector, factors, _I8(which)]) for which in (0x00, 0x11))
    return builder.xor(builder.xor(low, high), onto)


def _load(builder: Any, address: Any, line: int = 0) -> Any:
    found = builder.load(builder.inttoptr(builder.add(address, _I64(line * _LINE)), _VECTOR.as_pointer()))
    found.align = 1
    return found


@intrinsic  # type: ignore[untyped-decorator]
def _in_lines(_: Any, state: Any, address: Any, lines: Any) -> Any:
    """Go on with lines of 64 bytes, 4 of them at least."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        state, address, lines = args
        block = _I64(_LINE * _LINES)
        first = [_load(builder, address, line) for line in range(_LINES)]
        first[0] = builder.xor(first[0], builder.insert_element(ir.Constant(_VECTOR, [0] * 8), state, _I32(0)))
        held = [cgutils.alloca_once_value(builder, vector) for vector in first]
        at = cgutils.alloca_once_value(builder, builder.add(address, block))
        with cgutils.for_range(builder, builder.sub(builder.udiv(lines, _I64(_LINES)), _I64(1))):
            here = builder.load(at)
            for line, place in enumerate(held):
                builder.store(_fold(builder, builder.load(place), _LINES * _LINE // _WORD, _load(builder, here, line)), place)
            builder.store(builder.add(here, block), at)
        vector = builder.load(held[0])
        for place in held[1:]:
            vector = _fold(builder, vector, _LINE // _WORD, builder.load(place))
        builder.store(vector, held[0])
        with cgutils.for_range(builder, builder.urem(lines, _I64(_LINES))):
            here = builder.load(at)
            builder.store(_fold(builder, builder.load(held[0]), _LINE // _WORD, _load(builder, here)), held[0])
            builder.store(builder.add(here, _I64(_LINE)), at)
        vector, found = builder.load(held[0]), _I64(0)
        step = cgutils.get_or_insert_function(builder.module, ir.FunctionType(_I64, [_I64, _I64]), "llvm.x86.sse42.crc32.64.64")
        for word in range(_LINE // _WORD):
            found = builder.call(step, [found, builder.extract_element(vector, _I32(word))])
        return found

    return types.int64(types.int64, types.intp, types.int64), codegen


@compiled
def _with_vectors(crc: int, address: int, size: int) -> int:
    lines = size // _LINE
    if lines < _LINES:
        return int(crc32c_extend(crc, address, size))
    state = _in_lines(np.int64(~np.uint32(crc)) & 0xFFFFFFFF, address, lines)
    done = lines * _LINE
    return int(crc32c_extend(np.uint32(~np.uint32(state)), address + done, size - done))


crc32c = _with_vectors if _have_instructions() else crc32c_extend  # of what comes before, address, size
