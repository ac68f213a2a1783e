"""Marks: snapshots that are kept inside a store, and the way back to one.

    _segments/length/marks/NAME      a mark: a store of its own, which shares the files of sealed segments
    _segments/length/origin.json     of a snapshot or a mark, and of a store that went back to one

Going back puts a mark's files in the place of the store's. The note in ``origin.json`` comes first, and is finished last; every
step in between can be done again, so whoever opens the store for writing after a crash does all of them again. Nothing is changed
in place, so that readers elsewhere have what they had mapped; the note has another identifier each time, by which they know that
what they have not mapped yet is not theirs.
"""

from __future__ import annotations

import contextlib
import errno
import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from diskbuffer.errors import CorruptionError, FormatError, InputError, NotAStoreError
from diskbuffer.store import directory
from diskbuffer.store.copies.arrays import FILE as ARRAYS
from diskbuffer.store.episode_values import remove_others
from diskbuffer.store.format import zarr_metadata
from diskbuffer.store.format.layout import SEGMENTS, Layout
from diskbuffer.store.last_writer import State
from diskbuffer.store.origin import FILE as ORIGIN
from diskbuffer.store.origin import MARK_NAME, Origin
from diskbuffer.store.segments.cleared import CLEARED_FILE
from diskbuffer.store.segments.table import SegmentTable
from diskbuffer.store.system.files import Files

MARKS = f"{SEGMENTS}/length/marks"  # inside an array's directory, which no Zarr tool lists


class MarkPaths(NamedTuple):
    """Where marks are kept, and in which directory of each is its note."""

    marks: str = MARKS
    note: str = "."


OF_STORE = MarkPaths()
_OLD = ".old"  # how the name of a mark ends while another takes its place; those of all that is to be removed begin with a dot


def unfinished(root: Path) -> tuple[str, str] | None:
    """Return the note's file, and what is wrong with it: that it is damaged, or that the way back to a mark is not finished."""
    try:
        origin = Origin.read(Files(root))
    except CorruptionError as error:
        return ORIGIN, str(error)
    if origin is None or origin.back_to is None:
        return None
    return ORIGIN, f"the store is on its way back to the mark {origin.back_to!r}; opening it for writing, or repair, finishes it"


def finish_or_forget(files: Files) -> None:
    """Finish the way back to a mark; where the note is damaged, or the mark is, take the store as it is."""
    try:
        finish(files)
    except FormatError:
        raise
    except (CorruptionError, InputError, NotAStoreError):
        files.remove(ORIGIN)
        files.sync(os.path.dirname(ORIGIN))


# Marks


def check_name(name: str) -> None:
    """Raise an InputError where a mark cannot have that name."""
    if not isinstance(name, str) or not MARK_NAME.fullmatch(name):
        raise InputError(
            f"a mark's name must be 1 to 100 letters, digits, '-', '_' and '.', of which '.' is not the first, found "
            f"{str(name)[:200]!r}"
        )


def names(files: Files, paths: MarkPaths = OF_STORE) -> tuple[str, ...]:
    """Return the names of a store's marks, the oldest first."""
    numbered = list[tuple[int, str]]()
    with contextlib.suppress(FileNotFoundError):
        numbered = [(_number(files, name, paths), name) for name in files.directories(paths.marks) if MARK_NAME.fullmatch(name)]
    return tuple(name for _, name in sorted(numbered))


def _number(files: Files, name: str, paths: MarkPaths) -> int:
    with contextlib.suppress(OSError):
        origin = Origin.read(files.below(f"{paths.marks}/{name}/{paths.note}"))
        return 0 if origin is None else origin.number
    return 0


def next_number(files: Files, paths: MarkPaths = OF_STORE) -> int:
    """Return a number after those of all marks."""
    return max((_number(files, name, paths) for name in names(files, paths)), default=0) + 1


