"""libwebp's functions for compiled code, called by their addresses, which `diskbuffer.native.webp` looks up.

Where Pillow is missing, the code that holds these calls can still be compiled and loaded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import llvmlite.ir
from numba import types
from numba.extending import intrinsic


def _call(result: Any, *arguments: Any) -> Callable[..., Any]:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        numbers = [
            context.cast(builder, arg, kind, to) for arg, kind, to in zip(args[1:], signature.args[1:], arguments, strict=True)
        ]
        kind = llvmlite.ir.FunctionType(context.get_value_type(result), [context.get_value_type(to) for to in arguments])
        return builder.call(builder.inttoptr(args[0], kind.as_pointer()), numbers)

    return codegen


@intrinsic  # type: ignore[untyped-decorator]
def get_info(_: Any, function: Any, source: Any, size: Any, width: Any, height: Any) -> Any:
    """Call ``WebPGetInfo``, which is at the address `function`. Return 0 if it is no picture.

    `width` and `height` are addresses of an int32 each.
    """
    arguments = (types.intp,) * 4
    return types.int32(types.intp, *arguments), _call(types.int32, *arguments)


@intrinsic  # type: ignore[untyped-decorator]
def decode_into(_: Any, function: Any, source: Any, size: Any, target: Any, room: Any, stride: Any) -> Any:
    """Call ``WebPDecodeRGBInto``, which is at the address `function`. Return 0 where the picture could not be decoded."""
    arguments = (types.intp, types.intp, types.intp, types.intp, types.int32)
    return types.intp(types.intp, *arguments), _call(types.intp, *arguments)
