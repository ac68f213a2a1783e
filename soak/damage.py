"""Damage: a bit flips, a file is cut short, deleted, emptied, replaced, swapped. It must be detected.

    python -m soak.damage --count 10000 --seed 0 [--minutes 10] [--workers 2]

Single bits are flipped one at a time in copies of small stores of every kind (`tests.support.specimens`): a file is drawn first,
then a byte of it, by turns among all and among those near others that are not zero, as most of the segment table is unused. After
each, the store is checked, opened and read whole, in a process that may crash; a part of them is repaired, too, and read again.
"""

from __future__ import annotations

import argparse
import collections
import os
import shutil
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import diskbuffer as db
from soak.repairs import Expected, repair
from soak.table import Row
from soak.usage import NOTES_OF_SLOTS, Bools, used_bytes
from soak.workers import Answer, Job, Pool, scratch_directory, serve
from tests.support.specimens import KINDS, Seen, expected, make, observe

MODULE = "soak.damage"
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
}
_CAMPAIGNS = {"flips": "bits flipped", "files": "files cut, deleted, swapped"}
_REPAIRED = 0.3  # of all cases
_MODES_OF_OPENING = ("r", "r", "r", "a")
NOTES = 12  # broken cases that are told in full


# In the worker


class Bench:
    """Copies of all specimens, one of which is damaged at a time."""

    def __init__(self, directory: Path) -> None:
        self._pristine, self._copies = directory.parent / "pristine", directory / "copies"
        shutil.rmtree(self._copies, ignore_errors=True)  # the one before may have died
        self._expected: dict[str, tuple[Seen, Any]] = {}
        self._used: dict[str, dict[str, Bools]] = {}
        self._whole: dict[str, Expected] = {}

    def do(self, job: Job) -> Answer:
        """Do one job: make a specimen, or damage one, read it, and mend it again."""
        if job["what"] == "make":
            make(self._pristine / job["kind"], job["kind"], job["seed"])
            make(self._pristine / "twins" / job["kind"], job["kind"], job["seed"] + 1)
            return {"made": True}
        root, mode = self._copies / job["kind"], job["mode"]
        self._what_is_expected(job["kind"])
        if not root.exists():
            self._copy(job["kind"])
        damage(job, root, self._pristine)
        try:
            answer = self._judged(job, root)
        finally:
            if mode == "a":
                self._copy(job["kind"])
            else:
                for name in filter(None, (job["file"], job.get("other"))):
                    shutil.copy(self._pristine / job["kind"] / name, root / name)
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
            copied = root.with_name("repaired")
            shutil.rmtree(copied, ignore_errors=True)
            shutil.copytree(root, copied)
            wrong = repair(copied, KINDS[kind], self._whole[kind], job)
        answer = read(root, job["mode"], KINDS[kind].n_envs, *self._expected[kind], problems)
        if answer["class"] == "unnoticed" and not self._is_used(job, before):
            answer["class"] = "unused"
        if wrong is not None and answer["class"] not in BROKEN:
            answer["class"], answer["error"] = "repair", wrong
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

    def _what_is_expected(self, kind: str) -> None:
        if kind not in self._expected:
            self._copy(kind)
            self._used[kind] = used_bytes(self._copies / kind, closed=not KINDS[kind].killed)
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
        _replace(root / job["other"], data)
        _replace(root / name, other)
        return
    changed: Callable[[], bytes] = {
        "flip": lambda: data[: job["at"]] + bytes([data[job["at"]] ^ 1 << job["bit"]]) + data[job["at"] + 1 :],
        "cut": lambda: data[: job["at"]],
        "empty": lambda: bytes(len(data)),
        "garbage": lambda: np.random.default_rng(job["at"]).bytes(len(data)),
        "foreign": lambda: (pristine / "twins" / job["kind"] / name).read_bytes(),
    }[what]
    _replace(root / name, changed())


def _replace(path: Path, data: bytes) -> None:
    path.unlink()
    path.write_bytes(data)


def contents(root: Path) -> dict[str, bytes]:
    """Return what is in all files; what belongs to the lock is left out."""
    found = {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}
    return {name: data for name, data in found.items() if "writer." not in name}


def read(root: Path, mode: str, streams: int, told: Seen, steps: Any, problems: list[str] | None) -> Answer:
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


