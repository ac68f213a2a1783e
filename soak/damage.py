"""Damage: a bit flips, a file is cut short, deleted, emptied, replaced, swapped. It must be detected.

Single bits are flipped one at a time in copies of small stores of every kind (`tests.support.specimens`): a file is drawn first,
then a byte of it, by turns among all and among those near others that are not zero, as most of the segment table is unused. After
each, the store is checked, opened and read whole, in a process that may crash; a part of them is repaired, too, and read again.
"""

from __future__ import annotations

import collections
import shutil
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import diskbuffer as db
from soak.repairs import Expected, repair
from soak.table import Row, tally
from soak.usage import NOTES_OF_SLOTS, Bools, open_files, used_bytes
from soak.workers import Answer, Job, Pool, scratch
from tests.support import specimens
from tests.support.specimens import KINDS, Seen, adopt, expected, make, observe, replace

DETECTED = ("CorruptionError", "NotAStoreError", "FormatError", "SchemaError")
# What can come of damage; what is broken comes first.
BROKEN = {
    "wrong": "wrong data returned",
    "missing": "steps silently missing",
    "crash": "the process crashed",
    "hang": "the process hung",
    "untyped": "an error that is no DiskBufferError",
    "changed": "changed by a check that was not to repair",
    "repair": "not repaired as it should be",
    "unnoticed": "harmless so far, but not noticed",
}
FINE = {
    "detected": "detected at opening or reading",
    "checked": "harmless so far, found by check",
    "unused": "of bytes that are not in use, not noticed",
    "open": "of files that were open still, whose rows nothing verifies",
}
OF_OPEN_FILES = ("wrong", "missing", "repair", "unnoticed")  # what may come of damage to them
CAMPAIGNS = {"flips": "bits flipped", "files": "files cut, deleted, swapped"}
_REPAIRED = 0.3  # of all cases
_MODES_OF_OPENING = ("r", "r", "r", "a")


# In the worker


class Bench:
    """Copies of all specimens, one of which is damaged at a time."""

    def __init__(self, directory: Path) -> None:
        self._pristine, self._copies = directory.parent / "pristine", directory / "copies"
        shutil.rmtree(self._copies, ignore_errors=True)  # the one before may have died
        self._expected: dict[str, tuple[Seen, Any]] = {}
        self._used: dict[str, dict[str, Bools]] = {}
        self._open: dict[str, set[str]] = {}
        self._whole: dict[str, Expected] = {}

    def do(self, job: Job) -> Answer:
        """Damage a specimen, read it, and mend it again."""
        made(self._pristine, job["kind"], job["seed"])
        root, mode = self._copies / job["kind"], job["mode"]
        self._what_is_expected(job["kind"])
        if not root.exists():
            self._copy(job["kind"])
        if job["repair"]:  # of a copy, which is made, and passes for the store, before it is damaged
            copied = root.with_name("repaired")
            shutil.rmtree(copied, ignore_errors=True)
            shutil.copytree(root, copied)
            adopt(copied)
            damage(job, copied, self._pristine)
        damage(job, root, self._pristine)
        try:
            answer = self._judged(job, root)
        finally:
            if mode == "a":
                self._copy(job["kind"])
            else:
                for name in filter(None, (job["file"], job.get("other"))):
                    shutil.copy(self._pristine / job["kind"] / name, root / name)
                adopt(root)
        return answer

    def _judged(self, job: Job, root: Path) -> Answer:
        kind = job["kind"]
        before = contents(root)
        try:
            problems = check(root)
        except Exception as error:  # noqa: BLE001  which is what is looked for
            return untyped(error)
        if contents(root) != before:
            return {"class": "changed", "error": "files are not as they were before"}
        wrong = None
        if job["repair"]:
            wrong = repair(root.with_name("repaired"), KINDS[kind], self._whole[kind], job)
        answer = read(root, job["mode"], KINDS[kind].n_envs, *self._expected[kind], problems)
        if answer["class"] == "unnoticed" and not self._is_used(job, before):
            answer["class"] = "unused"
        if wrong is not None and answer["class"] not in BROKEN:
            answer["class"], answer["error"] = "repair", wrong
        if answer["class"] in OF_OPEN_FILES and self._open[kind] & {job["file"], job.get("other")}:
            answer["class"] = "open"
        return answer

    def _is_used(self, job: Job, found: dict[str, bytes]) -> bool:
        """Tell whether bytes that are in use are other ones now."""
        for name in filter(None, (job["file"], job.get("other"))):
            was, used = (self._pristine / job["kind"] / name).read_bytes(), self._used[job["kind"]][name]
            now = found.get(name, b"")
            if len(was) != len(now):
                return bool(used.any())
            differ = np.frombuffer(was, np.uint8) != np.frombuffer(now, np.uint8)
            if name in NOTES_OF_SLOTS:  # one that is not there is made again
                differ &= np.repeat(np.frombuffer(now, np.uint64) != 0, 8)
            if used[differ].any():
                return True
        return False

    def _copy(self, kind: str) -> None:
        shutil.rmtree(self._copies / kind, ignore_errors=True)
        shutil.copytree(self._pristine / kind, self._copies / kind)
        adopt(self._copies / kind)

    def _what_is_expected(self, kind: str) -> None:
        if kind not in self._expected:
            self._copy(kind)
            self._used[kind], self._open[kind] = used_bytes(self._copies / kind), open_files(self._copies / kind)
            self._expected[kind] = expected(self._copies / kind, KINDS[kind].n_envs)
            self._whole[kind] = Expected.of(self._copies / kind, self._expected[kind][1])
            self._copy(kind)  # which was opened for writing


