"""The description of a multi-writer store: the stores of several writers under one directory, which are read as one.

    zarr.json          the group: what all stores have in common, and the writers in the order in which they came
    actor-3/           a writer's store, of which it alone has the lock
    _shared/           an empty array, into which no Zarr tool looks: the lock of this description

Every writer gets numbers for its streams when it first comes, and keeps them. So steps have the same names for whoever reads, at
whatever time, and a writer that comes back goes on where it was.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diskbuffer.errors import CorruptionError, FormatError, InputError, NotAStoreError, SchemaError
from diskbuffer.schema.schema import Schema
from diskbuffer.store.building import is_there
from diskbuffer.store.format.layout import ATTRIBUTE, GROUP, MULTI_WRITER, Layout, checksum_of_json
from diskbuffer.store.system.files import Files
from diskbuffer.store.system.json_files import read_json

FORMAT = 1
STREAMS = 1024  # environments of all writers together that there is room for: ids of steps are multiples of it
SHARED = "_shared"
SHARED_LIMITER = f"{SHARED}/limiter"
REMOVED = f"{SHARED}/removed"  # a store on its way out
LOCK = f"{SHARED}/lock"  # of who changes the description
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_EMPTY_ARRAY = {
    "zarr_format": 3,
    "node_type": "array",
    "shape": [0],
    "data_type": "uint8",
    "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [1]}},
    "chunk_key_encoding": {"name": "default", "configuration": {"separator": "."}},
    "fill_value": 0,
    "codecs": [{"name": "bytes"}],
    "attributes": {},
}


@dataclass(frozen=True)
class Entry:
    """A writer: the directory of its store, and the numbers of its streams, from `first_stream` on."""

    name: str
    first_stream: int
    streams: int
    removed: bool = False  # its streams are given to nobody else


@dataclass(frozen=True)
class Description:
    """What the group file of a multi-writer store says.

    Attributes
    ----------
    common : Layout
        What all stores have: columns, rows of a segment, stacking. Its capacity is the first writer's, which those have that give
        none; its streams are as many as there is room for.
    writers : tuple of Entry
        In the order in which they came.
    """

    common: Layout
    writers: tuple[Entry, ...] = ()

    def find(self, name: str) -> Entry | None:
        """Return a writer's entry."""
        return next((entry for entry in self.present if entry.name == name), None)

    @property
    def present(self) -> tuple[Entry, ...]:
        """The writers that were not removed."""
        return tuple(entry for entry in self.writers if not entry.removed)

    def without(self, name: str) -> Description:
        """Return this with a writer removed."""
        writers = (dataclasses.replace(entry, removed=entry.removed or entry.name == name) for entry in self.writers)
        return dataclasses.replace(self, writers=tuple(writers))

    def joined(self, name: str, layout: Layout, where: Path) -> Description:
        """Return this with one more writer, whose store is to have a layout; an error where it does not go with the others."""
        refuse_strange(self.common, layout, where)
        first = max((entry.first_stream + entry.streams for entry in self.writers), default=0)
        if first + layout.streams > self.common.streams:
            raise InputError(
                f"{where} has room for {self.common.streams} environments of all writers together, has {first}, and writer "
                f"{name!r} has {layout.streams}; use another directory, or the names of writers that are gone"
            )
        return dataclasses.replace(self, writers=(*self.writers, Entry(name, first, layout.streams)))

    def to_json(self) -> bytes:
        """Return the group file."""
        writers = [dataclasses.astuple(entry) for entry in self.writers]
        content = {"format": FORMAT, "common": self.common.attributes(0), "writers": writers}
        attributes = {MULTI_WRITER: content | {"checksum": checksum_of_json(content)}}
        return json.dumps({"zarr_format": 3, "node_type": "group", "attributes": attributes}, indent=1).encode()

    @classmethod
    def from_group(cls, metadata: Any, where: str) -> Description:
        """Read what `to_json` wrote, trusting nothing."""
        try:
            content = dict(metadata["attributes"][MULTI_WRITER])
            checksum = content.pop("checksum")
            version = content["format"]
        except (KeyError, TypeError, ValueError):
            raise NotAStoreError(f"{where} has no stores of several writers that diskbuffer made; give another path") from None
        if not isinstance(version, int) or version > FORMAT:
            raise FormatError(f"{where}: a directory of several writers of format {version}; install a newer diskbuffer")
        if checksum != checksum_of_json(content):
            raise CorruptionError(f"{where}/{GROUP}: the description of the writers does not match its checksum; it is damaged")
        try:
            common, _ = Layout.from_group({"attributes": {ATTRIBUTE: content["common"]}}, where)
            writers = tuple(Entry(str(name), int(first), int(n), bool(gone)) for name, first, n, gone in content["writers"])
        except FormatError:
            raise
        except (KeyError, TypeError, ValueError) as error:
            raise NotAStoreError(f"{where}/{GROUP} describes several writers, but is damaged: {error}") from error
        until = 0
        for entry in writers:
            if not _NAME.fullmatch(entry.name) or entry.first_stream < until or entry.streams < 1:
                raise NotAStoreError(f"{where}/{GROUP} has writers that cannot be; it is damaged")
            until = entry.first_stream + entry.streams
        description = cls(common, writers)
        if until > common.streams or len({entry.name for entry in description.present}) < len(description.present):
            raise NotAStoreError(f"{where}/{GROUP} has writers that cannot be; it is damaged")
        return description


