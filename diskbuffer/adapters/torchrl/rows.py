"""Steps of a storage as a tensordict of which each entry is read when it is asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn, Self

import torch
from tensordict import TensorDict

from diskbuffer.adapters.torchrl.entries import as_tuple
from diskbuffer.errors import InputError

_HARMLESS = {  # methods in place that change no value
    "auto_batch_size_",
    "auto_device_",
    "clear_device_",
    "clear_refs_for_compile_",
    "del_",
    "detach_",
    "filter_empty_",
    "lock_",
    "memmap_",
    "memmap_refresh_",
    "pin_memory_",
    "rename_",
    "rename_key_",
    "requires_grad_",
    "share_memory_",
    "unlock_",
}
_OPERATORS = ("__iadd__", "__imul__", "__ipow__", "__isub__", "__itruediv__", "_stack_onto_", "_stack_onto_at_")

_A_TENSOR = torch.empty(0)


class Later(NamedTuple):
    """A value that is read when it is first looked at."""

    read: Callable[[], torch.Tensor]


class Rows(TensorDict):  # type: ignore[misc]
    """Steps of a storage: ``storage[index]["next", "done"]`` reads one column, and no frame."""

    @classmethod
    def of(cls, tree: dict[str, Any], batch_size: torch.Size) -> Self:
        """Make one; the tree's leaves are `Later`."""
        rows = cls({}, batch_size=batch_size)
        rows._tensordict = _Lazy(  # what tensordicts keep their entries in
            {name: cls.of(value, batch_size) if isinstance(value, dict) else value for name, value in tree.items()}
        )
        return rows

    def keys(self, include_nested: bool = False, leaves_only: bool = False, is_leaf: Any = None, *, sort: bool = False) -> Any:
        """Return the keys; none of the entries is read for them."""
        if not (include_nested or leaves_only or is_leaf):
            return super().keys(sort=sort)
        return self._outline().keys(include_nested, leaves_only, is_leaf, sort=sort)

    def _outline(self) -> TensorDict:
        """Return the same keys; a value that was not read is an empty tensor, of which keys look at the type alone."""
        values = {key: dict.__getitem__(self._tensordict, key) for key in self._tensordict}
        outlines = {key: value._outline() for key, value in values.items() if isinstance(value, Rows)}
        return TensorDict(values | outlines | {key: _A_TENSOR for key, value in values.items() if isinstance(value, Later)}, [])

    def exclude(self, *keys: Any, inplace: bool = False) -> Any:
        """Return what is left, read; what is excluded is not."""
        excluded, every = list(map(as_tuple, keys)), map(as_tuple, self.keys(True, True))
        left = [key for key in every if not any(key[: len(one)] == one for one in excluded)]
        selected = self.select(*left, inplace=inplace)
        return selected if inplace else selected.to_tensordict()


class Span(Rows):
    """Places of a storage that lie one behind the other, as ``storage[:]``.

    Entries can be added and replaced here, which changes nothing in the storage. Methods that would change entries in place, and
    so the storage, if that held them in memory, are refused.
    """

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise InputError(
            "steps in a DiskStorage are not changed in place; sample them, change the sample, and extend the buffer with it"
        )

    def __setitem__(self, index: Any, value: Any) -> None:
        if not isinstance(index, str) and not (isinstance(index, tuple) and all(isinstance(part, str) for part in index)):
            self._refuse()
        self.set(index, value)


for _name in (*_OPERATORS, *dir(TensorDict)):
    if _name in _OPERATORS or (_name.endswith("_") and not _name.startswith("_") and _name not in _HARMLESS):
        setattr(Span, _name, Span._refuse)


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
