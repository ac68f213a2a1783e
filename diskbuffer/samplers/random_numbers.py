"""The numbers of numpy's Philox generator, for compiled code: the same as ``Generator(Philox(...)).integers`` draws.

Philox is a function of a key and a counter (Salmon et al., 2011, "Parallel random numbers: as easy as 1, 2, 3"), four numbers of
64 bits a time. Bounded ones are made by multiplying, without a division (Lemire, 2019, "Fast random integer generation in an
interval"). Setting a generator of numpy's to a batch and drawing from it takes some 15 us, whatever the size of the batch.
"""

from __future__ import annotations

from typing import Any

import llvmlite.ir
import numpy as np
from numba import types
from numba.extending import intrinsic

from diskbuffer.native.compiling import compiled

MOST = 2**32  # of these, numpy draws by other rules
_ROUNDS = 10
_M0, _M1 = np.uint64(0xD2E7470EE14C6C93), np.uint64(0xCA5A826395121157)
_W0, _W1 = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBB67AE8584CAA73B)
_LOW, _HALF = np.uint64(0xFFFFFFFF), np.uint64(32)


@intrinsic  # type: ignore[untyped-decorator]
def _upper(_: Any, _a: Any, _b: Any) -> Any:
    """Return the upper 64 bits of a product of two numbers of 64 bits."""

    def codegen(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        wide, narrow = llvmlite.ir.IntType(128), llvmlite.ir.IntType(64)
        product = builder.mul(builder.zext(args[0], wide), builder.zext(args[1], wide))
        return builder.trunc(builder.lshr(product, wide(64)), narrow)

    return types.uint64(types.uint64, types.uint64), codegen


@compiled
def integers(key: Any, third: int, fourth: int, below: int, found: Any) -> None:
    """Fill an array with numbers from 0 to `below` - 1, at most `MOST`: those from the counter (0, 0, third, fourth) on."""
    if below <= 1:
        found[:] = 0
        return
    bound = np.uint64(below)
    threshold = (np.uint64(MOST) - bound) % bound
    block, numbers, at = np.uint64(0), np.empty(8, np.uint64), 8
    for i in range(found.shape[0]):
        while True:
            if at == 8:
                block += np.uint64(1)
                _block(key, block, np.uint64(third), np.uint64(fourth), numbers)
                at = 0
            product = numbers[at] * bound
            at += 1
            if (product & _LOW) >= threshold:
                break
        found[i] = np.int64(product >> _HALF)


@compiled
def _block(key: Any, first: Any, third: Any, fourth: Any, numbers: Any) -> None:
    """Fill in the eight numbers of 32 bits that a counter stands for."""
    a, b, c, d = first, np.uint64(0), third, fourth
    k0, k1 = key[0], key[1]
    for _ in range(_ROUNDS):
        a, b, c, d = _upper(_M1, c) ^ b ^ k0, c * _M1, _upper(_M0, a) ^ d ^ k1, a * _M0
        k0, k1 = k0 + _W0, k1 + _W1
    numbers[0], numbers[1], numbers[2], numbers[3] = a & _LOW, a >> _HALF, b & _LOW, b >> _HALF
    numbers[4], numbers[5], numbers[6], numbers[7] = c & _LOW, c >> _HALF, d & _LOW, d >> _HALF
