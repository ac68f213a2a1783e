"""`buffer.copies`: snapshots, which are stores of their own, and marks, which stay inside of the store."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy.typing as npt

from diskbuffer.arguments.paths import local_path
from diskbuffer.errors import InputError, NotAStoreError
from diskbuffer.opening.access import Access, OfBuffer
from diskbuffer.runtime.signals import Interruptible
from diskbuffer.store.copies import arrays as stored_arrays
from diskbuffer.store.copies import marks, snapshots
from diskbuffer.store.copies.backup import back_up
from diskbuffer.store.store import Store
from diskbuffer.store.system.files import Files
from diskbuffer.writers import marks as multi_writer_marks
from diskbuffer.writers.marking import make_mark, make_snapshot
from diskbuffer.writers.places import refuse_inside
from diskbuffer.writers.store import MultiWriterStore


@dataclass(frozen=True, repr=False)
class Copies(OfBuffer):
    """Copies of a buffer: `snapshot` makes a store of its own, `mark` keeps the buffer as it is now, inside of the store.

    ``ReplayBuffer(path, mark=name)`` goes back to a mark.
    """

    _buffer: object  # which stays open meanwhile
    _store: Store
    _multi_writer: MultiWriterStore | None
    _access: Access
    _copying: AbstractContextManager[Any]  # held while no step, column or mark may go, and the buffer not be closed
    _recover: Callable[[Path], None]  # has a copy of a store that somebody writes to be one that was closed

    def snapshot(self, path: str | os.PathLike[str], *, arrays: Mapping[str, Any] | None = None) -> Path:
        """Make a copy of the buffer as it is now, a store of its own, while sampling and adding go on, here or elsewhere.

        It is as if the buffer had been closed and copied. Files of sealed segments, nearly all after ``flush(recompress=True)``,
        are shared where the file system can do so (hard links, on the same device), and take no space until they are evicted
        here or there; nobody ever writes to them, so what is done to one of the two never changes the other. Everything else is
        copied. Marks are not.

        Parameters
        ----------
        path : path-like
            Where nothing is yet, or an empty directory; not inside of the store.
        arrays : mapping of str to array, optional
            Kept in it, as by `mark`. By default those that the buffer has: see `arrays`.

        Returns
        -------
        Path
            The same, absolute.

        Raises
        ------
        InputError
            The path is inside of a store; a ReadOnlyError where it is inside of a mark. Or `arrays` are none.
        NotAStoreError
            There is something at the path.
        EvictedError
            The buffer was opened with ``mode="r"``, and its writer evicts segments faster than they can be copied.
        DiskFullError, OSError
            The disk is full, or fails. Nothing is left at the path.

        Notes
        -----
        Adding waits while the lock is held: some 1 ms for 100,000 84x84 steps of one environment, 10 ms for sixteen, however much
        is sealed. All of it takes a quarter of a second for 2,700 files that are linked, and longer where they must be copied.
        With ``mode="r"`` nobody waits: it is a copy as a kill would have left it, which is then recovered and closed. So it has
        every step that was added before this is called. Several writers' stores are copied so, one after the other, with the
        columns of their learner, whose place this process takes until the buffer is closed.
        """
        self._access.check_open()
        target, kept = local_path(path), self.arrays() if arrays is None else stored_arrays.checked(arrays)
        if self._multi_writer is not None:
            self._access.write_columns("copies.snapshot()")
        with Interruptible():
            refuse_inside(target)
            with snapshots.place_for(target) as building:
                if self._multi_writer is not None:
                    make_snapshot(self._multi_writer, building.files, kept)
                elif self._access.own_recorder is not None:
                    self._copy(building.files, 0, kept)
                else:  # the writer is elsewhere
                    back_up(self._store.files, building.files)
                    self._recover(building.files.root)
                    stored_arrays.write(building.files, kept)
                if not building.put():
                    raise NotAStoreError(f"there is something at {target} by now; give another path")
        return target

    def mark(self, name: str, *, replace: bool = False, arrays: Mapping[str, Any] | None = None) -> None:
        """Keep the buffer as it is now, under a name, inside of the store: a snapshot that moves with it.

        ``ReplayBuffer(path, mark=name)`` goes back to it, ``ReplayBuffer(path, mark=name, mode="r")`` reads it. A learner of
        several writers' stores can mark all of them together, to be read; writers go on meanwhile, and the mark has all that they
        had added before this was called, and of some what came since. Make one beside
        each checkpoint of a model, and save ``buffer.state_dict()``, or the sampler's, with that: gone back to the mark, with the
        state loaded, sampling gives the batches that it gave then. It takes the space of what was evicted since, of what was not
        sealed yet, and of columns that were written later.

        Parameters
        ----------
        name : str
            1 to 100 letters, digits, "-", "_" and "."; no "." in the first place.
        replace : bool
            Whether it may take the place of a mark of that name, which goes once the new one is whole.
        arrays : mapping of str to array, optional
            Arrays of numbers that belong to this moment, 8 MiB at most: what wrappers normalise with (`wrapper_arrays`), say.
            `arrays` returns them once the buffer went back to the mark.

        Raises
        ------
        InputError
            The name is none, there is such a mark, or `arrays` are none.
        ReadOnlyError
            The buffer was opened with ``mode="r"``.
        DiskFullError, OSError
            The disk is full, or fails. No mark was made, and none replaced; where it was the last sync that failed, a power loss
            soon after may still leave the new one.

        Notes
        -----
        Costs what `snapshot` does.
        """
        marks.check_name(name)
        kept = stored_arrays.checked(arrays or {})
        self._access.must_write_columns("copies.mark()")
        with self._copying, Interruptible():
            self._access.check_open()  # and as long as this is held, nobody closes it
            if name in self.marks and not replace:
                raise InputError(f"there is a mark {name!r} already; give another name, or replace=True")
            if self._multi_writer is not None:
                self._access.write_columns("copies.mark()")
                make_mark(self._multi_writer, name, kept)
                return
            files = self._store.files
            with marks.building(files, name) as building:
                self._copy(building, marks.next_number(files), kept)

    def arrays(self, name: str | None = None) -> dict[str, npt.NDArray[Any]]:
        """Return the arrays that were kept with a mark; without a name, those that came with what this buffer is.

        That is the mark that it went back to, or shows, or the snapshot that it began as.

        Returns
        -------
        dict of str to array
            Empty where none were kept.

        Raises
        ------
        InputError
            There is no mark of that name.
        CorruptionError
            The file is damaged.

        Examples
        --------
        >>> import diskbuffer as db, numpy as np, tempfile
        >>> path = tempfile.mkdtemp() + "/store"
        >>> with db.ReplayBuffer(path, columns={"obs": db.Column(), "action": db.Column()}) as buffer:
        ...     buffer.copies.mark("begin", arrays={"mean": np.zeros(3), "count": 7})
        >>> with db.ReplayBuffer(path, mark="begin") as buffer:
        ...     buffer.copies.arrays()["count"]
        array(7)
        """
        self._access.check_open()
        files, paths = self._store.files, marks.OF_STORE
        if self._multi_writer is not None:
            files, paths = self._multi_writer.all_files, multi_writer_marks.PATHS
        if name is not None:
            files = marks.find(files.outermost(), name, paths)
        return stored_arrays.read(files.below(paths.note))

    def _copy(self, files: Files, number: int, kept: stored_arrays.Arrays) -> None:
        with self._copying:
            self._access.log().copy_to(files, number)
        stored_arrays.write(files, kept)

    @property
    def marks(self) -> tuple[str, ...]:
        """The names of the store's marks, the oldest first."""
        if self._multi_writer is not None:
            return multi_writer_marks.names(self._multi_writer.all_files)
        return marks.names(self._store.files.outermost())

    def remove(self, name: str) -> None:
        """Remove a mark, and give back the space that it alone takes.

        Raises
        ------
        InputError
            There is no mark of that name.
        ReadOnlyError
            The buffer was opened with ``mode="r"``.
        """
        self._access.must_write_columns("copies.remove()")
        if self._multi_writer is not None:
            self._access.write_columns("copies.remove()")
        with self._copying:
            self._access.check_open()
            if self._multi_writer is not None:
                multi_writer_marks.remove(self._multi_writer.all_files, name)
            else:
                marks.remove(self._store.files, name)
