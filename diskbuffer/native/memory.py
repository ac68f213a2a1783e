"""Memory at an address, for what recording compiles: loads and stores, and arrays."""

from __future__ import annotations

from typing import Any

import numba
from numba import types
from numba.extending import intrinsic

from diskbuffer.native.compiling import compiled


def _loader(result: Any, align: int | None = None) -> Any:
    @intrinsic  # type: ignore[untyped-decorator]
    def load(_: Any, address: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return builder.load(builder.inttoptr(args[0], context.get_value_type(result).as_pointer()), align=align)

        return result(types.intp), codegen

    return load


def _storer(value: Any, align: int | None = None) -> Any:
    @intrinsic  # type: ignore[untyped-decorator]
    def store(_: Any, address: Any, what: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            number = context.cast(builder, args[1], signature.args[1], value)
            builder.store(number, builder.inttoptr(args[0], number.type.as_pointer()), align=align)
            return context.get_dummy_value()

        return types.none(types.intp, value), codegen

    return store


load_i64, load_i32, load_u32, load_u8 = map(_loader, (types.int64, types.int32, types.uint32, types.uint8))
load_f64 = _loader(types.float64)
load_any_u64, load_any_u32 = _loader(types.uint64, 1), _loader(types.uint32, 1)  # wherever they begin
store_f32 = _storer(types.float32)
store_i64, store_u32, store_u8 = _storer(types.int64), _storer(types.uint32), _storer(types.uint8)
store_any_u64, store_any_u32 = _storer(types.uint64, 1), _storer(types.uint32, 1)  # wherever they begin


def _pointer(kind: Any) -> Any:
    @intrinsic  # type: ignore[untyped-decorator]
    def pointer(_: Any, address: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return builder.inttoptr(args[0], context.get_value_type(signature.return_type))

        return types.CPointer(kind)(types.intp), codegen

    return pointer


_int64s, _int8s = map(_pointer, (types.int64, types.int8))


@compiled
def int64_array(address: int, shape: tuple[int, ...]) -> Any:
    """Return what lies at an address as an array."""
    return numba.carray(_int64s(address), shape)


@compiled
def int8_array(address: int, shape: tuple[int, ...]) -> Any:
    """Return what lies at an address as an array."""
    return numba.carray(_int8s(address), shape)
