"""Sixteen numbers at once: what LLVM's vectors do for a node of the sum tree, as intrinsics for compiled code.

Spelled out, because LLVM does not find them by itself in loops over arrays: such loops take five times as long to set, twice as
long to find, and a draw and an update of 256 in a million steps (`bench.prioritized`) half as long again. The order of all sums
is part of the code, so that every processor gets the same bits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

FAN = 16  # children of a node: one cache line of float32, two of float64

_i1, _i16, _i32, _i64, _f32, _f64 = (
    ir.IntType(1),
    ir.IntType(FAN),
    ir.IntType(32),
    ir.IntType(64),
    ir.FloatType(),
    ir.DoubleType(),
)
_F64S = ir.VectorType(_f64, FAN)
_ZEROS = ir.Constant(_F64S, [0.0] * FAN)


def _load(builder: Any, address: Any, element: Any) -> Any:
    """Load what lies at an address; floats of 32 bits become doubles."""
    pointer = builder.inttoptr(address, ir.VectorType(element, FAN).as_pointer())
    found = builder.load(pointer, align=8 if element is _f64 else 4)
    return builder.fpext(found, _F64S) if element is _f32 else found


def _store(builder: Any, address: Any, value: Any) -> None:
    builder.store(value, builder.inttoptr(address, value.type.as_pointer()), align=8 if value.type is _f64 else 4)


def _shuffle(builder: Any, a: Any, b: Any, lanes: list[int]) -> Any:
    return builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(_i32, len(lanes)), lanes))


def _fold(builder: Any, values: Any, operation: Callable[[Any, Any], Any]) -> Any:
    """Reduce to one number, halving the vector."""
    width = FAN
    while width > 1:
        width //= 2
        upper = _shuffle(builder, values, values, list(range(width, 2 * width)))
        values = operation(_shuffle(builder, values, values, list(range(width))), upper)
    return builder.extract_element(values, _i32(0))


def _adder(element: Any) -> Any:
    @intrinsic  # type: ignore[untyped-decorator]
    def add(_: Any, _numbers: Any, _to: Any) -> Any:
        """Store the sum of sixteen numbers, a double."""

        def codegen(context: Any, builder: Any, _: Any, args: Any) -> Any:
            _store(builder, args[1], _fold(builder, _load(builder, args[0], element), builder.fadd))
            return context.get_dummy_value()

        return types.none(types.intp, types.intp), codegen

    return add


@intrinsic  # type: ignore[untyped-decorator]
def store_least(_: Any, _numbers: Any, _to: Any) -> Any:
    """Store the smallest above zero of sixteen non-negative float32, or zero where there is none.

    By their bits, which are ordered as the numbers are; less one, so that zero becomes the largest.
    """

    def codegen(context: Any, builder: Any, _: Any, args: Any) -> Any:
        ones = ir.Constant(ir.VectorType(_i32, FAN), [1] * FAN)
        bits = builder.sub(_load(builder, args[0], _i32), ones)
        least = _fold(builder, bits, lambda a, b: builder.select(builder.icmp_unsigned("<", a, b), a, b))
        _store(builder, args[1], builder.add(least, _i32(1)))
        return context.get_dummy_value()

    return types.none(types.intp, types.intp), codegen


def _picker(element: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        values = ends = _load(builder, args[0], element)
        for shift in (1, 2, 4, 8):  # prefix sums: Hillis and Steele, 1986, "Data parallel algorithms"
            ends = builder.fadd(ends, _shuffle(builder, ends, _ZEROS, [FAN] * shift + list(range(FAN - shift))))
        one = builder.insert_element(ir.Constant(_F64S, ir.Undefined), args[1], _i32(0))
        mass = _shuffle(builder, one, one, [0] * FAN)
        there = builder.bitcast(builder.fcmp_ordered(">", values, _ZEROS), _i16)
        fit = builder.and_(there, builder.bitcast(builder.fcmp_ordered("<", mass, ends), _i16))
        # None fits where rounding, or the caller, let the mass be too large: then the last above zero. "or 1" is for no such one.
        leading = builder.ctlz(builder.or_(there, _i16(1)), _i1(0))
        last = builder.sub(_i16(FAN - 1), leading)
        lane = builder.select(builder.icmp_unsigned("==", fit, _i16(0)), last, builder.cttz(fit, _i1(0)))
        before = _shuffle(builder, ends, _ZEROS, [FAN, *range(FAN - 1)])
        rest = builder.fsub(args[1], builder.extract_element(before, builder.zext(lane, _i32)))
        return context.make_tuple(builder, signature.return_type, [builder.zext(lane, _i64), rest])

    @intrinsic  # type: ignore[untyped-decorator]
    def pick(_: Any, _numbers: Any, _mass: Any) -> Any:
        """Return which of sixteen a mass falls on, the first above zero with the sum up to it above the mass, and the rest."""
        return types.Tuple((types.int64, types.float64))(types.intp, types.float64), codegen

    return pick


store_sum_f32, store_sum_f64 = _adder(_f32), _adder(_f64)
pick_f32, pick_f64 = _picker(_f32), _picker(_f64)
