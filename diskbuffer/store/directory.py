"""Finding, creating and growing a store's directory: its names and its metadata."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from diskbuffer.errors import CorruptionError, FormatError, NotAStoreError
from diskbuffer.store.building import Building, remove_left
from diskbuffer.store.format import zarr_metadata
from diskbuffer.store.format.layout import CHECKSUMS, COPY, GROUP, SEGMENTS, TABLE, TABLE_SLOTS, TAIL, Layout
from diskbuffer.store.last_writer import State
from diskbuffer.store.segments.cleared import CLEARED_FILE, bytes_of
from diskbuffer.store.segments.table import SegmentTable, table_file
from diskbuffer.store.system.files import Files, files_at
from diskbuffer.store.system.json_files import MOST_BYTES, parse_json, read_json
from diskbuffer.store.system.writer_lock import WriterLock


def read_metadata(root: Path | Files) -> tuple[Layout, int]:
    """Return the layout of the store at `root`, and how many slots its arrays have room for.

    As the group's own file describes it, or its copy where that is newer: then an older file was put in the group's place.
    """
    files = files_at(root)
    try:
        described = _described(files, GROUP)
    except FileNotFoundError:
        raise NotAStoreError(f"there is no store at {files.root}") from None
    except FormatError:
        raise
    except ValueError as error:
        raise NotAStoreError(f"{files.root}/zarr.json is not JSON: {error}") from error
    if not is_copied(files):
        copied = _read_copy(files)
        if copied is not None and copied[0].salt == described[0].salt and copied[0].generation > described[0].generation:
            return copied
    return described


def raw_description(files: Files) -> tuple[bytes, bytes]:
    """Return the group's file and its copy as they are; nothing in the place of one that is missing."""
    contents = [b"", b""]
    for n, name in enumerate((GROUP, COPY)):
        with contextlib.suppress(OSError):
            contents[n] = files.read(name)
    return contents[0], contents[1]


def _described(files: Files, name: str) -> tuple[Layout, int]:
    """Return what one of the group's two files describes; a ValueError where it is not JSON."""
    layout, slots = Layout.from_group(read_json(files, name), str(files.root))
    if slots > TABLE_SLOTS and slots > (room := room_for_slots(files, layout)):  # before memory is taken for them
        raise NotAStoreError(
            f"{files.root / name} describes {slots:,} slots, and the segment table has files for {room:,}; it is damaged, or "
            f"files of {files.root / SEGMENTS} are missing"
        )
    return layout, slots


def room_for_slots(files: Files, layout: Layout) -> int:
    """Return for how many slots the segment table has files, in its column that has the most; one file's at least."""
    most = 0
    for name, (_, shape) in layout.table().items():
        while files.exists(table_file(name, most, shape)):
            most += 1
    return max(1, most) * TABLE_SLOTS


def create(root: Path, layout: Layout) -> WriterLock | None:
    """Make a store, whole, and only then put it at `root`; None where another process has done so by now.

    It is locked before it can be found, so that nobody else opens it first; the lock is returned.
    """
    with Building(root) as building:
        if building.taken:
            return None
        files, slots = building.files, layout.first_slots()
        for path, metadata in zarr_metadata.nodes(layout, slots).items():
            files.make_directory(path)
            files.sync(os.path.dirname(path) or ".")
            files.replace_contents(f"{path}/zarr.json", zarr_metadata.encode_json(metadata), sync=False)  # see `mend`
        SegmentTable(files, layout, writable=True).grow(slots, create=True)
        files.replace(CLEARED_FILE, bytes_of(layout), b"")
        files.sync(os.path.dirname(CLEARED_FILE))
        for path in layout.packed:
            size = layout.streams * layout.tail_rows * layout.schema[path].row_bytes
            files.close(files.create(tail_file(layout, path), size, reserve=True))
            files.sync(tail_file(layout, path))
            files.sync(os.path.dirname(tail_file(layout, path)))
        dataclasses.replace(State.nothing(layout), boot=files.boot_id(), clean=True).note(files)
        write_group(files, layout, slots)
        lock = WriterLock(files)
        try:
            if not building.put():
                lock.release()
                return None
        except BaseException:
            lock.release()
            raise
        return lock.moved_to(Files(root))


def grow(files: Files, layout: Layout, slots: int) -> Layout:
    """Make all arrays longer. The group's file comes last, so that readers of its consolidated metadata see one size."""
    mend(files, layout, slots)
    return write_group(files, layout, slots)


def mend(files: Files, layout: Layout, slots: int) -> list[str]:
    """Write the metadata of all nodes below the group, where it is not there or another; return of which.

    Only other tools read it: it follows from the group's, and so need not be synced.
    """
    changed = []
    for path, metadata in zarr_metadata.nodes(layout, slots).items():
        name = f"{path}/zarr.json"
        if not _holds(files, name, metadata):
            files.make_directory(path)
            files.replace_contents(name, zarr_metadata.encode_json(metadata), sync=False)
            changed.append(path)
    return changed


def up_to_group(*paths: str) -> list[str]:
    """Return the directories of nodes, and all those above them, in which they have their names."""
    above = ["/".join(path.split("/")[:n]) for path in paths for n in range(path.count("/") + 1, 0, -1)]
    return list(dict.fromkeys([*above, "."]))


def strange_metadata(root: Path | Files, layout: Layout, slots: int) -> list[str]:
    """Return the nodes whose metadata, which other tools read, is not what it should be; "." for the group."""
    files, nodes = files_at(root), {".": zarr_metadata.root(layout, slots)} | zarr_metadata.nodes(layout, slots)
    return [path for path, metadata in nodes.items() if not _holds(files, f"{path}/zarr.json", metadata)]


