"""What passes between a store and other formats: episodes as columns, and a description of all of them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from diskbuffer.index.named_values import Value
from diskbuffer.schema.schema import Column


class Rows(Protocol):
    """Consecutive rows of a column: an array, or what reads a slice of them when it is asked for.

    A numpy array is one, and so are datasets of h5py and arrays of Zarr.
    """

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape, of which the first axis is rows."""
        ...

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype."""
        ...

    def __getitem__(self, rows: slice, /) -> npt.NDArray[Any]:
        """Return some of the rows."""
        ...


@dataclass(frozen=True)
class EpisodeData:
    """One episode of T steps.

    Attributes
    ----------
    columns : mapping of str to Rows
        By path, as in a store ("obs", "obs/pixels", "action"). Observations have T + 1 rows, the last of which is the final one,
        or T where that is not known; all others have T, of the dtypes and shapes that `Contents.columns` says. ``terminated`` and
        ``truncated``, boolean, may be True in the last row only; they may be missing, and are False then. Where both are False,
        the episode was cut off.
    steps : int
        T, at least 1.
    tag : str
        Its tag, or "".
    stream : int
        The environment it is of.
    lead : mapping of str to array
        Where the recording of stacked frames began in the middle of the episode: (frame_stack - 1, ...) of each observation's
        column, the frames ahead of the first row. Else empty, and the first stack is filled up.
    running : bool
        Whether it is not over: it may go on with the next steps of its environment.
    values : mapping of str to bool, int, float or str
        What it was given by name, as `Episodes.set_values` takes it.
    """

    columns: Mapping[str, Rows]
    steps: int
    tag: str = ""
    stream: int = 0
    lead: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)
    running: bool = False
    values: Mapping[str, Value] = field(default_factory=dict)

    def flag(self, name: str) -> bool:
        """Return the flag of the last step, "terminated" or "truncated"."""
        return name in self.columns and bool(self.columns[name][self.steps - 1 : self.steps][0])


@dataclass(frozen=True)
class Contents:
    """What a source holds, before any of it is read.

    Attributes
    ----------
    columns : mapping of str to Column
        By path. A reward and the flags may be missing; a store has them anyway.
    episodes, steps : int or None
        How many there are; None where that is not known. Only progress is told by them.
    final : bool
        Whether episodes of T steps have T + 1 observations.
    environment, metadata : mapping or None
        As `ReplayBuffer` takes them.
    derived : frozenset of str
        Columns that were computed from others: priorities, advantages. In a store they are written once the steps are there.
    n_envs : int
        How many streams the episodes are of.
    frame_stack : int
        Frames in an observation, of which single ones are in the columns.
    padding : str
        What an episode's first stack is filled up with, as `ReplayBuffer` takes it.
    tags : bool
        Whether episodes have tags.
    arrays : mapping of str to array
        What else belongs to all of them, as `Copies.arrays` has it.
    values : tuple of str
        The names of values that episodes were given.
    """

    columns: Mapping[str, Column]
    episodes: int | None = None
    steps: int | None = None
    final: bool = True
    environment: Mapping[str, Any] | None = None
    metadata: Mapping[str, Any] | None = None
    derived: frozenset[str] = frozenset()
    n_envs: int = 1
    frame_stack: int = 1
    padding: str = "first"
    tags: bool = False
    arrays: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)
    values: tuple[str, ...] = ()


class Source(Protocol):
    """Where episodes are read from, in an order that is the same each time."""

    @property
    def contents(self) -> Contents:
        """What there is."""
        ...

    @property
    def losses(self) -> Mapping[str, str]:
        """What there is that a store cannot hold: a name, and a sentence that says what and why."""
        ...

    def episodes(self) -> Iterator[EpisodeData]:
        """Yield the episodes. What they are made of is read when it is asked for.

        An episode can be read until the next one is asked for, and no longer.
        """
        ...

    def close(self) -> None:
        """Close files."""
        ...


class Writer(Protocol):
    """What writes episodes to a target.

    Attributes
    ----------
    held : int
        How many episodes are there already, whole and on the disk, from a run that was killed. Whatever else it left is gone.
    """

    held: int

    def write(self, episode: EpisodeData) -> None:
        """Write one episode, reading its columns block by block where it may be long."""
        ...

    def finish(self) -> None:
        """Write what comes last. Afterwards all files are complete, and closed; not necessarily synced."""
        ...

    def close(self) -> None:
        """Close files, finished or not."""
        ...


def no_losses(_: Contents, /, **__: Any) -> Mapping[str, str]:
    """Return the losses of a target that can hold everything."""
    return {}


@dataclass(frozen=True)
class Format:
    """How to read and to write what another program reads and writes.

    Attributes
    ----------
    name : str
        What users call it: "lerobot".
    about : str
        What it is, in a few words.
    read : callable, optional
        ``read(path, **options)`` returns a `Source`. A SourceError where it is none, or is damaged.
    write : callable, optional
        ``write(path, contents, **options)`` returns a `Writer` to a path at which there is nothing, or what an earlier one with
        the same arguments has left when it was killed.
    losses : callable
        ``losses(contents, **options)`` returns what a target cannot hold: a name, and a sentence that says what and why.
    pickles : bool
        Whether reading loads pickles, which can run any code: only after ``trust=True``.
    files : callable
        ``files(path)`` returns what is read of a source: files, and directories with all that is in them. By default the path.
    values : bool
        Whether a target has a place for the values of episodes.
    """

    name: str
    about: str
    read: Callable[..., Source] | None = None
    write: Callable[..., Writer] | None = None
    losses: Callable[..., Mapping[str, str]] = field(default=no_losses)
    pickles: bool = False
    files: Callable[[Path], Collection[Path]] = field(default=lambda path: [path])
    values: bool = False
