"""Opening what is at a path: one store, one of several writers', or all of theirs to read as one."""

from __future__ import annotations

import itertools
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np

from diskbuffer.arguments.inputs import seconds_of
from diskbuffer.arguments.wording import either
from diskbuffer.errors import InputError, LockedError, NotAStoreError
from diskbuffer.index.index import Index
from diskbuffer.limiting.limiter import Limiter
from diskbuffer.limiting.ratio import SampleToInsertRatio
from diskbuffer.limiting.table import LIMITER
from diskbuffer.options import RequestedOptions, refuse_another
from diskbuffer.store import directory
from diskbuffer.store.building import is_there
from diskbuffer.store.copies import marks
from diskbuffer.store.opening import open_store
from diskbuffer.store.store import Store
from diskbuffer.store.system.files import Files
from diskbuffer.store.system.json_files import read_json
from diskbuffer.store.system.map_limit import refuse_too_many
from diskbuffer.store.system.writer_lock import is_held
from diskbuffer.writers import marks as multi_writer_marks
from diskbuffer.writers.columns import drop_lost_values
from diskbuffer.writers.description import SHARED_LIMITER, check_name, has_writers, is_readable, read_description
from diskbuffer.writers.joining import join_writers
from diskbuffer.writers.learner_lock import COLUMNS
from diskbuffer.writers.places import refuse_inside
from diskbuffer.writers.store import MultiWriterStore

_LOOKS = 0.05  # seconds after which one who waits looks again
ANY = "*"  # in the name of a writer: the first number whose store nobody writes to


@dataclass(frozen=True)
class Opened:
    """What was opened.

    Attributes
    ----------
    place : Path
        Where it is: of a writer's store, its own directory.
    store : Store
        One store, or several writers' with the face of one.
    multi_writer : MultiWriterStore or None
        These, if it is several.
    options : RequestedOptions
        What the caller asked of it, and what all writers' stores have to be.
    was_of_another : bool
        Whether another writer may have added the last steps, whose episodes are not continued.
    """

    place: Path
    store: Store
    multi_writer: MultiWriterStore | None
    options: RequestedOptions
    was_of_another: bool = False


def open_place(
    place: Path, options: RequestedOptions, mode: str, mark: str | None, writer: str | None, wait: float | None = None
) -> Opened:
    """Open what is at a place, or make it, or have it go back to a mark, as `ReplayBuffer` says."""
    seconds = 0.0 if wait is None else seconds_of("wait", wait, none="no wait")
    if wait is not None and mode != "r":
        raise InputError(f"wait= waits for what others make, to read it with mode='r', found mode={mode!r}; leave wait= out")
    if mode != "r":
        refuse_inside(place)
    if isinstance(writer, str) and writer.count(ANY) == 1:
        return _open_free(place, writer, options, mode, mark)
    if mode == "r":
        _wait_for(place, None if writer is None else check_name(writer), time.monotonic() + seconds)
    if writer is not None:
        place, options = join_writers(place, check_name(writer), options, mode)
        files = Files(place)
        return Opened(place, _open_store(files, options, mode, mark), None, options)
    files = Files(place)
    if has_writers(files):
        multi_writer = _open_all(files, mode, mark)
        return Opened(place, cast(Store, multi_writer), multi_writer, options)  # it has the same face, for all that reads
    return Opened(place, _open_store(files, options, mode, mark), None, options)


def _wait_for(place: Path, writer: str | None, until: float) -> None:
    """Wait until there is something to read; a NotAStoreError where nothing is by then, at once where something else is."""
    while not is_readable(place) or (writer is not None and has_writers(Files(place)) and not is_there(place / writer)):
        if time.monotonic() >= until:
            if is_readable(place):
                return  # of a writer that is not there, `join_writers` tells
            waits = either("ReplayBuffer(..., mode='r', wait=60) waits for actors that are only starting", "")
            raise NotAStoreError(f"there is no store at {place}, where nothing is yet", advice=waits)
        time.sleep(_LOOKS)


def _open_free(root: Path, pattern: str, options: RequestedOptions, mode: str, mark: str | None) -> Opened:
    """Open the store of the first name of a pattern that nobody writes to and that has as many environments, or make one."""
    check_name(pattern.replace(ANY, "0"))
    if mode != "a" or mark is not None:
        raise InputError(f"writer={pattern!r} opens or creates a store to write to; leave out mode= and mark=, or give a name")
    for number in itertools.count():
        name = pattern.replace(ANY, str(number))
        files = Files(root / name)
        if is_held(files):
            continue
        entry = read_description(Files(root)).find(name) if has_writers(Files(root)) else None
        if entry is not None and entry.streams != (options.n_envs or 1):
            continue
        try:
            place, complete = join_writers(root, name, options, mode)
            return Opened(place, _open_store(files, complete, mode, None), None, complete, was_of_another=True)
        except LockedError:
            if is_held(files) is None:  # the file system has no locks
                raise
    raise AssertionError("unreachable: there are infinitely many names")


