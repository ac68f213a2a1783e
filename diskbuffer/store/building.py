"""Where a store is made, whole and synced, before it is found at its path; and what a kill leaves of that.

    .NAME.xxxxxxxx.new     beside the path; renamed to it
    PATH/.xxxxxxxx.new     in the path, where that is a directory already, such as one where a disk is mounted, that no rename can
                           replace: all that is in there is moved out of it, the group's file is written last

Whoever builds has the hidden directory locked, so that one which a kill left can be told from one that is being built.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import time
import uuid
from collections.abc import Collection
from pathlib import Path
from types import TracebackType
from typing import Self

from diskbuffer.errors import CorruptionError, InputError, LockedError, NotAStoreError
from diskbuffer.store.format import zarr_metadata
from diskbuffer.store.format.layout import COPY, GROUP, SEGMENTS, Layout
from diskbuffer.store.system.files import Files

_ALWAYS = {"lost+found"}  # what a file system may have in its topmost directory
_OURS = {SEGMENTS, "zarr.json"}  # by one of which a directory that is being built, or removed, is known
_LONG = 200  # bytes of a name that leaves no room for more
_BUILDING_SECONDS = 60.0  # to wait for somebody else who makes a store in the same directory
_TRIES = 100
_INSIDE = re.compile(r"\.[0-9a-f]{8}\.new")


def is_there(root: Path) -> bool:
    """Return whether there is something to open; a NotAStoreError where it is no store and no room for one."""
    files = Files(root)
    try:
        if _has_group(files):
            _refuse_within_another(root)
            return True
        names = set(files.names()) - _ALWAYS
    except FileNotFoundError:
        return False
    except CorruptionError:
        raise NotAStoreError(f"{root} is a file, or in one; a diskbuffer store is a directory") from None
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise InputError(
                f"{str(root)[:100]}...: the path is longer than the file system allows; give a shorter one"
            ) from None
        raise
    if GROUP in names and _has_group(files):  # another process has made it since
        return True
    if names and not any(_INSIDE.fullmatch(name) for name in names):
        if files.exists(COPY):
            raise NotAStoreError(f"{root / GROUP} is missing; `diskbuffer check --repair` restores it from its copy, {COPY}")
        stores = [name for name in sorted(names) if (root / name / SEGMENTS).is_dir()]
        if stores:
            one = root / stores[0]
            raise NotAStoreError(f"{root} is no store, but a directory of stores; give the path of one, such as {one}")
        raise NotAStoreError(
            f"{root} is a directory with other things in it and no diskbuffer store; give the path of a store, "
            "or one where nothing is yet"
        )
    return False


def _has_group(files: Files) -> bool:
    with contextlib.suppress(FileNotFoundError):
        return not files.is_directory(GROUP)
    return False


def _refuse_within_another(root: Path) -> None:
    """Raise a NotAStoreError where a path is a column's."""
    if not (root / SEGMENTS).is_dir():
        for above in root.parents:
            if (above / SEGMENTS).is_dir():
                raise NotAStoreError(f"{root} is inside of the store {above}; give that path")


class _SyncedTogether(Files):
    """Files that nobody can find yet: their order on the disk does not matter, so they are synced once, some at a time."""

    def __init__(self, above: Files, name: str, place: Path) -> None:
        super().__init__(above.root / name, within=(above, name))
        self._place = place
        self._later: dict[str, None] | None = {}

    @property
    def place(self) -> Path:
        return self._place

    def sync(self, name: str) -> None:
        if self._later is None:
            super().sync(name)
        else:
            self._later[os.path.normpath(name)] = None

    def rename(self, old: str, new: str) -> None:
        super().rename(old, new)
        if self._later is not None and os.path.normpath(old) in self._later:
            del self._later[os.path.normpath(old)]
            self.sync(new)

    def sync_together(self) -> None:
        """Sync what was to be synced; from here on it is done at once."""
        names, self._later = self._later or {}, None
        self.sync_all(names)


