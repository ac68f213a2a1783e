"""Data sets from strangers: whatever is in them, an import refuses it in words, or stores what the format's own library reads.

Small data sets of every format are changed by a seeded mutator (`soak.hostile_data_sets`) and imported in a process that may
crash, hang (10 s), take too much memory (2 GB), import modules, run code, or open files elsewhere. Python's audit events tell of
these, and the kernel (inotify) of what libraries in C open in the directory that links and names in the data sets lead to. What
was imported is compared with what the format's own library reads of the same files. One in four becomes a store; of the others
the import reads the rows into memory, which takes a tenth of the time.
"""

from __future__ import annotations

import codecs
import collections
import contextlib
import io
import logging
import os
import random
import re
import shutil
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Self
from unittest import mock

import numpy as np

from diskbuffer.commands.output import complain
from diskbuffer.errors import DiskBufferError
from diskbuffer.formats import EpisodeData, blocks, import_, importing
from diskbuffer.formats.rows import rows_at_a_time
from diskbuffer.formats.stored import StoreSource
from diskbuffer.schema.schema import Column
from soak import fuzz, links
from soak.data_sets import KINDS, Columns, Kind
from soak.hostile_data_sets import CANARY, mutate
from soak.table import Row, tally
from soak.workers import Answer, Job, Pool, scratch

WHOLE = 4  # one in so many is made a store; of the others the rows are read
LOSSES = (
    *("arrays", "attributes", "episode_metadata", "final_info", "groups", "infos", "meta", "metadata", "others", "strings"),
    *("subtasks", "tags", "tasks", "text", "texts"),
)
FINE = {
    "refused": "refused in words",
    "imported": "imported, the same as the format's own library reads",
    "unread": "imported, and refused by the format's own library",
}
BROKEN = {
    **fuzz.BROKEN,
    "module": "imported a module",
    "terminal": "wrote control characters to the terminal",
    "rows": "stored rows that differ from the source",
}
_CYTHON = r"code.__new__ (b'\x97\x00\x02\x00e\x00"  # an empty function, of which Cython makes its tracebacks


class Bench:
    """Copies of data sets, which are changed, imported and thrown away."""

    def __init__(self, directory: Path) -> None:
        self._pristine, self._directory = directory.parent / "data sets", directory
        self._watch = fuzz.Watch()

    def do(self, job: Job) -> Answer:
        """Import a changed data set, or, with a negative number, one as it is."""
        kind = KINDS[job["kind"]]
        made(self._pristine, job["kind"])
        inside, outside = self._directory / "inside", self._directory / "outside"
        root = inside / "set"
        for directory, copy in ((inside, root), (outside, outside)):
            fuzz.remove(directory)
            shutil.copytree(self._pristine / job["kind"], copy)
        (inside / "new").mkdir()
        os.mkfifo(outside / "pipe")
        rng = random.Random(f"{job['seed']} {job['kind']} {job['number']}")
        done = [] if job["number"] < 0 else mutate(root, outside, rng, root / kind.name)
        modules, rows = set(sys.modules), (None if max(job["number"], 0) % WHOLE == 0 else dict[str, Any]())
        with contextlib.closing(links.Watch(outside)) as watch, self._watch.over(inside):
            answer = attempt(kind, root / kind.name, inside / "new" / "store", rows)
            opened = watch.seen()
        if answer["class"] in ("read", "refused"):
            above = [str(path) for path in inside.resolve().parents]  # which are synced when a store is made
            seen = [("module", name) for name in sorted(set(sys.modules) - modules)]
            seen += [one for one in self._watch.seen if one[1] not in above and not one[1].startswith(_CYTHON)]
            seen += [("outside", path) for path in opened]
            if seen:
                answer = {"class": seen[0][0], "error": ", ".join(what for _, what in seen[:4])}
            elif answer["class"] == "read":
                answer = compared(kind, root / kind.name, stored(inside / "new" / "store") if rows is None else rows)
        return {**answer, "done": done}


def made(directory: Path, name: str) -> Path:
    """Make a data set, where it is not there yet."""
    path = directory / name
    if not path.exists():
        path.mkdir(parents=True)
        KINDS[name].make(path)
    return path


