"""Data sets from strangers: whatever is in them, an import refuses it in words, or stores what the format's own library reads.

Small data sets of every format are changed by a seeded mutator (`soak.hostile_data_sets`) and imported. The process that reads
them may crash, read for 5 s or take 2 GB, which the import tells; neither that one nor the import's own may import modules, run
code, or open files elsewhere, nor the latter crash, hang (60 s) or take 500 MB more than it has. Python's audit events tell of
it in both, and the kernel (inotify) of what libraries in C open in the directory that links and names in the data sets lead to.
What was imported is compared with what the format's own library reads of the same files. One in four becomes a store; of the
others the import reads the rows into memory, which takes a tenth of the time.
"""

from __future__ import annotations

import codecs
import collections
import contextlib
import importlib
import io
import json
import logging
import os
import random
import re
import select
import shutil
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Self
from unittest import mock

import numpy as np

from diskbuffer.commands.output import complain
from diskbuffer.errors import DiskBufferError
from diskbuffer.formats import blocks, confined, forks, import_, importing, registry
from diskbuffer.formats.stored import StoreSource
from diskbuffer.plugin import is_observation
from soak import fuzz, links
from soak.audit import Watch
from soak.data_sets import KINDS, Columns, Kind
from soak.hostile_data_sets import CANARY, mutate
from soak.table import Row, tally
from soak.workers import Answer, Job, Pool, scratch

MEMORY = 2 * 1024**3  # bytes that the process may have which reads
GROWN = 500 * 10**6  # bytes that the import's own process may need beside what it has
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
    "memory": "needed 500 MB in the import's own process",
    "module": "imported a module",
    "terminal": "wrote control characters to the terminal",
    "rows": "stored rows that differ from the source",
}
_BEGUN = ("begun", "")  # of a process that reads
_CYTHON = r"code.__new__ (b'\x97\x00\x02\x00e\x00"  # an empty function, of which Cython makes its tracebacks


class Bench:
    """Copies of data sets, which are changed, imported and thrown away."""

    def __init__(self, directory: Path) -> None:
        self._pristine, self._directory = directory.parent / "data sets", directory
        self._watch = Watch()
        self._reading = Reading(directory)

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
        self._reading.ready()
        modules, rows = set(sys.modules), (None if max(job["number"], 0) % WHOLE == 0 else dict[str, Any]())
        Path("/proc/self/clear_refs").write_text("5")  # the peak of memory begins anew
        before = memory()["VmRSS"]
        with contextlib.closing(links.Watch(outside)) as watch, self._watch.over(inside):
            answer = attempt(kind, root / kind.name, inside / "new" / "store", rows)
            opened = watch.seen()
        if (grown := memory()["VmHWM"] - before) > GROWN:
            answer = {"class": "memory", "error": f"{grown / 1e6:.0f} MB"}
        if answer["class"] in ("read", "refused"):
            above = [str(path) for path in inside.resolve().parents]  # which are synced when a store is made
            seen = [("module", name) for name in sorted(set(sys.modules) - modules)]
            here_and_there = [*self._watch.seen, *self._reading.seen()]
            seen += [one for one in here_and_there if one[1] not in above and one != _BEGUN and not one[1].startswith(_CYTHON)]
            seen += [("outside", path) for path in opened]
            if seen:
                answer = {"class": seen[0][0], "error": ", ".join(what for _, what in seen[:4])}
            elif answer["class"] == "read":
                answer = compared(kind, root / kind.name, stored(inside / "new" / "store") if rows is None else rows)
        return {**answer, "done": done}


def memory() -> dict[str, int]:
    """Return how many bytes this process has, ``VmRSS``, and had at most, ``VmHWM``."""
    lines = [line.split() for line in Path("/proc/self/status").read_text().splitlines() if line.endswith(" kB")]
    return {name.removesuffix(":"): int(size) * 1024 for name, size, _ in lines}


def made(directory: Path, name: str) -> Path:
    """Make a data set, where it is not there yet."""
    path = directory / name
    if not path.exists():
        path.mkdir(parents=True)
        KINDS[name].make(path)
    return path


class Kept:
    """What stands in for an `Appender`, and keeps rows in memory: making a store takes ten times as long as reading data."""

    def __init__(self, rows: Columns, place: Path, *, n_envs: int, frame_stack: int, **options: Any) -> None:
        self._rows = rows
        self.columns, self.derived = options["columns"], options["derived"]
        self.ever, self.frame_stack = (0,) * n_envs, frame_stack
        place.mkdir()

    def fill(self, found: Iterable[blocks.Block], told: Callable[[int], None]) -> None:
        """Keep all rows, as `diskbuffer.formats.filling.fill` writes them."""
        parts: dict[str, list[Any]] = {}
        for kind, _, arrays in found:
            for path, rows in arrays.items():
                mine = rows[:-1] if is_observation(path) else rows
                parts.setdefault(path, []).append(mine[-1:] if kind == "stack" else mine)
            told(0)
        self._rows |= {path: np.concatenate(rows) for path, rows in parts.items()}

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
            patches.enter_context(mock.patch.object(confined, "_PATIENCE", 5.0))
            try:
                import_(kind.format, source, store, allow_loss=LOSSES, max_memory=MEMORY, progress=False)
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
    with scratch() as name, Pool("soak.imports", name, timeout=60.0) as pool:
        return run_all(pool, round(20_000 * scale), seed)