class Building:
    """A hidden directory for a store that is to be at a path; what a kill left of earlier ones is removed.

    Attributes
    ----------
    taken : bool
        Whether there is a store by now, which another process was making at the same time.
    files : Files
        The hidden directory's. What is written there is brought to the disk by `put`, all of it together.
    """

    def __init__(self, path: Path) -> None:
        real = Path(os.path.realpath(path))  # links above a store are the user's own, and so is the path
        self._path, self._real, self._inside = path, real, real.is_dir()
        self._new = [] if self._inside else [parent for parent in real.parents if not parent.exists()]
        self._home = Files(real if self._inside else real.parent)
        self._name = real.name
        self._locks: list[int] = []
        self._hidden = ""
        self.taken = False
        try:
            self._home.make_directory(".")
            if self._inside:
                self._wait_for_others()
                self.taken = is_there(real)
            if not self.taken:
                self._clear_up()
                self._make()
        except BaseException:
            self.close()
            raise

    def _wait_for_others(self) -> None:
        """Lock the directory for this process alone, as far as the file system has locks."""
        begun = time.monotonic()
        try:
            fd = self._home.open_lock(".", write=False)
            self._locks.append(fd)
            while not (locked := self._home.lock(fd, exclusive=True)) and time.monotonic() - begun < _BUILDING_SECONDS:
                time.sleep(0.01)
        except OSError:  # there are no such locks
            return
        if not locked:
            raise LockedError(f"another process is making a store at {self._path}, which takes long; try again later")

    def _prefix(self) -> str:
        if self._inside:
            return "."
        name = os.fsencode(self._name)
        return f".{self._name if len(name) <= _LONG else hashlib.sha256(name).hexdigest()[:32]}."

    def _clear_up(self) -> None:
        """Remove what a kill left."""
        pattern = re.compile(re.escape(self._prefix()) + r"[0-9a-f]{8}\.new")
        names: list[str] = []
        with contextlib.suppress(PermissionError):  # of a directory that may be written to, and not read
            names = self._home.directories()
        for name in names:
            if pattern.fullmatch(name):
                with contextlib.suppress(OSError):
                    self._remove_unless_locked(name)

    def _remove_unless_locked(self, name: str) -> None:
        fd = self._home.open_lock(name, write=False)
        try:
            names = self._home.names(name)
            ours = not names or not _OURS.isdisjoint(names)
            if self._home.lock(fd, exclusive=True) and ours:
                self._remove(name)
        finally:
            os.close(fd)

    def _make(self) -> None:
        if self._inside and set(self._home.names()) - _ALWAYS:
            raise NotAStoreError(f"{self._path} is a directory with other things in it; give a path where nothing is yet")
        for _ in range(_TRIES):
            name = f"{self._prefix()}{uuid.uuid4().hex[:8]}.new"
            with contextlib.suppress(FileNotFoundError):  # another process took it for one that was left, before it was locked
                self._home.make_directory(name)
                if self._lock(name):
                    self._hidden = name
                    break
        else:
            raise NotAStoreError(f"{self._home.root}: a directory that is made there is removed at once, again and again")
        self.files = _SyncedTogether(self._home, self._hidden, self._path)
        self.files.make_directory(SEGMENTS)  # by which it is known to be ours

    def _lock(self, name: str) -> bool:
        """Lock a hidden directory; return False where it is not there any more, or another process has it."""
        try:
            fd = self._home.open_lock(name, write=False)
            self._locks.append(fd)
            locked = self._home.lock(fd, exclusive=True)
        except FileNotFoundError:
            raise
        except OSError:  # there are no such locks: nobody takes it for one that was left
            return True
        return locked and os.path.samestat(os.fstat(fd), self._home.stat(name))

    def put(self) -> bool:
        """Sync the store, which is whole, and put it in its place; return False where something else is there by now."""
        self.files.sync_together()
        if self._inside:
            return self._put_inside()
        try:
            self._home.rename(self._hidden, self._name)
        except OSError:
            if self._home.exists(self._name):
                return False
            raise
        try:
            sync_names(self._real, self._new)
        except BaseException:
            self._home.rename(self._name, self._hidden)
            raise
        self._hidden = ""
        return True

    def _put_inside(self) -> bool:
        if set(self._home.names()) - _ALWAYS - {self._hidden}:
            return False
        group = self.files.read("zarr.json")
        for name in sorted(self.files.names()):
            if name != "zarr.json":  # which stays, to tell what was moved, until all of it is in its place for good
                self._home.rename(f"{self._hidden}/{name}", name)
        self._home.sync(".")
        sync_names(self._real, ())
        try:
            self._home.replace_contents("zarr.json", group)
        except BaseException:  # it may be there, and not synced
            self._home.remove("zarr.json")
            raise
        hidden, self._hidden = self._hidden, ""
        with contextlib.suppress(OSError):  # opening removes it
            self._home.remove_directory(hidden)
        return True

    def _remove(self, name: str) -> None:
        """Remove a hidden directory, and what was moved out of it."""
        if self._inside and not self._home.exists("zarr.json"):
            for moved in self._moved(name):
                with contextlib.suppress(FileNotFoundError):
                    if self._home.is_directory(moved):
                        self._home.remove_directory(moved)
        for other in set(self._home.directories(name)) - _OURS:  # what it is known by comes last
            self._home.remove_directory(f"{name}/{other}")
        self._home.remove_directory(name)

    def _moved(self, name: str) -> set[str]:
        """Return what may have been moved, as the group's file has it; that is written before anything is."""
        try:
            layout, slots = Layout.from_group(json.loads(self._home.read(f"{name}/zarr.json")), str(self._path))
        except (OSError, ValueError, RecursionError):
            return set()
        return {path.split("/")[0] for path in zarr_metadata.nodes(layout, slots)}

    def close(self) -> None:
        """Remove it, if it was not put in its place."""
        try:
            if self._hidden:
                self._remove(self._hidden)
                self._hidden = ""
        except OSError:
            pass  # the next one who makes a store there does it
        finally:
            for fd in self._locks:
                os.close(fd)
            self._locks.clear()
        for parent in [] if self.taken else self._new:
            with contextlib.suppress(OSError):  # such as that there is something in it, our store above all
                parent.rmdir()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.close()


def remove_left(files: Files) -> None:
    """Remove what was left in a store by whoever made it, and was killed when it was whole; the writer's lock must be held."""
    for name in files.directories():
        if _INSIDE.fullmatch(name):
            files.remove_directory(name)


def sync_names(root: Path, new: Collection[Path]) -> None:
    """Sync by which names a store is found; `new` are the directories above it that were made for it.

    Those that others made are tried, too, as far up as the file system goes: a script, or a process that was killed right after
    it made one, will not have synced it.
    """
    device = root.stat().st_dev
    needed = {root.parent, *(parent.parent for parent in new)}
    for directory in root.parents:
        if directory in needed:
            try:
                Files(directory).sync(".")
            except PermissionError:  # it may be written to, and not read
                os.sync()
        elif directory.stat().st_dev == device:
            with contextlib.suppress(OSError):  # it may be one that we must not open
                Files(directory).sync(".")