class Kept:
    """What stands in for an `Appender`, and keeps rows in memory: making a store takes ten times as long as reading data."""

    def __init__(
        self, rows: Columns, place: Path, *, columns: Mapping[str, Column], derived: Mapping[str, Column], **_: Any
    ) -> None:
        self._rows, self._columns = rows, {**columns, **derived}
        place.mkdir()

    def fill(self, episodes: Iterable[EpisodeData], told: Callable[[int], None]) -> None:
        """Read all episodes, as `diskbuffer.formats.filling.fill` does."""
        parts: dict[str, list[Any]] = {}
        for number, one in enumerate(episodes):
            blocks.check(number, one, self._columns)
            for path, rows in one.columns.items():
                step = rows_at_a_time(rows)
                for first in range(0, rows.shape[0], step):
                    block = np.array(rows[first : min(first + step, rows.shape[0])])
                    if first < one.steps:
                        parts.setdefault(path, []).append(block[: one.steps - first])
            told(one.steps)
        self._rows |= {path: np.concatenate(blocks) for path, blocks in parts.items()}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def attempt(kind: Kind, source: Path, store: Path, rows: Columns | None = None) -> Answer:
    """Import a data set, to `rows` where they are given; judge an error, and what a terminal would be sent of it."""
    said = io.StringIO()

    def run() -> str | None:
        with contextlib.redirect_stderr(said), warnings.catch_warnings(action="ignore"), contextlib.ExitStack() as patches:
            if rows is not None:
                patches.enter_context(mock.patch.object(importing, "Appender", partial(Kept, rows)))
                patches.enter_context(mock.patch.object(importing, "fill", Kept.fill))
            try:
                import_(kind.format, source, store, allow_loss=LOSSES, progress=False)
            except DiskBufferError as error:
                complain(str(error))
                raise
        return None

    answer = fuzz.tried(run)
    if answer["class"] == "refused" and re.search(
        r"[^\n\x20-\x7e\u00a0-\U0010ffff]|[\u200e\u200f\u202a-\u202e\u2066-\u2069]", said.getvalue()
    ):
        return {"class": "terminal", "error": ascii(said.getvalue())[:300]}
    return {**answer, "said": said.getvalue()[:300]}


def compared(kind: Kind, source: Path, found: Columns) -> Answer:
    """Compare what was imported with what the format's own library reads."""
    if kind.read is None:
        return {"class": "imported"}
    try:
        with warnings.catch_warnings(action="ignore"):
            wanted = kind.read(source)
    except Exception as error:  # noqa: BLE001  there are many libraries, of many errors
        return {"class": "unread", "error": f"{type(error).__name__}: {str(error)[:200]}"}
    for path, rows in wanted.items():
        if path in found and not same(found[path], rows):
            return {"class": "rows", "error": f"{path}: {found[path].dtype}{found[path].shape}, {rows.dtype}{rows.shape}"}
    if not wanted.keys() & found.keys():
        return {"class": "unread", "error": f"nothing to compare: {', '.join(wanted)}; {', '.join(found)}"}
    return {"class": "imported"}


def stored(store: Path) -> Columns:
    """Return the rows of each column, one episode after the other; of observations without the final ones."""
    with contextlib.closing(StoreSource(store)) as source:
        parts = list(source.episodes())
        return {path: np.concatenate([np.asarray(one.columns[path][: one.steps]) for one in parts]) for path in parts[0].columns}


def same(one: Any, other: Any) -> bool:
    """Tell whether rows are equal, NaN included; a row may be flat in one of them."""
    if one.size != other.size or len(one) != len(other):
        return False
    a, b = one.reshape(-1), other.reshape(-1)
    return bool(np.all((a == b) | ((a != a) & (b != b))))


# The campaign


def run_all(pool: Pool, count: int, seed: int) -> Row:
    """Import hostile data sets, as many of each kind."""
    for name in KINDS:
        pristine = pool.do({"kind": name, "number": -1, "seed": seed})
        if pristine.get("class") not in ("imported", "refused" if name == "sb3" else "imported"):
            raise RuntimeError(f"the data set {name!r} should be imported as it is, and was not: {pristine}")
    jobs = ({"kind": name, "number": number, "seed": seed} for number in range(-(-count // len(KINDS))) for name in KINDS)
    row, cases = tally("hostile data sets imported", pool.do_all(jobs), FINE, BROKEN)
    for name in KINDS:
        mine = collections.Counter(answer["class"] for job, answer in cases if job["kind"] == name)
        row.notes.append(f"{name}: {mine.total():,}: {', '.join(f'{n:,} {what}' for what, n in mine.most_common())}")
    return row


def main(scale: float = 1.0, *, seed: int = 0) -> Row:
    """Import 20,000 data sets, times `scale`."""
    with scratch() as name, Pool("soak.imports", name) as pool:
        return run_all(pool, round(20_000 * scale), seed)


def warm(names: Iterable[str] = tuple(sorted(KINDS.keys() - {"rlds"}))) -> None:
    """Import and compile what is needed, also for what is refused, so that what happens later is a data set's doing."""
    logging.disable()
    from PIL import Image

    Image.init()  # which imports readers of all formats, as soon as one is not known
    for name in ("utf_16", "utf_16_be", "utf_16_le", "utf_32", "utf_32_be", "utf_32_le", "idna"):  # which JSON may have
        codecs.lookup(name)
    with scratch() as base:
        for kind in names:
            root, of = made(base, kind), KINDS[kind]
            for n in range(6):
                inside, outside = base / "inside" / "set", base / "outside"
                shutil.copytree(root, inside)
                shutil.copytree(root, outside)
                if n:
                    mutate(inside, outside, random.Random(f"{kind} {n}"), inside / of.name)
                if n < 2:
                    attempt(of, inside / of.name, inside.parent / "store")
                    if not n and of.read is not None:
                        compared(of, inside / of.name, stored(inside.parent / "store"))
                shutil.rmtree(inside.parent)
                shutil.rmtree(outside)


def child(directory: Path) -> Callable[[Job], Answer]:
    """Return what imports data sets. The threads of ArrayRecord do not survive a fork."""
    warm(["rlds"])
    modules = directory.parent / "modules"
    modules.mkdir(exist_ok=True)
    (modules / f"{CANARY}.py").write_text("")
    sys.path.append(str(modules))
    return Bench(directory).do