def check(root: Path) -> list[str] | None:
    """Return what `db.check` finds, and None where there is no such function."""
    function = getattr(db, "check", None)
    if function is None:
        return None
    try:
        report = function(root, repair=False, progress=False)
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


def prepare(pool: Pool, directory: Path, kinds: list[str], seed: int) -> dict[str, dict[str, bytes]]:
    """Make specimens; return the contents of their files."""
    for kind in kinds:
        if "made" not in pool.do({"what": "make", "kind": kind, "seed": seed}):
            raise RuntimeError(f"the specimen {kind!r} could not be made")
    return {kind: _contents(directory / "pristine" / kind, directory / "pristine" / "twins" / kind) for kind in kinds}


def _contents(root: Path, twin: Path) -> dict[str, bytes]:
    names = sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file() and path.stat().st_size)
    return {name: (root / name).read_bytes() for name in names if "writer." not in name and (twin / name).is_file()}


def campaign(
    pool: Pool,
    files: dict[str, dict[str, bytes]],
    what: str,
    count: int | None,
    seed: int,
    seconds: float | None = None,
) -> tuple[Row, list[tuple[Job, Answer]]]:
    """Run a campaign. Return its row, and every case with what came of it."""
    rng = np.random.default_rng([seed, list(_CAMPAIGNS).index(what)])
    jobs: Any = flips(10**9 if count is None else count, rng, files) if what == "flips" else whole_files(rng, files)[:count]
    cases = [(job, _settled(answer)) for job, answer in pool.do_all(jobs, seconds)]
    return _row(what, seed, cases), cases


def _settled(answer: Answer) -> Answer:
    if "died" in answer:
        return {"class": "crash", "error": answer["died"]}
    if "hung" in answer:
        return {"class": "hang", "error": f"{answer['hung']} s"}
    return answer


def _row(what: str, seed: int, cases: list[tuple[Job, Answer]]) -> Row:
    classes = collections.Counter(answer["class"] for _, answer in cases)
    broken = [(job, answer) for job, answer in cases if answer["class"] in BROKEN]
    row = Row(_CAMPAIGNS[what], len(cases), len(broken))
    row.notes += [f"{classes[name]:,} {meaning}" for name, meaning in {**FINE, **BROKEN}.items()]
    detected = [answer for _, answer in cases if answer["class"] == "detected"]
    row.notes.append(f"{sum(not answer['named'] for answer in detected):,} of those detected do not name the store's path")
    missed = sum(answer["class"] == "detected" and answer.get("problems") == [] for _, answer in cases)
    row.notes.append(f"{missed:,} were detected, but not by check")
    row.notes += _by_file(cases)
    for job, answer in broken[:NOTES]:
        row.notes.append(f"seed {seed}: {answer['class']}: {job} -> {answer.get('error', '')[:300]}")
    return row


def _by_file(cases: list[tuple[Job, Answer]]) -> list[str]:
    """Count what is broken, or was not noticed, by kind of file."""
    found = collections.Counter(
        (answer["class"], job["what"], "*/zarr.json" if "/zarr" in job["file"] else family(job["file"]))
        for job, answer in cases
        if answer["class"] in BROKEN
    )
    return [f"{n:,} times {what} of {name}: {came}" for (came, what, name), n in sorted(found.items())]


def family(name: str) -> str:
    """Return a file's name without its number."""
    head, _, last = name.rpartition("/")
    return f"{head}/c.*" if last.startswith("c.") else name


def main(
    count: int, seed: int = 0, minutes: float | None = None, workers: int = 2, kinds: list[str] | None = None
) -> Iterator[Row]:
    """Run all campaigns; all that can happen to whole files is some 10,000 cases, of which `count` are drawn."""
    seconds = None if minutes is None else minutes * 60
    with scratch_directory() as name, Pool(MODULE, Path(name), workers) as pool:
        files = prepare(pool, Path(name), list(KINDS) if kinds is None else kinds, seed)
        for what in _CAMPAIGNS:
            yield campaign(pool, files, what, count, seed, seconds)[0]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        place: Path = given.serve

        def warm() -> None:
            """Compile, and read everything once."""
            with scratch_directory() as name:
                make(Path(name) / "store", "pixels, closed", 0)
                expected(Path(name) / "store", KINDS["pixels, closed"].n_envs)

        serve(warm, lambda: Bench(place).do)
    else:
        for row in main(given.count, given.seed, given.minutes, given.workers):
            print(row, flush=True)