def damage(job: Job, root: Path, pristine: Path) -> None:
    """Do to a copy of a store what a job says; files are replaced, not changed, for somebody may still have them mapped."""
    name, what = job["file"], job["what"]
    data = (root / name).read_bytes()
    if what == "delete":
        (root / name).unlink()
        return
    if what == "swap":
        other = (root / job["other"]).read_bytes()
        replace(root / job["other"], data)
        replace(root / name, other)
        return
    changed: Callable[[], bytes] = {
        "flip": lambda: data[: job["at"]] + bytes([data[job["at"]] ^ 1 << job["bit"]]) + data[job["at"] + 1 :],
        "cut": lambda: data[: job["at"]],
        "empty": lambda: bytes(len(data)),
        "garbage": lambda: np.random.default_rng(job["at"]).bytes(len(data)),
        "foreign": lambda: (pristine / "twins" / job["kind"] / name).read_bytes(),
    }[what]
    replace(root / name, changed())


def contents(root: Path) -> dict[str, bytes]:
    """Return what is in all files; what belongs to the lock is left out."""
    return {name: data for name, data in specimens.contents(root).items() if "writer." not in name}


def read(root: Path, mode: str, streams: int, told: Seen, steps: Any, problems: list[str]) -> Answer:
    """Read a damaged store whole, and judge what it tells; `problems` are those that a check found."""
    try:
        seen = observe(root, mode, streams, steps)
        found = judge(seen, told)
        if mode == "a" and found["class"] not in BROKEN:  # what was closed may not look undamaged now
            again = judge(observe(root, "r", streams, steps), told)
            found = again if again["class"] in BROKEN or found["class"] == "unnoticed" else found
    except Exception as error:  # noqa: BLE001  which is what is looked for
        return untyped(error)
    found["problems"] = problems
    if found["class"] == "unnoticed" and problems:
        found["class"], found["named"] = "checked", str(root) in problems[0]
    return found


def untyped(error: Exception) -> Answer:
    """Tell of an error that is none of ours."""
    where = traceback.extract_tb(error.__traceback__)[-1]
    return {"class": "untyped", "error": f"{type(error).__name__}: {error} ({Path(where.filename).name}:{where.lineno})"}


def judge(seen: Seen, told: Seen) -> Answer:
    """Compare what a damaged store tells with what it told before."""
    differ = [what for what, found in seen.told.items() if told.told[what] != found]
    if "len" in differ:
        return {"class": "missing", "error": f"different: {', '.join(differ)}"}
    if differ:
        return {"class": "wrong", "error": f"different: {', '.join(differ)}"}
    for where, name, message in seen.errors:
        if name not in DETECTED:
            return {"class": "missing", "error": f"{where}: {name}: {message}"}
    if seen.errors:
        where, name, message = seen.errors[0]
        return {"class": "detected", "where": where, "error": f"{name}: {message}", "named": message.find("/copies/") >= 0}
    return {"class": "unnoticed"}


def check(root: Path) -> list[str]:
    """Return what `db.check` finds."""
    try:
        report = db.check(root, progress=False)
    except db.DiskBufferError as error:
        return [str(error)]
    return [f"{problem.path}: {problem}" for problem in report.problems]


# The campaign