def _holds(files: Files, name: str, metadata: Mapping[str, Any]) -> bool:
    """Return whether a file holds metadata, however they are spaced."""
    expected = zarr_metadata.encode_json(metadata)
    try:
        found = files.read(name, MOST_BYTES)
        return found == expected or zarr_metadata.encode_json(parse_json(found)) == expected
    except (OSError, ValueError):
        return False


def write_group(files: Files, layout: Layout, slots: int) -> Layout:
    """Replace the group's file, and then its copy; return the layout, its generation larger than all before.

    What the layout tells of must be on the disk.
    """
    layout = replace_group(files, layout, slots)
    copy_group(files)
    return layout


def replace_group(files: Files, layout: Layout, slots: int) -> Layout:
    """Replace the group's file, or leave it as it was where the disk fails; return the layout, as `write_group` does."""
    generations = [layout.generation]
    for name in (GROUP, COPY):
        with contextlib.suppress(OSError, ValueError):
            stored, _ = _described(files, name)
            generations += [stored.generation] if stored.salt == layout.salt else []
    layout = dataclasses.replace(layout, generation=max(generations) + 1)
    files.replace_contents(GROUP, zarr_metadata.encode_json(zarr_metadata.root(layout, slots)))
    return layout


def copy_group(files: Files) -> None:
    """Replace the copy of the group's file."""
    files.replace_contents(COPY, files.read(GROUP))


def damaged_group(root: Path) -> str | None:
    """Return what is wrong with the group's own file, None if nothing is; a NotAStoreError where there was no store ever."""
    copied = _read_copy(root)
    try:
        described = read_metadata(root)
    except FormatError:
        raise
    except (NotAStoreError, CorruptionError) as error:
        if copied is None:
            raise
        return f"{error}; repair restores it from the copy in {COPY}"
    if (
        copied is not None
        and copied[0].salt != described[0].salt
        and _segments_known(root, *copied) > _segments_known(root, *described)
    ):
        return f"it describes another store; repair restores it from the copy in {COPY}"
    return None


def differing_group(root: Path) -> str | None:
    """Tell that the group's file and its copy differ, or that the copy is damaged; None where a writer failed between the two."""
    if is_copied(root):
        return None
    copied, described = _read_copy(root), _described(Files(root), GROUP)
    if copied is None or copied[0].salt != described[0].salt:
        return "the copy from which it could be restored is damaged; repair makes another"
    state = State.read(Files(root), described[0])
    if copied[0].generation < described[0].generation and not (state is not None and state.clean):
        return None
    return f"it differs from its copy in {COPY}; the newer of them counts, and opening for writing, or repair, writes both anew"


def _read_copy(root: Path | Files) -> tuple[Layout, int] | None:
    try:
        return _described(files_at(root), COPY)
    except (OSError, ValueError):
        return None


def _segments_known(root: Path, layout: Layout, slots: int) -> int:
    """Count the segments that the table knows, if that is the layout."""
    try:
        table = SegmentTable(Files(root), layout, writable=False)
        table.grow(slots)
        return int(np.count_nonzero(table.used()[0]))
    except (OSError, ValueError, KeyError):
        return 0


def is_copied(root: Path | Files) -> bool:
    """Return whether the group's file and its copy are the same."""
    files = files_at(root)
    try:
        return files.read(GROUP) == files.read(COPY)
    except OSError:
        return False


def restore_group(root: Path) -> None:
    """Put the copy of the group's own file in its place."""
    files = Files(root)
    files.replace_contents(GROUP, files.read(COPY))


def refuse_links(files: Files, layout: Layout, slots: int, below: str = "") -> None:
    """Raise a CorruptionError where a directory of the store is something else, such as a link that leads out of it.

    With `below`, only that directory and the arrays of the segment table in it, which every store has, are looked at.
    """
    some = (below, *(f"{below}/{name}" for name in TABLE)) if below else zarr_metadata.nodes(layout, slots)
    for path in some:
        with contextlib.suppress(FileNotFoundError):
            if files.is_directory(path):
                continue
        raise CorruptionError(f"{files.root / path} is no directory of the store: it is missing, or a link")


def tail_file(layout: Layout, path: str) -> str:
    """Name the file of a packed column's tail."""
    return f"{TAIL}/{path}/c.0.0" + ".0" * len(layout.schema[path].shape)


def remove_data(files: Files, path: str) -> None:
    """Remove all data of a column that is to be, if something is there, for good."""
    with contextlib.suppress(FileNotFoundError):
        for name in set(files.names(path)) - {"zarr.json"} - set(files.directories(path)):
            files.remove(f"{path}/{name}")
        files.sync(path)


def remove_column(files: Files, path: str) -> None:
    """Remove the directories of a column that the store does not have any more."""
    for name in (path, f"{CHECKSUMS}/{path}"):
        files.remove_directory(name)
    for name in (".", CHECKSUMS):
        files.sync(name)


def remove_strays(files: Files, layout: Layout, slots: int, free: list[int]) -> None:
    """Remove what a killed writer left: temporary files, and the data of slots that were evicted or never filled."""
    for path in [".", *zarr_metadata.nodes(layout, slots)]:
        names = set(files.names(path))
        stray = {name for name in names if name.endswith(".tmp")}
        if path in layout.schema:
            stray |= names & {layout.data_file(path, slot).rsplit("/", 1)[1] for slot in free}
        for name in stray:
            files.remove(f"{path}/{name}")
    remove_left(files)
