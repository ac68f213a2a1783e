"""What a repair must leave: a store that is whole, serves nothing wrong, and has lost few steps."""

from __future__ import annotations

import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import diskbuffer as db
from diskbuffer.schema.nested import flatten
from soak.workers import Job
from tests.support.specimens import Kind, steps_of

Array = npt.NDArray[Any]
_DERIVED = ("tag", "value")  # a repair may lose what was written later, and keeps the steps
_MOST_OF_ROWS = 5  # steps that a chunk of four rows takes with it, and so more than a row does


@dataclass(frozen=True)
class Expected:
    """All steps of a store, and their columns."""

    steps: Array
    columns: dict[str, Array]

    @classmethod
    def of(cls, root: Path, steps: Array) -> Expected:
        """Read an undamaged store."""
        with db.ReplayBuffer(root, mode="r", threads=1) as buffer:
            return cls(steps, _columns(buffer, steps))


def _columns(buffer: db.ReplayBuffer, steps: Array) -> dict[str, Array]:
    return {path: np.asarray(value) for path, value in flatten(buffer.at(steps)).items()} if len(steps) else {}


def repair(root: Path, kind: Kind, whole: Expected, job: Job) -> str | None:
    """Repair a damaged store; return what is wrong about it afterwards, None if nothing is."""
    try:
        report = db.check(root, repair=True, progress=False)
        again = db.check(root, progress=False)
        if not again.ok:
            return f"a second check found {again.problems[0]}, the first {[str(problem) for problem in report.problems[:2]]}"
        for mode in ("r", "a", "r"):
            if (wrong := _what_is_wrong(root, kind, whole, job, mode)) is not None:
                return f"opened with {mode!r}: {wrong}"
    except Exception as error:  # noqa: BLE001  which is what is looked for
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "/diskbuffer/" in frame.filename]
        where = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "?"
        return f"{type(error).__name__}: {error} ({where})"
    return None


def _what_is_wrong(root: Path, kind: Kind, whole: Expected, job: Job, mode: Any) -> str | None:
    with db.ReplayBuffer(root, mode=mode, threads=1) as buffer:
        steps = steps_of(buffer.episodes, kind.n_envs)
        unknown = np.setdiff1d(steps, whole.steps)
        if len(unknown):
            return f"steps that there never were: {unknown[:5]}"
        lost = len(whole.steps) - len(steps)
        if lost > (most := _most(job, kind)):
            return f"{lost} steps were lost, and at most {most} should have been"
        found = _columns(buffer, steps)
        where = np.searchsorted(whole.steps, steps, sorter=np.argsort(whole.steps))
        where = np.argsort(whole.steps)[where]
        for name, values in found.items():
            differ = (values != whole.columns[name][where]).reshape(len(steps), -1).any(axis=1)
            if name in _DERIVED:
                differ &= values != 0
            if differ.any():
                return f"{name} is another than before, of steps {steps[differ][:5]}"
        if mode == "a":
            buffer.flush(recompress=True)
    return None


def _most(job: Job, kind: Kind) -> int:
    """Return how many steps may be lost."""
    total = 0
    for name in filter(None, (job["file"], job.get("other"))):
        if name.startswith("_segments") or name.endswith("zarr.json") or name.split("/")[0] in _DERIVED:
            continue  # what follows from the rows
        if job["what"] == "flip":
            total += _MOST_OF_ROWS
        else:
            total += (kind.segment_rows + 1) * (3 * kind.n_envs if name.startswith("_tail") else 1)
    return total