def flips(count: int, rng: np.random.Generator, files: dict[str, dict[str, bytes]]) -> Iterator[Job]:
    """Yield flips of single bits."""
    kinds = list(files)
    for n in range(count):
        kind = kinds[n % len(kinds)]
        name = str(rng.choice(list(files[kind])))
        at = _place(rng, files[kind][name], likely=bool(rng.integers(2)))
        mode = _MODES_OF_OPENING[rng.integers(len(_MODES_OF_OPENING))]
        yield {
            **{"what": "flip", "kind": kind, "file": name, "at": at, "bit": int(rng.integers(8))},
            **{"mode": mode, "repair": bool(rng.random() < _REPAIRED)},
        }


def _place(rng: np.random.Generator, data: bytes, likely: bool) -> int:
    """Draw a byte of a file; a `likely` one is near others that are not zero."""
    array = np.frombuffer(data, np.uint8)
    if likely:
        blocks = np.unique(np.flatnonzero(array) // 64)
        if len(blocks):
            return min(int(rng.choice(blocks)) * 64 + int(rng.integers(64)), len(array) - 1)
    return int(rng.integers(len(array)))


def whole_files(rng: np.random.Generator, files: dict[str, dict[str, bytes]]) -> list[Job]:
    """Return everything that can happen to a file as a whole."""
    jobs: list[Job] = []
    for kind, found in files.items():
        for name, data in found.items():
            ways: list[Job] = [{"what": "cut", "at": at} for at in sorted({0, len(data) // 2, len(data) - 1})]
            ways += [{"what": "delete"}, {"what": "garbage", "at": int(rng.integers(2**31))}]
            ways += [{"what": "empty"}] if any(data) else []
            ways += [{"what": "foreign"}]
            others = [other for other in found if other > name and len(found[other]) == len(data) and found[other] != data]
            others += [str(other) for other in rng.choice(list(found), 2) if len(found[str(other)]) != len(data)]
            ways += [{"what": "swap", "other": other} for other in others]
            jobs += [{"kind": kind, "file": name, "mode": "r", "repair": bool(rng.random() < _REPAIRED), **way} for way in ways]
            jobs += [{"kind": kind, "file": name, "mode": "a", "repair": False, **ways[rng.integers(len(ways))]}]
    return [jobs[n] for n in rng.permutation(len(jobs))]


def made(pristine: Path, kind: str, seed: int) -> dict[str, bytes]:
    """Make a specimen and its twin, where they are not there yet; return the contents of the files that both have."""
    root, twin = pristine / kind, pristine / "twins" / kind
    if not root.exists():
        make(root, kind, seed)
        make(twin, kind, seed + 1)
    return {name: data for name, data in contents(root).items() if data and (twin / name).is_file()}


def campaign(pool: Pool, what: str, count: int, seed: int, kinds: list[str]) -> tuple[Row, list[tuple[Job, Answer]]]:
    """Run a campaign. Return its row, and every case with what came of it."""
    files = {kind: dict(sorted(made(pool.directory / "pristine", kind, seed).items())) for kind in kinds}
    rng = np.random.default_rng([seed, list(CAMPAIGNS).index(what)])
    jobs: Any = flips(count, rng, files) if what == "flips" else whole_files(rng, files)[:count]
    row, cases = tally(CAMPAIGNS[what], pool.do_all(job | {"seed": seed} for job in jobs), FINE, BROKEN)
    detected = [answer for _, answer in cases if answer["class"] == "detected"]
    row.notes.append(f"{sum(not answer['named'] for answer in detected):,} of those detected do not name the store's path")
    row.notes.append(f"{sum(answer['problems'] == [] for answer in detected):,} were detected, but not by check")
    wrong = [(answer["class"], job["what"], _family(job["file"])) for job, answer in cases if answer["class"] in BROKEN]
    broken = collections.Counter(wrong)
    row.notes += [f"{n:,} times {way} of {name}: {came}" for (came, way, name), n in sorted(broken.items())]
    return row, cases


def _family(name: str) -> str:
    """Return a file's name without its number."""
    head, _, last = name.rpartition("/")
    return f"{head}/c.*" if last.startswith("c.") else "*/zarr.json" if head and last.startswith("zarr") else name


def main(scale: float = 1.0, *, seed: int = 0) -> Iterator[Row]:
    """Do 10,000 cases of each campaign, times `scale`; all that can happen to whole files is some 10,000."""
    with scratch() as name, Pool("soak.damage", name) as pool:
        for what in CAMPAIGNS:
            yield campaign(pool, what, round(10_000 * scale), seed, list(KINDS))[0]


def child(directory: Path) -> Callable[[Job], Answer]:
    """Return what damages specimens."""
    return Bench(directory).do
