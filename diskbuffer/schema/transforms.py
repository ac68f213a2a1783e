"""What pictures become before they are stored: grey, or of another size. Declared with a column, and kept in its store."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

from diskbuffer.arguments.integers import integer, shown
from diskbuffer.errors import InputError, SchemaError

MOST_PIXELS = 2**23  # of a picture that is given: 4K has fewer. `native/kernels/transforms.cpp` relies on it
_NOTATION = re.compile(r"greyscale|resize:([1-9]\d{0,6})x([1-9]\d{0,6})")


@dataclass(frozen=True)
class Greyscale:
    """Make pictures grey: ``(height, width, 3)``, red, green and blue, become ``(height, width)``.

    A pixel becomes ``(19595 * red + 38470 * green + 7471 * blue + 32768) // 65536``, as Pillow's ``convert("L")`` has it: the
    luma of ITU-R BT.601, in integers.
    """

    order: ClassVar[int] = 0

    def __str__(self) -> str:
        return "greyscale"

    def result(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of what pictures of a shape become; a SchemaError where they cannot."""
        if len(shape) != 3 or shape[2] != 3:
            raise SchemaError(f"greyscale makes pictures of shape (height, width, 3) grey, found {shape}")
        return shape[:2]


@dataclass(frozen=True)
class Resize:
    """Scale pictures to a height and a width: ``(height, width)``, or ``(height, width, channels)``.

    A pixel becomes the mean of the area that it covers in the picture that was given, where pixels that it covers in part count
    in part. It is computed in integers, and rounded once, a half up. A picture of that size already stays as it is.

    Parameters
    ----------
    height, width : int
        In pixels.
    """

    height: int
    width: int
    order: ClassVar[int] = 1

    def __post_init__(self) -> None:
        try:
            size = integer("height", self.height), integer("width", self.width)
        except InputError:
            size = 0, 0
        if size == (0, 0) or size[0] * size[1] > MOST_PIXELS:
            raise SchemaError(
                f"Resize takes a height and a width in pixels, of {MOST_PIXELS} pixels at most, found "
                f"{shown(self.height)} and {shown(self.width)}"
            )
        object.__setattr__(self, "height", size[0])
        object.__setattr__(self, "width", size[1])

    def __str__(self) -> str:
        return f"resize:{self.height}x{self.width}"

    def result(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of what pictures of a shape become; a SchemaError where they cannot."""
        if len(shape) not in (2, 3):
            raise SchemaError(f"{self} scales pictures of shape (height, width) or (height, width, channels), found {shape}")
        return self.height, self.width, *shape[2:]


Transforms: TypeAlias = tuple[Greyscale | Resize, ...]


def transforms_of(transform: Any) -> Transforms:
    """Return transforms in the order in which they are applied: pictures become grey first, which takes less time.

    `transform` is one, or several, or their notation ("greyscale", "resize:84x84"); a SchemaError where it is something else.
    """
    several = transform if isinstance(transform, tuple | list) else () if transform is None else (transform,)
    transforms = [_parse(each) if isinstance(each, str) else each for each in several]
    for each in transforms:
        if not isinstance(each, Greyscale | Resize):
            raise SchemaError(f"a column's transform consists of Greyscale() and Resize(height, width), found {each!r}")
    if len({type(each) for each in transforms}) < len(transforms):
        raise SchemaError(f"a column's transform has each kind once, found {notation(tuple(transforms))}")
    return tuple(sorted(transforms, key=lambda each: each.order))


def notation(transforms: Transforms) -> str:
    """Return transforms as users write them on a command line: "greyscale,resize:84x84"."""
    return ",".join(map(str, transforms))


def result_of(transforms: Transforms, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of what pictures of a shape become; a SchemaError where they cannot."""
    for each in transforms:
        shape = each.result(shape)
    return shape


def is_grey(transforms: Transforms) -> bool:
    """Return whether pictures become grey."""
    return any(isinstance(each, Greyscale) for each in transforms)


def picture_axes(transforms: Transforms, shape: tuple[int, ...]) -> tuple[int | None, ...]:
    """Return the shape of pictures that become rows of a shape; None for an axis that may have any length."""
    sized = any(isinstance(each, Resize) for each in transforms)
    plane: tuple[int | None, ...] = (None, None) if sized else shape[:2]
    return (*plane, 3) if is_grey(transforms) else (*plane, *shape[2:])


def are_pictures(shape: tuple[int, ...], axes: tuple[int | None, ...]) -> bool:
    """Return whether a shape is one that `picture_axes` returned."""
    return len(shape) == len(axes) and all(expected in (None, n) for n, expected in zip(shape, axes, strict=True))


def check_shape(transforms: Transforms, shape: tuple[int, ...], dtype: str) -> None:
    """Refuse transforms that do not make rows of a shape and dtype."""
    if not transforms:
        return
    if dtype != "uint8":
        raise SchemaError(f"a column with a transform holds pictures of uint8, found {dtype}")
    axes = picture_axes(transforms, shape)
    if len(shape) not in (2, 3) or result_of(transforms, tuple(n or 1 for n in axes)) != shape:
        raise SchemaError(
            f"a column's shape is that of what is stored: {notation(transforms)} does not make pictures of shape {shape}"
        )


def _parse(text: str) -> Greyscale | Resize:
    match = _NOTATION.fullmatch(text.strip())
    if match is None:
        raise SchemaError(f"a transform is written as greyscale or resize:HEIGHTxWIDTH, such as resize:84x84, found {text!r}")
    return Resize(int(match[1]), int(match[2])) if match[1] else Greyscale()
