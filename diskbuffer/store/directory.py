"""Finding, creating and growing a store's directory: its names and its metadata."""

from __future__ import annotations

import json
import shutil
import uuid
from pathlib import Path
from typing import Any

from diskbuffer.errors import NotAStoreError
from diskbuffer.store.files import Files
from diskbuffer.store.layout import CHECKSUMS, SEGMENTS, TABLE, TAIL, Layout, encode_json
from diskbuffer.store.segments import SegmentTable


def is_there(root: Path) -> bool:
    """Tell whether there is something to open; a NotAStoreError where it is no store and no room for one."""
    if root.is_dir():
        if (root / "zarr.json").is_file():
            return True
        if any(root.iterdir()):
            raise NotAStoreError(
                f"{root} is a directory with other things in it and no diskbuffer store; give the path of a store, "
                "or one where nothing is yet"
            )
        return False
    if root.exists():
        raise NotAStoreError(f"{root} is a file; a diskbuffer store is a directory")
    return False


def read_metadata(root: Path) -> tuple[Layout, int]:
    """Return the layout of the store at `root`, and how many slots its arrays have room for."""
    try:
        metadata: Any = json.loads((root / "zarr.json").read_bytes())
    except FileNotFoundError:
        raise NotAStoreError(f"there is no store at {root}; mode 'a' would create one") from None
    except (ValueError, RecursionError) as error:
        raise NotAStoreError(f"{root}/zarr.json is not JSON: {error}") from error
    layout = Layout.from_group(metadata, str(root))
    try:
        sizes = metadata["consolidated_metadata"]["metadata"]
        (slots,) = sizes[f"{SEGMENTS}/length"]["shape"]
    except (KeyError, TypeError, ValueError):
        raise NotAStoreError(f"{root}/zarr.json has lost its consolidated metadata; the store is damaged") from None
    if not isinstance(slots, int) or not 0 <= slots < 2**31:
        raise NotAStoreError(f"{root}/zarr.json tells of {slots} slots; the store is damaged")
    return layout, slots


def create(root: Path, layout: Layout) -> None:
    """Make a store, whole, and only then put it at `root`."""
    building = root.parent / f".{root.name}.{uuid.uuid4().hex[:8]}.new"
    try:
        building.mkdir(parents=True)
        files = Files(building)
        slots = layout.first_slots()
        for path, metadata in layout.arrays(slots).items():
            files.make_directory(path)
            files.replace_contents(f"{path}/zarr.json", encode_json(metadata))
        SegmentTable(files, layout, writable=True).grow(slots, create=True)
        for path in layout.packed:
            size = layout.streams * layout.tail_rows * layout.schema[path].row_bytes
            files.close(files.create(tail_file(layout, path), size, reserve=True))
        files.replace_contents("zarr.json", encode_json(layout.root(slots)))
        root.parent.mkdir(parents=True, exist_ok=True)
        building.rename(root)
    except BaseException:
        shutil.rmtree(building, ignore_errors=True)
        raise


def grow(files: Files, layout: Layout, slots: int) -> None:
    """Make all arrays longer. The group's file comes last, so that readers of its consolidated metadata see one size."""
    for path, metadata in layout.arrays(slots).items():
        if not path.startswith(TAIL) and metadata["node_type"] == "array":
            files.replace_contents(f"{path}/zarr.json", encode_json(metadata))
    write_group(files, layout, slots)


def write_group(files: Files, layout: Layout, slots: int) -> None:
    """Replace the group's own file."""
    files.replace_contents("zarr.json", encode_json(layout.root(slots)))


def add_column(files: Files, layout: Layout, slots: int, path: str) -> None:
    """Add the metadata of a column that the layout has and the store has not. The group's file comes last, and settles it."""
    files.make_directory(path)
    files.replace_contents(f"{path}/zarr.json", encode_json(layout.arrays(slots)[path]))
    write_group(files, layout, slots)


def tail_file(layout: Layout, path: str) -> str:
    """Name the file of a packed column's tail."""
    return f"{TAIL}/{path}/c.0.0" + ".0" * len(layout.schema[path].shape)


def remove_strays(files: Files, layout: Layout, free: list[int]) -> None:
    """Remove what a killed writer left: temporary files, and the data of slots that were evicted or never filled."""
    table = [*(f"{SEGMENTS}/{name}" for name in TABLE), *(f"{CHECKSUMS}/{path}" for path in layout.flat)]
    for path in [".", *layout.schema, *table]:
        names = {entry.name for entry in (files.root / path).iterdir()}
        stray = {name for name in names if name.endswith(".tmp")}
        if path in layout.schema:
            stray |= names & {layout.data_file(path, slot).rsplit("/", 1)[1] for slot in free}
        for name in stray:
            files.remove(f"{path}/{name}")
