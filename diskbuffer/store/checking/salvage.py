"""Finding again what a damaged segment table does not tell: files that are missing, and whose rows a slot has.

Rows tell that themselves. A shard says whose it is, and where there is none, the checksum of a row starts from its stream and
its position: those that come into question are tried.
"""

from __future__ import annotations

import contextlib
import re
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from diskbuffer.errors import CorruptionError
from diskbuffer.store import directory
from diskbuffer.store.format.checksums import OBS, STEP, covered, row_checksums
from diskbuffer.store.format.layout import Layout
from diskbuffer.store.recovery.inspection import Inspected
from diskbuffer.store.segments import shard
from diskbuffer.store.segments.table import table_files
from diskbuffer.store.store import Store
from diskbuffer.store.system.files import Files

Identity = tuple[int, int]  # the stream, and the position of the first row
_AT_ONCE = 4096  # candidates
_A_FILE = re.compile(r"c(\.[0-9]+)+|[a-z]+\.json|.*\.tmp|revision")
_ADVICE = "remove it (`rm {}`), or put the directory that it stands for in its place, and repair again"


def damaged_files(root: Path, layout: Layout, slots: int) -> dict[str, tuple[int, str]]:
    """Return the files without which no store can be opened, and are missing or of the wrong size: their size, what is wrong."""
    files, sizes, found = Files(root), table_files(layout, slots), {}
    for path in layout.packed:
        sizes[directory.tail_file(layout, path)] = layout.streams * layout.tail_rows * layout.schema[path].row_bytes
    for name, size in sizes.items():
        try:
            files.map(name, size, writable=False)
        except CorruptionError as error:
            found[name] = size, str(error)
    return found


def no_directories(root: Path, paths: Iterable[str]) -> dict[str, str]:
    """Return what there is in the place of the store's directories, and what becomes of it; what is missing is not told."""
    found = {}
    for path in paths:
        with contextlib.suppress(OSError):
            mode = (root / path).lstat().st_mode
            if stat.S_ISLNK(mode):
                found[path] = f"is a link in the place of a directory; {_ADVICE.format(root / path)}"
            elif not stat.S_ISDIR(mode):
                found[path] = "is a file in the place of a directory; repair removes it"
    return found


def make_directory(root: Path, path: str) -> None:
    """Have a directory be where a file is; a CorruptionError where it is a link, which somebody may need."""
    if (root / path).is_symlink():
        raise CorruptionError(f"{root / path} is a link in the place of a directory; {_ADVICE.format(root / path)}")
    files = Files(root)
    files.remove(path)
    files.make_directory(path)
    files.sync(str(Path(path).parent))


def clear_places_of_files(root: Path, path: str) -> None:
    """Remove directories in the places of a store's files; a CorruptionError where something is in them."""
    with contextlib.suppress(FileNotFoundError):
        for entry in list((root / path).iterdir()):
            if _A_FILE.fullmatch(entry.name) and stat.S_ISDIR(entry.lstat().st_mode):
                try:
                    entry.rmdir()
                except OSError as error:
                    raise CorruptionError(
                        f"{entry} is a directory in the place of a file, with something in it; move it away, and repair again"
                    ) from error


def restore_file(root: Path, name: str, size: int) -> None:
    """Make a file anew: of what is still there of it, and zeros."""
    files, kept = Files(root), b""
    with contextlib.suppress(OSError):
        kept = files.read(name)[:size]
    files.make_directory(str(Path(name).parent))
    fd = files.create(f"{name}.new.tmp", size, reserve=True)
    try:
        files.pwrite(fd, kept, 0)
    finally:
        files.close(fd)
    files.sync(f"{name}.new.tmp")
    files.rename(f"{name}.new.tmp", name)


def find_rows(store: Store, slot: int, reach: npt.NDArray[np.int64]) -> tuple[Identity, int]:
    """Return whose rows a slot holds, and how many, from the first on; none if that cannot be found out.

    `reach` has the first and the last position of each stream that come into question, (streams, 2).
    """
    for who in dict.fromkeys([store.table.identity(slot), *_candidates(store, slot, reach)]):
        if rows := _rows_there(store, slot, who):
            return who, rows
    return (0, 0), 0


def _candidates(store: Store, slot: int, reach: npt.NDArray[np.int64]) -> Iterable[Identity]:
    if store.layout.packed:
        return _as_shards_say(store, slot)
    return _as_checksums_say(store, slot, reach)


def _as_shards_say(store: Store, slot: int) -> Iterator[Identity]:
    for path in store.layout.packed:
        with contextlib.suppress(CorruptionError):
            mapped = store.files.map(store.layout.data_file(path, slot), -1, writable=False)
            found = shard.identity_of(mapped, store.layout.chunks(path)).tolist()
            yield found[1], found[2]


def _as_checksums_say(store: Store, slot: int, reach: npt.NDArray[np.int64]) -> Iterator[Identity]:
    """Yield the streams and positions with which the checksum of a slot's first row is right."""
    layout = store.layout
    found = Inspected(store, slot, 1, decode=False, identity=(0, 0))
    word, paths = found.word(0, OBS), covered(layout.schema, OBS)
    if word is None or not all(found.is_readable(path) for path in paths):
        return
    rows = {path: found.rows(path, 0, 1) for path in paths}
    for stream, (first, last) in enumerate(reach.tolist()):
        for begin in range(first, last + 1, _AT_ONCE * layout.segment_rows):
            n = min(_AT_ONCE, (last - begin) // layout.segment_rows + 1)
            same = {path: np.broadcast_to(row, (n, row.shape[1])) for path, row in rows.items()}
            words = row_checksums(layout.schema, layout.salt, stream, begin, n, same, OBS, apart=layout.segment_rows)
            yield from ((stream, begin + at * layout.segment_rows) for at in np.flatnonzero(words == word).tolist())


def _rows_there(store: Store, slot: int, who: Identity) -> int:
    """Return how many rows a slot has, from the first on, if they are those."""
    stream, first = who
    if not (0 <= stream < store.layout.streams and 0 <= first < 2**56 and first % store.layout.segment_rows == 0):
        return 0
    found = Inspected(store, slot, store.layout.segment_rows, decode=True, identity=who)
    obs = found.verified(OBS)
    n = int(np.append(obs & found.verified(STEP), False).argmin())
    return n + 1 if n < len(obs) and obs[n] else n
