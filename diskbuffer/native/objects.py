"""Where CPython and numpy keep what objects are, for compiled code that is handed many of them at once, as one address.

To hand an array to a compiled function costs a fifth of a microsecond, and to look at its dtype and its shape in Python as much
again. What is read here are fields of the C API (`PyTupleObject`, `PyFloatObject`, `PyArrayObject_fields` and the scalars of
``numpy/arrayscalars.h``), which C extensions are compiled against. They are looked for when this is imported: where they are not
as expected, `TUPLE_ITEMS` is 0, and nobody uses the others.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

TYPE = 8  # of any object: the address of its type
NUMBER = 16  # of a float, and of a scalar of numpy's: the value
DATA, NDIM, SHAPE, DTYPE, FLAGS = 16, 24, 32, 56, 64  # of an array
CONTIGUOUS, ALIGNED = 0x1, 0x100  # among an array's flags: C order, and elements where the processor wants them


def _word(address: int) -> int:
    return ctypes.c_int64.from_address(address).value


def _is_as_expected(array: Any) -> bool:
    at = id(array)
    shape = _word(at + SHAPE)
    flags = ctypes.c_int32.from_address(at + FLAGS).value
    return (
        _word(at + TYPE) == id(np.ndarray)
        and _word(at + DATA) == array.ctypes.data
        and ctypes.c_int32.from_address(at + NDIM).value == array.ndim
        and tuple(_word(shape + 8 * n) for n in range(array.ndim)) == array.shape
        and _word(at + DTYPE) == id(array.dtype)
        and bool(flags & CONTIGUOUS) == array.flags.c_contiguous
        and bool(flags & ALIGNED) == array.flags.aligned
    )


def _find_items() -> int:
    """Return where the items of a tuple begin; 0 where something is not as expected."""
    if ctypes.sizeof(ctypes.c_void_p) != 8 or object.__basicsize__ != 16:  # 32 bits; a Python without the GIL
        return 0
    block = np.arange(24, dtype=np.int32).reshape(2, 3, 4)
    arrays = [block, block[:, ::2], block.T, np.zeros((), np.bool_), np.frombuffer(bytes(9), np.uint8)[1:].view(np.float64)]
    scalars = (1.5, np.float64(-2.5), np.float32(0.5), np.int64(-3), np.uint8(200))
    if not all(map(_is_as_expected, arrays)):
        return 0
    for scalar in scalars:
        kept = np.array(scalar)
        if ctypes.string_at(id(scalar) + NUMBER, kept.itemsize) != kept.tobytes() or _word(id(scalar) + TYPE) != id(type(scalar)):
            return 0
    begin = tuple.__basicsize__
    return begin if all(_word(id(scalars) + begin + 8 * n) == id(item) for n, item in enumerate(scalars)) else 0


TUPLE_ITEMS = _find_items()  # of a tuple: the addresses of what is in it