def find(files: Files, name: str, paths: MarkPaths = OF_STORE) -> Files:
    """Return the files of a mark; an InputError where there is none of that name."""
    check_name(name)
    existing = names(files, paths)
    if name not in existing:
        raise InputError(f"{files.root} has no mark {name!r}; it has {', '.join(map(repr, existing)) or 'none'}")
    return files.below(f"{paths.marks}/{name}")


@contextlib.contextmanager
def building(files: Files, name: str, paths: MarkPaths = OF_STORE) -> Iterator[Files]:
    """Yield the files of a hidden directory in which a mark is to be built; it becomes the mark then, in place of an old one."""
    new = f"{paths.marks}/.{name}.{uuid.uuid4().hex[:8]}.new"
    try:
        files.make_directory(new)
        yield files.below(new)
        _put(files, new, name, paths.marks)
    except BaseException:
        with contextlib.suppress(OSError):  # the next opening does it
            files.remove_directory(new)
        raise


def _put(files: Files, new: str, name: str, marks: str) -> None:
    """Make what was built the mark of a name, in place of one that is there; an error leaves that."""
    old = f"{marks}/.{name}{_OLD}"
    if files.exists(f"{marks}/{name}"):
        files.remove_directory(old)
        files.rename(f"{marks}/{name}", old)
    try:
        files.rename(new, f"{marks}/{name}")
        files.sync(marks)
        files.sync(os.path.dirname(marks))
    except BaseException:
        if not files.exists(new):
            files.rename(f"{marks}/{name}", new)
        if files.exists(old):
            files.rename(old, f"{marks}/{name}")
        raise
    with contextlib.suppress(OSError):  # the next opening does it
        files.remove_directory(old)


def remove(files: Files, name: str, paths: MarkPaths = OF_STORE) -> None:
    """Remove a mark. The writer's lock must be held."""
    find(files, name, paths)
    origin = Origin.read(files)
    if origin is not None and origin.back_to == name:
        raise InputError(f"{files.root} is on its way back to the mark {name!r}; open it with mode='a' once, which finishes that")
    gone = f"{paths.marks}/.{name}.{uuid.uuid4().hex[:8]}.gone"
    files.rename(f"{paths.marks}/{name}", gone)  # at once, or not at all
    try:
        files.sync(paths.marks)
    except BaseException:
        files.rename(gone, f"{paths.marks}/{name}")
        raise
    files.remove_directory(gone)


def advise_how_to_make_room(error: BaseException, files: Files) -> None:
    """Add to the error of a disk that is too full to open a store for writing that its marks can be removed without that."""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        with contextlib.suppress(OSError):
            if existing := names(files):
                error.add_note(
                    f"{files.root} has the marks {', '.join(map(repr, existing))}; diskbuffer.remove_mark(path, name), or "
                    "`diskbuffer marks PATH --remove NAME`, gives the space of one back, and takes none itself"
                )


def clear_up(files: Files, paths: MarkPaths = OF_STORE) -> None:
    """Remove what a crash left of marks that were made or removed; one whose place was not taken yet stays."""
    with contextlib.suppress(FileNotFoundError):
        for entry in files.directories(paths.marks):
            name = entry[1 : -len(_OLD)]
            if not entry.startswith("."):
                continue
            if entry.endswith(_OLD) and not files.exists(f"{paths.marks}/{name}"):
                files.rename(f"{paths.marks}/{entry}", f"{paths.marks}/{name}")
            else:
                files.remove_directory(f"{paths.marks}/{entry}")


# Going back


def go_back(files: Files, name: str) -> None:
    """Return a store to what it was at a mark, which must be whole. The writer's lock must be held."""
    find(files, name)
    before = Origin.read(files)
    try:
        Origin.new(back_to=name).note(files)
    except BaseException:  # it may be there, and not synced: whoever opens the store next must not finish what was an error
        if before is not None:
            before.note(files)
        else:
            files.remove(ORIGIN)
        raise
    finish(files)


