"""What the comparisons with other libraries share: random values, and pairs of buffers that are told the same."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.support.specimens import copy_while_open

Array = npt.NDArray[Any]
_DTYPES = ("uint8", "int8", "int32", "int64", "float16", "float32", "float64", "bool")
_ODD = (np.nan, np.inf, -np.inf, -0.0, 0.0, 1e-40)


class Values:
    """Random arrays of one shape and dtype.

    Parameters
    ----------
    rng : numpy.random.Generator
    shape : tuple of int
    dtype : str, optional
        A random one, where it is missing.
    few : bool, optional
        Whether there are so few that the same come again and again.
    """

    def __init__(self, rng: np.random.Generator, shape: tuple[int, ...], dtype: str = "", few: bool | None = None) -> None:
        self._rng, self.shape, self.dtype = rng, shape, np.dtype(dtype or str(rng.choice(_DTYPES)))
        self._few = bool(rng.random() < 0.2) if few is None else few

    def __call__(self) -> Array:
        """Return a new one."""
        if self.dtype.kind in "biu":
            highest = 2 if self._few or self.dtype.kind == "b" else 128
            return np.asarray(self._rng.integers(0, highest, self.shape)).astype(self.dtype)
        found = np.asarray(self._rng.normal(size=self.shape) if not self._few else self._rng.integers(0, 2, self.shape))
        odd = self._rng.random(self.shape) < 0.05
        with np.errstate(over="ignore", under="ignore"):
            return np.where(odd, self._rng.choice(_ODD, self.shape), found).astype(self.dtype)


class World:
    """Observations of an environment whose episodes end in every way, and that is reset from outside now and then.

    ``draw()`` returns an observation: an array, or dicts of them. With a `stack`, those of three dimensions are that many frames
    along an axis. `jumps` is how often a step is the last before a reset from outside, without an end of its episode.
    """

    def __init__(
        self, rng: np.random.Generator, draw: Callable[[], Any], stack: int = 1, axis: int = 0, jumps: float = 0.0
    ) -> None:
        self._rng, self._draw, self._stack, self._axis, self._jumps = rng, draw, stack, axis, jumps
        self._length, self._still = float(rng.choice([1.3, 4, 15, 100])), float(rng.choice([0, 0, 0.5]))
        self._older, self._earns = str(rng.choice(["zeros", "copies", "others"])), float(rng.choice([0, 0.5, 1, 1]))
        self.episode = 0
        self._now = self._first()

    def step(self) -> tuple[Any, Any, bool]:
        """Return an observation, the one after it, and whether the episode ends there."""
        now, over = self._now, bool(self._rng.random() < 1 / self._length)
        drawn = now if self._rng.random() < self._still else self._draw()
        after = self._stacked(self._following, now, drawn)
        reset = over or self._rng.random() < self._jumps
        self._now = self._first() if reset else after
        self.episode += reset
        return now, after, over

    def reward(self) -> float:
        """Return a reward, which may be zero always, or often."""
        return float(self._rng.normal() * (self._rng.random() < self._earns))

    def _first(self) -> Any:
        drawn = self._draw()
        if self._older == "others":  # as of an episode that was played for a while before
            return drawn
        return self._stacked(self._begun, drawn, drawn)

    def _stacked(self, function: Callable[[Array, Array], Array], now: Any, drawn: Any) -> Any:
        """Return what was drawn, but for stacks, of which the function makes others."""
        if isinstance(drawn, dict):
            return {key: self._stacked(function, now[key], part) for key, part in drawn.items()}
        return function(now, drawn) if self._stack > 1 and np.ndim(drawn) == 3 else drawn

    def _begun(self, _: Array, drawn: Array) -> Array:
        newest = np.split(drawn, self._stack, self._axis)[-1]
        older = np.zeros_like(newest) if self._older == "zeros" else newest
        return np.concatenate([older] * (self._stack - 1) + [newest], self._axis)

    def _following(self, now: Array, drawn: Array) -> Array:
        newest = np.split(drawn, self._stack, self._axis)[-1]
        return np.concatenate([*np.split(now, self._stack, self._axis)[1:], newest], self._axis)


class Pair:
    """A library's own buffer and one on disk below a path, which are told the same; subclasses make them."""

    theirs: Any
    ours: Any

    def __init__(self, path: Path, rng: np.random.Generator) -> None:
        self.rng, self.path, self._opened = rng, path / "store", list[Any]()

    def each(self, name: str, *args: Any, errors: tuple[type[Exception], ...] = (), **keywords: Any) -> list[Any]:
        """Call a method of both, with the same random numbers; return nothing where both raise an error."""
        seed, found, failed = int(self.rng.integers(2**31)), list[Any](), list[str]()
        for buffer in (self.theirs, self.ours):
            np.random.seed(seed)  # noqa: NPY002  which the libraries draw from
            try:
                got = getattr(buffer, name)(*args, **keywords)
                found.append(list(got) if isinstance(got, Iterator) else got)
            except errors as error:
                failed.append(repr(error))
        assert len(failed) in (0, 2), f"one raised, the other not: {failed}"
        return found

    @property
    def empty_now(self) -> bool:
        """Whether nothing is there."""
        assert len(self.theirs) == len(self.ours), f"{len(self.theirs)} steps, {len(self.ours)}"
        return len(self.theirs) == 0

    def leave(self, stored: Any, *, killed: bool) -> None:
        """Close ours; to be opened again as a kill leaves it, perhaps."""
        if killed and stored.writes:
            copy_while_open(self.path, copied := self.path.with_name(f"{self.path.name}+"))
            self.path = copied
        self.close()

    def go_on_with_copies(self) -> None:
        """Pickle both, and go on with what comes of it."""
        self._opened.append(self.ours)
        self.theirs, self.ours = (pickle.loads(pickle.dumps(buffer)) for buffer in (self.theirs, self.ours))

    def close(self) -> None:
        """Close all that was opened."""
        for buffer in [*self._opened, self.ours]:
            getattr(buffer, "storage", buffer).close()

    def make_calls(self, weights: Mapping[str, float], count: int, first: str, last: str) -> None:
        """Call methods by name, at random between two, and close all; an error tells what was called before."""
        done, chances = list[str](), np.array(list(weights.values()))
        names = self.rng.choice(list(weights), count, p=chances / chances.sum()).tolist()
        try:
            for name in (first, *names, last):
                done.append(name)
                getattr(self, name)()
        except Exception as error:
            error.add_note(f"{self} after {done}")
            raise
        finally:
            self.close()


def random_shape(rng: np.random.Generator) -> tuple[int, ...]:
    """Return a shape: of a number, a vector, a small matrix, or a picture that is packed."""
    shapes = ((), (1,), (3,), (2, 3), (4, 9, 8), (36, 40))
    return shapes[int(rng.choice(len(shapes), p=[0.25, 0.15, 0.25, 0.15, 0.1, 0.1]))]


def same_bits(one: Array, other: Array, where: str) -> None:
    """Require two arrays of the same shape, dtype, and bytes; an AssertionError that names where they are."""
    assert (one.dtype, one.shape) == (other.dtype, other.shape), f"{where}: {one.dtype}{one.shape}, {other.dtype}{other.shape}"
    if one.tobytes() != other.tobytes():
        differ = np.argwhere((one != other) & ~((one != one) & (other != other)))
        raise AssertionError(f"{where} differs at {differ[:5].tolist()}: expected\n{one}\nfound\n{other}")
