"""Check the files without which a store cannot be opened, and those that only other Zarr tools read."""

from __future__ import annotations

import contextlib
import stat
from collections.abc import Callable, Collection, Iterator
from functools import partial
from pathlib import Path

from diskbuffer.errors import CorruptionError
from diskbuffer.store import directory
from diskbuffer.store.checking import salvage
from diskbuffer.store.checking.findings import Finder, Finding, lasting
from diskbuffer.store.checking.report import Problem
from diskbuffer.store.copies import arrays, marks
from diskbuffer.store.format import zarr_metadata
from diskbuffer.store.format.layout import SEGMENTS, Layout
from diskbuffer.store.last_writer import State
from diskbuffer.store.segments.cleared import CLEARED_FILE, bytes_of
from diskbuffer.store.segments.table import table_files
from diskbuffer.store.system.files import Files
from diskbuffer.store.system.writer_lock import is_held

_LENGTH = f"{SEGMENTS}/length"  # the directory that has the lock, too
_STRANGE = "is not what it should be; only other Zarr tools read it, and opening mends it"


class Framework:
    """Find what is wrong with the files that everything else is read by.

    Attributes
    ----------
    made_anew : bool
        Whether a fix made a file of the segment table anew, so that its rows may be forgotten.
    """

    def __init__(self, root: Path) -> None:
        self.made_anew = False
        self._root, self._files = root, Files(root)
        self._locked = False
        self._damage: str | None = None  # of the group's file

    def before_locking(self) -> Finder[None]:
        """Find what stands in the way of the lock; raise a NotAStoreError where there is no store, before anything is fixed."""
        self._damage = directory.damaged_group(self._root)
        yield from find_misplaced(self._root, [".", SEGMENTS, _LENGTH])
        yield Finding(fix=partial(self._files.make_directory, _LENGTH))

    def stages(self, *, locked: bool = False) -> Iterator[Finder[None]]:
        """Yield finders, each for when nothing blocks it. `locked` tells that the caller has the writer's lock."""
        self._locked = locked
        yield find_misplaced(self._root, [SEGMENTS, _LENGTH])
        yield self._find_damaged_group()
        yield self._find_unfinished_return()
        yield self._find_damaged_arrays()
        layout, slots = directory.read_metadata(self._root)
        yield find_misplaced(self._root, zarr_metadata.nodes(layout, slots))
        yield self._find_missing_directories(layout, slots)
        yield self._find_strange_metadata()
        yield self._describe_anew(layout, slots)
        layout, slots = directory.read_metadata(self._root)
        yield self._find_damaged_files(layout, slots)

    def _find_damaged_group(self) -> Finder[None]:
        damage = self._damage or directory.damaged_group(self._root)
        if damage is not None:
            yield self._finding("zarr.json", damage, partial(directory.restore_group, self._root), blocks=True)

    def _find_unfinished_return(self) -> Finder[None]:
        if note := marks.unfinished(self._root):
            yield self._finding(*note, partial(marks.finish_or_forget, self._files), blocks=True)

    def _find_damaged_arrays(self) -> Finder[None]:
        try:
            arrays.read(self._files)
        except CorruptionError:
            what = "the arrays that were kept here are damaged; repair removes them"
            yield self._finding(arrays.FILE, what, partial(self._files.remove, arrays.FILE))

    def _find_missing_directories(self, layout: Layout, slots: int) -> Finder[None]:
        for path in zarr_metadata.nodes(layout, slots):
            if not self._files.exists(path):
                what = "the directory is missing; repair makes it anew, and the rest cannot be looked at before"
                yield self._finding(path, what, partial(self._files.make_directory, path), blocks=True)

    def _find_strange_metadata(self) -> Finder[None]:
        if what := directory.differing_group(self._root):
            yield self._finding("zarr.json", what)
        state = State.read(self._files, directory.read_metadata(self._root)[0])
        was_killed = state is not None and not state.clean
        for path, what in lasting(self._strange_nodes, beside_writer=self._is_beside_writer()).items():
            if path != "." or directory.is_copied(self._root):  # else it is told above, or a kill came between the two files
                yield Finding((Problem(self._root / path / "zarr.json", what, is_finished_by_opening=was_killed),))

    def _strange_nodes(self) -> dict[str, str]:
        layout, slots = directory.read_metadata(self._root)
        return dict.fromkeys(directory.strange_metadata(self._root, layout, slots), _STRANGE)

    def _describe_anew(self, layout: Layout, slots: int) -> Finder[None]:
        """Write the metadata of all nodes."""
        yield Finding(fix=partial(directory.grow, self._files, layout, slots))

    def _find_damaged_files(self, layout: Layout, slots: int) -> Finder[None]:
        for name, (size, what) in damaged_files(self._root, layout, slots).items():
            what = f"{what}; repair makes it anew, and the rest cannot be looked at before"
            yield self._finding(name, what, partial(self._restore, name, size), blocks=True)

    def _restore(self, name: str, size: int) -> None:
        salvage.restore_file(self._root, name, size)
        self.made_anew = True

    def _is_beside_writer(self) -> bool:
        return not self._locked and bool(is_held(self._files))

    def _finding(self, name: str, what: str, fix: Callable[[], object] | None = None, *, blocks: bool = False) -> Finding:
        return Finding((Problem(self._root / name, what),), fix, blocks=blocks)


# Something else in a place


def find_misplaced(root: Path, paths: Collection[str]) -> Finder[None]:
    """Find what is no directory and stands in the place of one; a fix clears the places of files, too."""
    for path, what in no_directories(root, paths).items():
        yield Finding((Problem(root / path, what),), partial(salvage.make_directory, root, path), blocks=True)
    for path in paths:
        yield Finding(fix=partial(salvage.clear_places_of_files, root, path))


def no_directories(root: Path, paths: Collection[str]) -> dict[str, str]:
    """Return what there is in the place of the store's directories, and what becomes of it; what is missing is not told."""
    problems = {}
    for path in paths:
        with contextlib.suppress(OSError):
            mode = (root / path).lstat().st_mode
            if stat.S_ISLNK(mode):
                problems[path] = salvage.about_link(root / path)
            elif not stat.S_ISDIR(mode):
                problems[path] = "is a file in the place of a directory; repair removes it"
    return problems


def find_links(root: Path, known: Collection[Path] = ()) -> Finder[None]:
    """Find what is neither a file nor a directory, anywhere in a store, but for paths that are `known` to be wrong."""
    for path, status in Files(root).walk():
        if not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode) or root / path in known):
            kind = "a link" if stat.S_ISLNK(status.st_mode) else "a pipe, a socket or a device"
            yield Finding((Problem(root / path, f"is {kind}; a store has files and directories, and nothing else. Remove it"),))


# Files of the segment table and the tail


def damaged_files(root: Path, layout: Layout, slots: int) -> dict[str, tuple[int, str]]:
    """Return files that are missing or of the wrong size, so that no store can be opened: their size, and what is wrong."""
    files, sizes, damaged = Files(root), table_files(layout, slots), {}
    sizes[CLEARED_FILE] = bytes_of(layout)
    for path in layout.packed:
        sizes[directory.tail_file(layout, path)] = layout.streams * layout.tail_rows * layout.schema[path].row_bytes
    for name, size in sizes.items():
        try:
            files.map(name, size, writable=False)
        except CorruptionError as error:
            damaged[name] = size, str(error)
    return damaged