def finish(files: Files) -> None:
    """Go all the way back to a mark, if that was begun. Whatever of it was done already may be done again."""
    origin = Origin.read(files)
    if origin is None or origin.back_to is None:
        return
    mark = find(files, origin.back_to)
    layout, slots = directory.read_metadata(mark)
    now, _ = directory.read_metadata(files)
    _refuse_links(files, [*zarr_metadata.nodes(now, slots), *zarr_metadata.nodes(layout, slots)])
    directory.refuse_links(mark, layout, slots)
    state = State.read(mark, layout)
    if state is None:
        raise CorruptionError(f"{mark.root}: how the mark was made is not known; it is damaged")
    table = SegmentTable(mark, layout, writable=False)
    table.grow(slots)
    _remove_columns(files, now, layout, slots)
    for path in directory.mend(files, layout, slots):
        files.sync(f"{path}/zarr.json")
    _remove_data(files, mark, layout)
    reserved, sparse = _link_data(files, mark, layout, table)
    reserved += [*table.names(), *(directory.tail_file(layout, path) for path in layout.packed)]
    reserved += [CLEARED_FILE] if state.tail is None else [CLEARED_FILE, state.tail.name]
    if mark.exists(ARRAYS):
        reserved.append(ARRAYS)
    else:
        files.remove(ARRAYS)
    remove_others(files, None)
    if state.values is not None:
        sparse.add(state.values.name)  # nobody maps it, and it may be empty
    for name in [*reserved, *sparse]:
        files.copy(mark, name, f"{name}.new.tmp", reserve=name not in sparse)
    files.sync_all(f"{name}.new.tmp" for name in [*reserved, *sparse])
    for name in [*reserved, *sparse]:
        files.rename(f"{name}.new.tmp", name)
    directory.write_group(files, layout, slots)
    state.note(files)
    files.sync_all([*zarr_metadata.nodes(layout, slots), "."])
    Origin(origin.identifier).note(files)


def _refuse_links(files: Files, paths: list[str]) -> None:
    """Raise a CorruptionError where a directory, if it is there, is something else, before anything is changed."""
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            if not files.is_directory(path):
                raise CorruptionError(f"{files.root / path} is no directory of the store; is it a link?")


def _remove_columns(files: Files, now: Layout, layout: Layout, slots: int) -> None:
    """Remove the columns that were added since."""
    added = zarr_metadata.nodes(now, slots).keys() - zarr_metadata.nodes(layout, slots).keys()
    for path in sorted(added):
        files.remove_directory(path)
    for path in now.derived:
        files.remove(f"{path}/map.json")  # how far a function had come


def _remove_data(files: Files, mark: Files, layout: Layout) -> None:
    """Remove the files of segments, and of the table, that the mark does not have."""
    for path in [*layout.schema, *layout.table()]:
        keep = set(mark.names(path))
        for name in files.names(path):
            if name.startswith("c.") and name not in keep:
                files.remove(f"{path}/{name}")


def _link_data(files: Files, mark: Files, layout: Layout, table: SegmentTable) -> tuple[list[str], set[str]]:
    """Make the files of sealed segments the mark's own; return those to be copied, apart from them the sparse ones."""
    reserved, sparse, sealed = list[str](), set[str](), table.sealed()
    for slot in np.flatnonzero(table.column("length") > 0).tolist():
        for path in layout.schema:
            name, derived = layout.data_file(path, slot), path in layout.derived
            if sealed[slot] and not derived and _link(files, mark, name):
                continue
            if path in layout.packed:
                sparse.add(name)
            elif not derived or mark.exists(name):
                reserved.append(name)
    return reserved, sparse


def _link(files: Files, mark: Files, name: str) -> bool:
    """Make a file the mark's own, which nobody ever writes to; return False where the file system cannot."""
    with contextlib.suppress(FileNotFoundError):
        if os.path.samestat(files.stat(name), mark.stat(name)):
            return True
    if linked := files.link(mark, name, f"{name}.new.tmp"):
        files.rename(f"{name}.new.tmp", name)
    return linked
