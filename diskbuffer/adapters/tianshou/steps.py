"""All steps of a buffer as one Batch, of which nothing is in memory, for algorithms that learn from whole rollouts."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import wraps
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
import torch
from tianshou.data import Batch

from diskbuffer.errors import InputError

Array = npt.NDArray[Any]
Int64 = npt.NDArray[np.int64]
_OWN = ("_places", "_read", "_keys", "_key", "_directory", "_kept", "_tensors", "_gone")


def _of_all(name: str) -> Callable[..., Any]:
    """Return a method of Batch's that needs all steps, and returns something new: they are read into memory."""
    method = getattr(Batch, name)

    @wraps(method)
    def of_all(self: LazySteps, *args: Any, **kwargs: Any) -> Any:
        return method(self.in_memory(), *args, **kwargs)

    return of_all


def _refused(name: str) -> Callable[..., NoReturn]:
    """Return what there is in place of a method of Batch's that changes steps."""

    def refused(*_: Any, **__: Any) -> NoReturn:
        raise InputError(f"{name} would change steps on disk; assign a key, or use what in_memory() returns")

    return refused


class LazySteps(Batch):
    """A Batch that is read when it is split, or when a key is asked for.

    Keys that are assigned, such as advantages, are this Batch's alone: they are in temporary files, without a name, that go with
    it. What a key returns is a copy: to change a part, assign it again. `split` reads one minibatch ahead of the one that is
    learned from.

    Parameters
    ----------
    places : (n,) int64
    read : callable
        ``read(places)`` returns steps as a Batch.
    keys : callable
        Returns the keys that there are.
    key : callable
        ``key(name, places)`` returns one.
    directory : path-like, optional
        Where the temporary files are; where the system has them, if it is missing.
    """

    def __init__(
        self,
        places: Int64,
        read: Callable[[Int64], Any],
        keys: Callable[[], list[str]],
        key: Callable[[str, Int64], Any],
        directory: Path | None = None,
    ) -> None:
        kept, tensors, gone = dict[str, Any](), dict[str, torch.device](), set[str]()
        for name, value in zip(_OWN, (places, read, keys, key, directory, kept, tensors, gone), strict=True):
            object.__setattr__(self, name, value)

    def in_memory(self) -> Any:
        """Return all of it, read into memory, as a Batch of Tianshou's."""
        return Batch(dict(self.items()))

    def get_keys(self) -> Any:
        """Return the keys."""
        return dict.fromkeys(key for key in [*self._keys(), *self._kept] if key not in self._gone).keys()

    keys = get_keys

    def __len__(self) -> int:
        return len(self._places)

    @property
    def shape(self) -> list[int]:
        """Only its first axis is known."""
        return [len(self)]

    def __getattr__(self, name: str) -> Any:
        if name in _OWN or name.startswith("__"):
            raise AttributeError(name)
        return self._value(name)

    def _value(self, name: str) -> Any:
        """Return a key, which is read as a whole."""
        if name in self._kept:
            kept = self._kept[name]
            return self._as_given(name, np.array(kept)) if isinstance(kept, np.memmap) else kept
        if name not in self.get_keys():
            raise AttributeError(f"there is no {name} in these steps")
        return self._as_given(name, self._key(name, self._places))

    def pop(self, key: str, *default: Any) -> Any:
        """Return a key, and be without it; its column stays."""
        if key not in self.get_keys():
            if default:
                return default[0]
            raise KeyError(key)
        value = self._value(key)
        self._gone.add(key)
        return value

    def __setattr__(self, name: str, value: Any) -> None:
        self._gone.discard(name)
        self._tensors.pop(name, None)
        value = Batch(value) if isinstance(value, dict) else value
        if isinstance(value, Batch) or not self._is_of_each(value):
            self._kept[name] = value
            return
        values = value.detach().cpu().numpy() if isinstance(value, torch.Tensor) else np.asarray(value)
        self._kept[name] = value if values.dtype.hasobject or not values.nbytes else _in_file(values, self._directory)
        if isinstance(value, torch.Tensor):
            self._tensors[name] = value.device

    def _is_of_each(self, value: Any) -> bool:
        """Tell whether there is a value of every step."""
        if isinstance(value, Batch):
            return bool(value.get_keys()) and value.shape[:1] == [len(self)]
        return isinstance(value, torch.Tensor | np.ndarray | list) and np.shape(value)[:1] == (len(self),)

    def _as_given(self, name: str, values: Any) -> Any:
        return torch.from_numpy(np.ascontiguousarray(values)).to(self._tensors[name]) if name in self._tensors else values

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, str):
            return self._value(index)
        found = self._read(self._places[index])
        for name in self._gone:
            found.__dict__.pop(name, None)
        for name, values in self._kept.items():
            if name in self._gone:
                continue
            part = values[index] if self._is_of_each(values) else values
            found.__dict__[name] = self._as_given(name, np.array(part)) if isinstance(values, np.memmap) else part
        return found

    def __contains__(self, key: object) -> bool:
        return key in self.get_keys()

    def get(self, key: str, default: Any = None) -> Any:
        """Return a key, which is read as a whole."""
        return self._value(key) if key in self else default

    def items(self) -> Any:
        """Return all keys, which are read as a whole."""
        return [(key, self._value(key)) for key in self.get_keys()]

    def values(self) -> Any:
        """Return all keys' values, which are read as a whole."""
        return [self._value(key) for key in self.get_keys()]

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> Any:
        """Pickle, and copy, what it is in memory."""
        return Batch, (dict(self.items()),)

    def __delattr__(self, name: str) -> None:
        self.pop(name)

    __delitem__ = __delattr__

    def update(self, batch: Any = None, **others: Any) -> None:
        """Assign keys."""
        for name, value in (dict(batch or {}) | others).items():
            setattr(self, name, value)

    def set_array_at_key(self, seq: Array, key: str, index: Any = None, default_value: float | None = None) -> None:
        """Assign a key, of some steps or of all, as Batch does."""
        if index is None:
            setattr(self, key, seq)
            return
        if key in self:
            values = np.array(getattr(self, key))
        else:
            values = np.full((len(self), *np.shape(seq)[1:]), np.nan if default_value is None else default_value)
        values[index] = seq
        setattr(self, key, values)

    def __iter__(self) -> Iterator[Any]:
        return (self[n] for n in range(len(self)))

    def __repr__(self) -> str:
        return f"LazySteps({len(self)} on disk: {', '.join(self.get_keys())})"

    def split(self, size: int, shuffle: bool = True, merge_last: bool = False) -> Iterator[Any]:
        """Yield minibatches as `Batch.split` does, of as many steps, in the same order."""
        length = len(self)
        size = length if size == -1 else size
        if size < 1:
            raise ValueError(f"size must be at least 1, or -1 for all, found {size}")
        order = np.random.permutation(length) if shuffle else np.arange(length)  # noqa: NPY002  as Tianshou does
        begins = list(range(0, length, size))
        if not begins:
            return
        if merge_last and length % size and len(begins) > 1:
            begins.pop()
        parts = [order[begin:until] for begin, until in zip(begins, [*begins[1:], length], strict=True)]
        with ThreadPoolExecutor(1, "diskbuffer-steps") as ahead:
            coming = ahead.submit(self.__getitem__, parts[0])
            for following in parts[1:]:
                batch, coming = coming.result(), ahead.submit(self.__getitem__, following)
                yield batch
            yield coming.result()


def _in_file(values: Array, directory: Path | None) -> Array:
    """Return an array whose memory is a temporary file without a name."""
    try:
        file = tempfile.TemporaryFile(dir=directory)  # noqa: SIM115  closed below
    except PermissionError:  # of a process that may only read the store
        file = tempfile.TemporaryFile()  # noqa: SIM115
    with file:
        np.ascontiguousarray(values).tofile(file)  # where the disk is full, this raises
        file.flush()
        return np.memmap(file, values.dtype, "r", shape=values.shape)


for _name in (
    *("__add__", "__eq__", "__mul__", "__truediv__", "apply_values_transform", "dropnull", "hasnull", "isnull"),
    *("replace_empty_batches_by_none", "to_at_least_2d", "to_dict", "to_list_of_dicts", "to_numpy", "to_torch"),
):
    setattr(LazySteps, _name, _of_all(_name))
for _name in ("__iadd__", "__imul__", "__itruediv__", "__setitem__", "cat_", "empty_", "stack_", "to_numpy_", "to_torch_"):
    setattr(LazySteps, _name, _refused(_name))
