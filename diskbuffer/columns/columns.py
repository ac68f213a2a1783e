"""`buffer.columns`: the columns by path, and what is done with those that are written after the steps were recorded."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import numpy as np

from diskbuffer.arguments.inputs import step_ids
from diskbuffer.arguments.integers import integer, shown
from diskbuffer.columns.column_statistics import QUANTILES, ColumnStatistics
from diskbuffer.columns.derived import DerivedColumns
from diskbuffer.columns.map_steps import Progress, map_steps, names_of
from diskbuffer.columns.returns import Returns
from diskbuffer.columns.statistics import StatisticsOfColumn
from diskbuffer.errors import InputError, LookupInputError
from diskbuffer.loading.loader import Loader
from diskbuffer.loading.passes import Listed, Pass, Slicing
from diskbuffer.opening.access import Access, OfBuffer
from diskbuffer.reading.batches.base import Batch
from diskbuffer.reading.wanted import Wanted
from diskbuffer.recording.pictures import Pictures
from diskbuffer.schema.schema import Column

if TYPE_CHECKING:
    import torch


class Columns(OfBuffer, Mapping[str, Column]):
    """The columns of a buffer, by path; ``is_last`` and ``row_checksum`` among them, which are written by the buffer itself.

    A mapping of str to `Column`, as of when it was asked for: those that were recorded with the steps, then those that were
    written later.
    """

    def __init__(
        self,
        derived: DerivedColumns,
        access: Access,
        copying: AbstractContextManager[Any],
        flush: Callable[[], None],
        threads: Callable[[int | None], int],
    ) -> None:
        self._schema = derived.store.layout.schema
        self._derived, self._store, self._reader = derived, derived.store, derived.reader
        self._access, self._copying, self._flush, self._threads = access, copying, flush, threads

    def __getitem__(self, path: str) -> Column:
        try:
            return self._schema.columns[path]
        except (KeyError, TypeError):
            raise LookupInputError(f"there is no column {path!r}; there are {', '.join(self)}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._schema.columns)

    def __len__(self) -> int:
        return len(self._schema.columns)

    def __repr__(self) -> str:
        return f"<Columns {', '.join(f'{path}: {column}' for path, column in self.items())}>"

    @property
    def derived(self) -> frozenset[str]:
        """Those that were written later, with `write`, `map`, `set_tag` of episodes, or by a sampler."""
        return self._schema.derived

    def transformed(self, obs: Any) -> Any:
        """Return observations as they are stored: what a policy that learns from batches is to be given when it acts.

        Parameters
        ----------
        obs : array-like, or nested dict of them
            With any leading axes. Columns without ``Column(transform=)`` stay as they are.

        Returns
        -------
        array, or nested dict of them
            Pictures as uint8, (..., height, width) or (..., height, width, channels).

        Raises
        ------
        InputError
            A picture is none that is transformed to the column's shape.
        """
        if obs is None:
            raise InputError("obs: expected observations, found None")
        return Pictures(self._schema).transformed(obs)

    def statistics(self, path: str, quantiles: Sequence[float] = QUANTILES) -> ColumnStatistics:
        """Return mean, deviation, extremes and quantiles of a column, of all that is there now.

        Observations count with the final ones of episodes. The first call reads the whole column once, in bounded memory. The
        statistics of blocks of rows are kept, where this process writes to the store also there, so that a later call reads what
        came since, and the ends of what is there. A column that was written later is read whole each time.

        Parameters
        ----------
        path : str
            A recorded column, or one that was written later; of integers, floats or booleans.
        quantiles : sequence of float
            From 0 to 1; each is right to 1 % of the range.

        Returns
        -------
        ColumnStatistics
            A number for each element of a vector, for each channel of a picture, for each place on the last axis of other arrays;
            one for numbers, for grey pictures, and for what has more than 4,096.

        Raises
        ------
        InputError
            There is no such column, its numbers are complex, or a quantile is none.
        CorruptionError
            Rows are damaged.

        Examples
        --------
        >>> import diskbuffer as db, numpy as np, tempfile
        >>> columns = {"obs": db.Column((2,), "float32"), "action": db.Column((), "int64")}
        >>> with db.ReplayBuffer(tempfile.mkdtemp() + "/store", columns=columns) as buffer:
        ...     obs = np.arange(202).reshape(101, 2)
        ...     _ = buffer.extend(obs=obs, action=np.zeros(100, int), reward=np.ones(100))
        ...     found = buffer.columns.statistics("obs")
        ...     batch = buffer.sample(4, transform=lambda batch: batch | {"obs": found.standardize(batch["obs"])})
        >>> found.mean.tolist(), found.max.tolist()
        ([100.0, 101.0], [200.0, 201.0])
        """
        column = self[path]
        if column.np_dtype.kind not in "buif":
            raise InputError(f"column {path!r} must have numbers that have an order, found {column}")
        some = tuple(quantiles)
        if not all(isinstance(q, int | float | np.number) and 0 <= q <= 1 for q in some):
            raise InputError(f"quantiles must be numbers from 0 to 1, found {shown(quantiles)}")
        self._access.check_open()
        if path in self.derived:
            return StatisticsOfColumn(self._derived, path).compute(some)
        known, key = self._derived.statistics, (os.getpid(), path)  # a fork may never get a lock that was held
        if key not in known:
            known[key] = StatisticsOfColumn(self._derived, path)
        return known[key].compute(some)

    def write(self, name: str, steps: Any, values: Any) -> int:
        """Write a column's values of some steps; the column is made if it is not there, zeros elsewhere.

        It is an ordinary Zarr array, part of every batch from now on, and is evicted with its steps. `add` does not ask for it:
        steps that come later have zeros until something is written.

        Parameters
        ----------
        name : str
        steps : (n,) or (n, length) integers
            As in a batch's ``steps``; those that were evicted since are left out, as is -1 in sequences. (Steps that one of
            several writers has evicted, or cleared, since the last `refresh` may be counted, too.)
        values : (n, ...) or (n, length, ...) array or tensor

        Returns
        -------
        int
            For how many steps something was written.

        Raises
        ------
        SchemaError
            The column has another dtype or shape, or was recorded with the steps.
        InputError
            A step was never added, a value is NaN or infinite, or there is not one for each step. Nothing was written.
        """
        with self._store.lock:
            self._access.write_columns("columns.write()")
            return self._derived.write(name, steps, values)

    def remove(self, name: str) -> None:
        """Remove a column that was written later, by `write`, `map`, `set_tag`, a sampler or an adapter, and give its space back.

        For good: once this returned, neither a kill nor a power loss brings it back, and a new column of that name has zeros;
        a kill on the way leaves it whole or gone. Snapshots and marks that were made before keep it. Without the column ``tag``
        no episode has a tag, and no tag a number. Readers elsewhere see it go with their `refresh`, or when they miss its files.
        Waits for a snapshot or a mark that is being made in another thread.

        Raises
        ------
        SchemaError
            There is no such column, it was recorded with the steps, or it belongs to a sampler that is in use, or to a `map` that
            is under way.
        ReadOnlyError
            The buffer was opened with ``mode="r"``.
        DiskFullError, OSError
            The disk is full, or fails. The column is there still.
        """
        self._access.must_write_columns("columns.remove()")  # first: a fork has the lock of snapshots as it was
        with self._copying, self._store.lock:
            self._access.write_columns("columns.remove()")
            self._derived.remove(name)

    def map(
        self,
        function: Callable[[Batch], Any],
        batch_size: int,
        out: str | Sequence[str],
        *,
        steps: Any = None,
        resume: bool = False,
        progress: bool = True,
        device: torch.device | str | None = None,
        numpy: bool = False,
        prefetch: int = 2,
        threads: int | None = None,
    ) -> int:
        """Call a function with batches of every step, in order, and write what it returns to a column, or to several.

        Memory is that of `prefetch` batches, however many steps there are. If it is interrupted, even by a kill or a power loss,
        the same call with ``resume=True`` goes on over the steps of the first call, from a place before which everything was
        written, and flushed: every second, or less often where `flush` takes long, that place is noted.

        Parameters
        ----------
        function : callable
            Gets a batch as from `sample`, the last of which may be smaller; returns (n, ...), or a tuple of them, one for each of
            `out`.
        batch_size : int
        out : str or sequence of str
            Columns, as in `write`.
        steps : (n,) integers, optional
            These alone, as in a batch's ``steps``; all of them by default.
        resume : bool
            Whether to go on where a call with the same `out` was interrupted. From the beginning, if none was, or if all of its
            steps were evicted or cleared since.
        progress : bool
            Whether to show a bar, where tqdm is installed.
        device, numpy, prefetch, threads
            As in `loader`.

        Returns
        -------
        int
            For how many steps the function was called.

        Examples
        --------
        >>> import diskbuffer as db, numpy as np, tempfile
        >>> columns = {"obs": db.Column((), "int64"), "action": db.Column((), "int64")}
        >>> with db.ReplayBuffer(tempfile.mkdtemp() + "/store", columns=columns) as buffer:
        ...     _ = buffer.extend(obs=np.arange(101), action=np.zeros(100, int), reward=np.ones(100))
        ...     n = buffer.columns.map(lambda batch: batch["obs"].float() / 100, 32, out="scaled", progress=False)
        ...     batch = buffer.sample(4)
        >>> n, bool((batch["scaled"] * 100 - batch["obs"]).abs().max() < 1e-5)
        (100, True)
        """
        self._access.write_columns("columns.map()")
        if not callable(function):
            raise InputError(f"function must be one that takes a batch, found {shown(function)}")
        names, size, ahead = names_of(out), integer("batch_size", batch_size), integer("prefetch", prefetch)
        for name in names:
            self._derived.check(name)
        done = Progress(self._store, names, self._flush)
        if steps is not None:
            if resume:
                raise InputError("map(steps=...) cannot be resumed: call it with the steps that are left, or leave resume= out")
            source: Pass | Listed = Listed(self._reader, step_ids(steps), Slicing(size), self._access.check_open)
        else:
            with self._store.lock:
                position = done.read(self._reader.index) if resume else None
            source = Pass(self._reader, Slicing(size), False, 0, self._access.check_open, position=position)
        loader: Loader[Any] = Loader(lambda: source, Wanted.of(device, None, numpy), ahead, self._threads(threads))
        if not resume:
            done.remove()
        with self._derived.in_use(names):
            return map_steps(source, loader, self._derived, function, names, done, progress)

    def returns_and_advantages(
        self,
        gamma: float = 0.99,
        gae_lambda: float = 0.95,
        *,
        values: str | None = "value",
        next_values: str | None = "next_value",
        out: tuple[str, str] = ("return", "advantage"),
        steps: Any = None,
    ) -> int:
        """Compute every step's return and advantage from columns, and write them to columns (float32).

        Generalized advantage estimation (Schulman et al., 2016, "High-dimensional continuous control using generalized advantage
        estimation"): the return is the advantage plus the value. Where an episode was truncated, cut off, or runs on, the value
        of the next observation counts as what would have come; where it terminated, nothing does. Episodes may be of any length:
        each segment is read once, from the newest to the oldest.

        Parameters
        ----------
        gamma, gae_lambda : float
            From 0 to 1.
        values, next_values : str or None
            Columns with the values of ``obs`` and ``next_obs``, as `map` writes them. With ``values=None`` there are no
            advantages, and the return is the plain discounted sum of rewards to come.
        out : (str, str)
            Columns to write to: of returns, and of advantages.
        steps : (n,) integers, optional
            Of these alone, in any order, as if there were no others: where the next step of the episode is not among them, the
            value of the next observation counts for what comes. Those that were evicted since are left out. All by default.

        Returns
        -------
        int
            Of how many steps.
        """
        self._access.write_columns("columns.returns_and_advantages()")
        plain = values is None
        return Returns(
            rewards="reward",
            values=values,
            next_values=None if plain else next_values,
            gamma=gamma,
            gae_lambda=gae_lambda,
            out=(out[0], None if plain else out[1]),
        ).compute(self._derived, steps)
