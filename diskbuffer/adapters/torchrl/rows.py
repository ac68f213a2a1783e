"""A tensordict of which each entry is read from the disk when it is asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn

import torch
from tensordict import TensorDict

from diskbuffer.errors import InputError


class Later(NamedTuple):
    """A value that is read when it is first looked at."""

    read: Callable[[], torch.Tensor]


class LazyRows(TensorDict):  # type: ignore[misc]
    """Many steps of a storage: ``storage[:]["next", "done"]`` reads one column, and no frame.

    Entries can be added and replaced here, which changes nothing in the storage. Methods that would change entries in place, and
    so the storage, if that held them in memory, are refused. An entry that was read is a tensor, and a copy: what is done to it
    in place, as by ``storage[:]["reward"] *= 2``, is done to the copy alone.
    """

    @classmethod
    def of(cls, tree: dict[str, Any], batch_size: torch.Size) -> LazyRows:
        """Make one; the tree's leaves are `Later`."""
        found = cls({}, batch_size=batch_size)
        found._tensordict = _Lazy(  # what tensordicts keep their entries in
            {name: cls.of(value, batch_size) if isinstance(value, dict) else value for name, value in tree.items()}
        )
        return found

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise InputError(
            "steps in a DiskStorage are not changed in place; set whole steps with storage[index] = tensordict, or sample them, "
            "change the sample, and extend the buffer with it"
        )

    def exclude(self, *keys: Any, inplace: bool = False) -> Any:
        """Return what is left, read."""
        return self.to_tensordict().exclude(*keys, inplace=inplace)

    def __setitem__(self, index: Any, value: Any) -> None:
        if not isinstance(index, str) and not (isinstance(index, tuple) and all(isinstance(part, str) for part in index)):
            self._refuse()
        self.set(index, value)


_IN_PLACE = (
    *("set", "set_at", "update", "update_at", "zero", "fill", "copy", "copy_at", "masked_fill", "apply", "load", "_stack_onto"),
    *(
        "_stack_onto_at",
        "abs",
        "acos",
        "add",
        "addcdiv",
        "addcmul",
        "asin",
        "atan",
        "ceil",
        "clamp_max",
        "clamp_min",
        "cos",
        "cosh",
    ),
    *(
        "div",
        "erf",
        "erfc",
        "exp",
        "expm1",
        "floor",
        "frac",
        "lerp",
        "lgamma",
        "log",
        "log10",
        "log1p",
        "log2",
        "maximum",
        "minimum",
    ),
    *("mul", "neg", "pow", "reciprocal", "round", "sigmoid", "sign", "sin", "sinh", "sqrt", "sub", "tan", "tanh", "trunc"),
)
for _name in (*(f"{name}_" for name in _IN_PLACE), "__iadd__", "__imul__", "__ipow__", "__isub__", "__itruediv__"):
    setattr(LazyRows, _name, LazyRows._refuse)


class _Lazy(dict[str, Any]):
    def __getitem__(self, key: str) -> Any:
        value = super().__getitem__(key)
        if isinstance(value, Later):
            value = self[key] = value.read()
        return value

    def get(self, key: str, default: Any = None) -> Any:
        try:
            return self[key]
        except KeyError:
            return default

    def values(self) -> Any:
        return [self[key] for key in self]

    def items(self) -> Any:
        return [(key, self[key]) for key in self]

    def pop(self, key: str, *default: Any) -> Any:
        if key in self:
            self[key]
        return super().pop(key, *default)

    def copy(self) -> dict[str, Any]:
        return dict(self.items())
