"""What Tianshou's buffers have in memory, `_meta`: keys, of which each is read from the disk when it is indexed."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from diskbuffer.adapters.tianshou.lazy_key import LazyKey
from diskbuffer.errors import InputError

Array = npt.NDArray[Any]


class Meta:
    """The keys of a buffer, under the names that Tianshou's code looks them up by.

    Parameters
    ----------
    flags : dict of str to array
        Those that are in memory.
    keys : callable
        Returns the others that there are.
    read : callable
        ``read(key, places)`` returns a key's values.
    write : callable
        ``write(key, places, values)``
    part : (int, int), optional
        The places that these are, where they are some of a buffer's.
    """

    def __init__(
        self,
        flags: dict[str, Array],
        keys: Callable[[], list[str]],
        read: Callable[[str, Array], Any],
        write: Callable[[str, Array, Array], None],
        part: tuple[int, int] | None = None,
    ) -> None:
        self._flags, self._keys, self._read, self._write, self._range = flags, keys, read, write, part

    def part(self, first: int, until: int) -> Meta:
        """Return what a buffer has that is some places of this one.

        It does not keep this one alive: Tianshou has the parts in an array of objects, through which no garbage is collected.
        """
        whole = weakref.proxy(self)
        return Meta(
            {name: values[first:until] for name, values in self._flags.items()},
            lambda: whole._keys(),
            lambda key, places: whole._read(key, places + first),
            lambda key, places, values: whole._write(key, places + first, values),
            (first, until),
        )

    def __getstate__(self) -> dict[str, Any]:
        """Return what a pickle has: of a part only which places it has, as its whole makes it anew."""
        return {"_range": self._range} if self._range else self.__dict__

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)

    def hold(self, name: str, values: Array) -> None:
        """Have a key in memory, (size, ...) of the whole buffer."""
        self._flags[name] = values if self._range is None else values[slice(*self._range)]

    def get_keys(self) -> list[str]:
        """Return all keys, none before the first step."""
        found = self._keys()
        return list(dict.fromkeys([*found, *self._flags])) if found else []

    def __getitem__(self, key: str) -> Any:
        if key in self._flags and self._keys():
            return self._flags[key]
        if not isinstance(key, str) or key not in self._keys():
            raise KeyError(key)
        return LazyKey(len(self._flags["done"]), lambda places: self._read(key, places))

    def set_array_at_key(self, seq: Array, key: str, index: Any = None, default_value: float | None = None) -> None:
        """Write a key of some steps, or of all, as Tianshou's `Batch` does."""
        values, size = np.asarray(seq), len(self._flags["done"])
        places = np.arange(size)[slice(None) if index is None else index]
        if len(values) != len(places):
            raise ValueError(f"{key}: {len(values)} values for {len(places)} steps; for some of them give an index")
        if index is not None and default_value is not None and key not in self._keys():
            self._write(key, np.arange(size), np.full((size, *values.shape[1:]), default_value, values.dtype))
        self._write(key, places, values)

    def __setitem__(self, index: Any, value: Any) -> None:
        raise InputError("what was added cannot be changed; new keys can be written, with set_array_at_key")

    def __setattr__(self, name: str, value: Any) -> None:
        """Have other values of a key that is in memory, as algorithms of several agents do with rewards for a while."""
        if name.startswith("_"):
            super().__setattr__(name, value)
        elif name in self._flags:
            self._flags[name] = value
        else:
            raise InputError(f"{name!r} is on disk, and not changed; write under another key, with set_array_at_key")

    def __repr__(self) -> str:
        return f"Meta({', '.join(self.get_keys())})"