def refuse_strange(common: Layout, layout: Layout, where: Path) -> None:
    """Raise a SchemaError where a store's rows cannot be read together with those of the others."""
    lines = [common.schema.difference(layout.schema.recorded)]
    for name in ("segment_rows", "frame_stack", "padding"):
        if (has := getattr(common, name)) != (own := getattr(layout, name)):
            lines.append(f"  {name}: the others have {has}, this one {own}")
    if common.lossy != layout.lossy:
        lines.append(f"  compressed with a loss: of the others {list(common.lossy)}, of this one {list(layout.lossy)}")
    if dict(common.chunks_of) != dict(layout.chunks_of):
        lines.append(f"  chunk_rows: the others have {dict(common.chunks_of)}, this one {dict(layout.chunks_of)}")
    if any(lines):
        raise SchemaError(
            f"the writers of {where} have other columns than this one:\n"
            + "\n".join(line for line in lines if line)
            + "\nAll writers of a directory need the same; use another directory"
        )


def check_name(name: Any) -> str:
    """Return the name of a writer; an InputError where it is none."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InputError(
            "writer must be a name of letters, digits, '.', '_' and '-' that begins with a letter or digit, at most 100 of them, "
            f"as its store's directory has it; found {name!r}"
        )
    return name


def has_writers(files: Files) -> bool:
    """Return whether a directory has the stores of several writers; nothing of another is opened."""
    return os.path.isdir(files.root / SHARED) and _has_attribute(files, MULTI_WRITER)


def _is_begun(files: Files) -> bool:
    """Return whether a directory has nothing in it but what the first of several writers makes before its description."""
    return files.root.is_dir() and all(name in (SHARED, "lost+found") or name.endswith(".tmp") for name in files.names())


def is_readable(place: Path) -> bool:
    """Return whether there is a store, or several writers'; a NotAStoreError where there is something else."""
    try:
        return is_there(place)
    except NotAStoreError:
        if _is_begun(Files(place)):
            return False
        if has_writers(Files(place)):  # by now
            return True
        raise


def is_one_store(files: Files) -> bool:
    """Return whether a directory is the store of one writer."""
    return _has_attribute(files, ATTRIBUTE)


def _has_attribute(files: Files, name: str) -> bool:
    try:
        return name in read_json(files, GROUP)["attributes"]
    except (OSError, CorruptionError, ValueError, KeyError, TypeError):  # whoever opens it tells what is wrong
        return False


def read_description(files: Files) -> Description:
    """Read the description of a multi-writer store."""
    try:
        return Description.from_group(read_json(files, GROUP), str(files.root))
    except FileNotFoundError:
        raise NotAStoreError(f"there are no stores of several writers at {files.root}") from None
    except FormatError:
        raise
    except ValueError as error:
        raise NotAStoreError(f"{files.root}/{GROUP} is not JSON: {error}") from error


def join(root: Path, name: str, layout: Layout) -> Entry:
    """Make sure that a writer is described whose store is to have a layout; the directory is made where there is none.

    Raises
    ------
    NotAStoreError
        There is something else at the path.
    SchemaError
        The other writers' stores have other columns or sizes.
    LockedError
        Somebody else changes the description, and does not finish.
    """
    files = Files(root)
    _make(files, layout)
    with files.alone(LOCK):
        description = read_description(files)
        entry = description.find(name)
        if entry is None:
            was_removed = any(removed.name == name for removed in description.writers)
            description = description.joined(name, layout, root)
            if was_removed:
                discard(files, name)  # what a kill left of it
            elif is_there(root / name):
                raise NotAStoreError(f"there is a store at {root / name} that no writer made there; give writer= another name")
            files.replace_contents(GROUP, description.to_json())
            entry = description.writers[-1]
        else:
            refuse_strange(description.common, layout, root)
            if layout.streams != entry.streams:
                raise SchemaError(
                    f"writer {name!r} of {root} has {entry.streams} environments, and {layout.streams} were asked for; give "
                    "those, or another name"
                )
    return entry


def _make(files: Files, layout: Layout) -> None:
    """Make the directory, without writers, where there is none."""
    if files.root.is_dir() and not has_writers(files):
        if not _is_begun(files):
            raise NotAStoreError(
                f"{files.root} is a directory with other things in it, or the store of one writer; give writer= a path where "
                "nothing is yet, or one that other writers made"
            )
    elif has_writers(files):
        return
    files.make_directory(".")
    files.make_directory(SHARED)
    with files.alone(LOCK):
        if not has_writers(files):
            recorded = Schema(dict(layout.schema.recorded.columns))
            common = dataclasses.replace(layout, schema=recorded, streams=STREAMS, salt=0, tags=())
            describe(files, Description(common))


def discard(files: Files, name: str) -> None:
    """Remove a writer's store, at once for whoever looks for it; the lock of the description must be held."""
    files.remove_directory(REMOVED)  # what a kill left
    with contextlib.suppress(FileNotFoundError):
        files.rename(name, REMOVED)
    files.remove_directory(REMOVED)


def describe(files: Files, description: Description) -> None:
    """Write the files that make a directory one of several writers."""
    files.make_directory(SHARED)
    files.replace_contents(f"{SHARED}/{GROUP}", json.dumps(_EMPTY_ARRAY).encode())
    files.replace_contents(GROUP, description.to_json())