def warm(names: Iterable[str] = tuple(sorted(KINDS.keys() - {"rlds"}))) -> None:
    """Import and compile what is needed, also for what is refused, so that what happens later is a data set's doing."""
    import_codecs()
    for kind, path in some(names):
        if attempt(kind, path, path.parent / "store")["class"] == "read" and kind.read is not None:
            compared(kind, path, stored(path.parent / "store"))


def import_codecs() -> None:
    """Import what is found by the name that is in a file."""
    logging.disable()
    from PIL import Image

    Image.init()  # which imports readers of all formats, as soon as one is not known
    for name in ("utf_16", "utf_16_be", "utf_16_le", "utf_32", "utf_32_be", "utf_32_le", "idna"):  # which JSON may have
        codecs.lookup(name)


def some(names: Iterable[str], changed: int = 1) -> Iterator[tuple[Kind, Path]]:
    """Yield data sets of each kind, as they are and changed, one at a time."""
    with scratch() as base:
        for name in names:
            for n in range(1 + changed):
                inside, outside = base / str(n) / "set", base / str(n) / "outside"
                for copy in (inside, outside):
                    shutil.copytree(made(base / "made", name), copy)
                path = inside / KINDS[name].name
                if n:
                    mutate(inside, outside, random.Random(f"{name} {n}"), path)
                yield KINDS[name], path
                shutil.rmtree(base / str(n))


def child(directory: Path) -> Callable[[Job], Answer]:
    """Return what imports data sets. The threads of ArrayRecord do not survive a fork."""
    warm(["rlds"])
    modules = directory.parent / "modules"
    modules.mkdir(exist_ok=True)
    (modules / f"{CANARY}.py").write_text("")
    sys.path.append(str(modules))
    return Bench(directory).do


# The process that reads


class Reading:
    """What processes that read data sets do, which are forked from one that `prepare` has made."""

    def __init__(self, directory: Path) -> None:
        self._fifo, site = directory / "seen", directory / "site"
        for path in (self._fifo, site):
            fuzz.remove(path)
        os.mkfifo(self._fifo)
        self._pipe = os.open(self._fifo, os.O_RDWR | os.O_NONBLOCK)
        site.mkdir()
        program = f"from soak.imports import prepare\nprepare({str(self._fifo)!r}, {str(directory / 'inside')!r})\n"
        (site / "sitecustomize.py").write_text(program)
        os.environ["PYTHONPATH"] = os.pathsep.join([str(site), os.environ["PYTHONPATH"]])
        forks._newest = None  # it was started without
        self.ready()

    def ready(self) -> None:
        """Start the process that others are forked from, where it has ended; forget what was seen."""
        connection, process = forks.fork("drqv2")
        is_watched, _, _ = select.select([self._pipe], [], [], 30.0)
        connection.close()
        process.end()
        self.seen()
        if not is_watched:
            raise RuntimeError("what processes that read do is not seen")

    def seen(self) -> list[tuple[str, str]]:
        """Return what was seen since."""
        told = b""
        with contextlib.suppress(BlockingIOError):
            while True:
                told += os.read(self._pipe, 2**16)
        return [tuple(json.loads(line)) for line in told.splitlines()]


def modules_of_readers() -> list[str]:
    """Return what is imported by who reads data sets, by a process of its own: threads of libraries do not survive a fork."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        import_codecs()
        for kind, path in some(sorted(KINDS.keys() - {"sb3"}), changed=0):
            with contextlib.suppress(Exception), warnings.catch_warnings(action="ignore"):
                read = registry.find(kind.format).read
                assert read is not None
                with contextlib.closing(blocks.Opened(read(path))) as source:
                    collections.deque(source.blocks(blocks.Wanted(source.contents.columns, {}, [0], 1)), 0)
        with open(writing, "w") as pipe:
            pipe.write("\n".join(name for name, module in sys.modules.items() if getattr(module, "__spec__", None)))
        os._exit(0)
    os.close(writing)
    with open(reading) as told:
        names = told.read().split()
    os.waitpid(pid, 0)
    return [name for name in names if name not in ("__main__", "__mp_main__")]


def prepare(fifo: str, inside: str) -> None:
    """Make of a process what others are forked from, where it is that: each tells what data sets below `inside` have it do."""
    if not any("reading_process" in each for each in sys.orig_argv):
        return
    for name in modules_of_readers():
        with contextlib.suppress(ImportError):  # some are parts of others
            importlib.import_module(name)
    pipe = -1

    def tell(kind: str, what: str) -> None:
        with contextlib.suppress(BlockingIOError):  # there is enough to be seen
            os.write(pipe, json.dumps([kind, what[:200]]).encode() + b"\n")

    def begin() -> None:
        nonlocal pipe
        pipe = os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)
        tell(*_BEGUN)
        watch.arm(Path(inside))

    watch = Watch(tell, modules=True)
    os.register_at_fork(after_in_child=begin)