def join_limiter(
    opened: Opened, settings: SampleToInsertRatio, mode: str, mark: str | None, writer: str | None, index: Index
) -> Limiter:
    """Join the limiter that a buffer shares with others."""
    if not isinstance(settings, SampleToInsertRatio):
        raise InputError(f"limiter must be a SampleToInsertRatio, found {settings!r}")
    if mode == "r" and mark is not None:
        raise InputError("a mark does not grow, so there is no ratio to hold; leave out limiter= or mark=")
    writes, single = mode != "r", writer is None and opened.multi_writer is None
    root = Files(opened.place if writer is None else opened.place.parent)
    number = None if not writes else 0 if writer is None else _number_of(root, writer)
    added = index.added() if writes else 0
    files = root.below(LIMITER if single else SHARED_LIMITER)
    return Limiter(files, settings, number, added, str(opened.place))


def _number_of(root: Files, writer: str) -> int:
    description = read_description(root)
    entry = description.find(writer)
    assert entry is not None
    return description.writers.index(entry)


def _open_all(files: Files, mode: str, mark: str | None) -> MultiWriterStore:
    """Open the stores of several writers, to read them as one."""
    if mode != "r":
        raise InputError(
            f"{files.root} has the stores of several writers: give writer=NAME to write to one of them, or mode='r' to read all "
            "of them, or a mark of them, as one"
        )
    if mark is None:
        return MultiWriterStore(files)
    return MultiWriterStore(Files(multi_writer_marks.find(files, mark).root), of_mark=True)


def _refuse_learners_values(path: Path) -> None:
    """Raise an InputError where a learner has values of a writer's steps: steps that come after a mark get ids again."""
    above = Files(path.parent)
    if has_writers(above) and above.exists(f"{COLUMNS}/columns.json"):
        names = read_json(above, f"{COLUMNS}/columns.json")["columns"]
        columns = [name for name in sorted(names) if above.exists(f"{COLUMNS}/{name}/{path.name}")]
        if columns:
            raise InputError(
                f"{path} cannot go back to a mark: a learner has values of its steps, in {', '.join(columns)}, and new steps "
                "would get them. Have the learner remove these columns first, or begin a new writer from the mark's data"
            )


def _open_store(files: Files, options: RequestedOptions, mode: str, mark: str | None) -> Store:
    """Open one store, or make it, or have it go back to a mark."""
    path = files.root
    lock, exists = None, is_there(path)
    if exists and mode == "w-":
        raise NotAStoreError(f"there is a store at {path} already, and mode 'w-' makes new ones only")
    if not exists:
        if mode in ("r", "r+") or mark is not None:
            create = either("; mode 'a' would create one", "") if mode == "r+" else ""
            raise NotAStoreError(f"there is no store at {path}{create if mark is None else ', and no mark of it'}")
        layout = options.layout()
        refuse_too_many(path, layout)
        lock = directory.create(path, layout)
        if lock is None and mode == "w-":
            raise NotAStoreError(f"another process has made a store at {path} by now, and mode 'w-' makes new ones only")
    elif mode != "r":
        layout, slots = directory.read_metadata(files)
        refuse_too_many(path, layout, segments=slots if layout.capacity is None else None)
    if mark is None:
        store = open_store(path, writable=mode != "r", lock=lock, drop_lost=_drop_lost)
        if mode == "r":
            refuse_too_many(path, store.layout, segments=int(np.count_nonzero(store.table.column("length"))))
        return store
    store = open_store(marks.find(Files(path), mark), writable=False)
    refuse_another(path, store.layout, options)
    if mode == "r":
        return store
    _refuse_learners_values(path)
    store.verify_files()  # or what came later would be dropped for nothing
    return open_store(path, writable=True, back_to=mark)


def _drop_lost(store: Store) -> None:
    """Drop what a learner has written to rows of one of several writers' stores that a power loss took."""
    above = Files(store.root.parent)
    if has_writers(above):
        drop_lost_values(above, store)


def reopen(cls: Any, path: Path, how: dict[str, Any], state: dict[str, Any]) -> Any:
    """Open a buffer again that was pickled or copied, with the state of its draws.

    It is read-only if somebody, this process included, holds the store for writing at this moment.
    """
    try:
        buffer = cls(path, **how)
    except LockedError:
        buffer = cls(path, **{**how, "mode": "r"})
    buffer.load_state_dict(state)
    return buffer
