"""Stores of real frames to other formats and back: steps a second, and how much memory that takes.

    python -m bench.formats [--steps 1000000 --only lerobot minari] --json FILE

Each export and each import is a process of its own, as `diskbuffer export` and `diskbuffer import` are. Its time is that of the
call; its memory the most that it ever had, everything included: libraries, and pages of files that are mapped. What comes back
is compared with the store, bit by bit; final observations only where the format has them.
"""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import diskbuffer as db
from bench.frames import COLUMNS, fill, frames
from bench.measure import Part, Report, parser, run
from bench.worker import alone
from diskbuffer.formats.stored import StoreSource
from diskbuffer.schema.schema import is_observation

MOST = 500  # MB of memory


@dataclass(frozen=True)
class Case:
    """A format."""

    about: str
    final: bool = True  # whether it has final observations
    options: dict[str, Any] = field(default_factory=dict)  # of the export


CASES = {
    "lerobot": Case("LeRobot, lossless video", final=False, options={"allow_loss": ["final_obs"]}),
    "minari": Case("Minari"),
    "dreamer": Case("Dreamer, npz"),
    "diffusion_policy": Case("diffusion_policy, Zarr v2", final=False, options={"allow_loss": ["final_obs"]}),
    "tensordict": Case("TensorDict"),
}


def measured(what: str, format: str, source: Path, target: Path, options: dict[str, Any]) -> tuple[float, float]:
    """Export or import; return the seconds that it took, and the most memory that this process ever had, in MB."""
    from diskbuffer.formats import export, import_

    begin = time.perf_counter()
    (export if what == "export" else import_)(format, source, target, progress=False, **options)
    seconds = time.perf_counter() - begin
    status = Path("/proc/self/status").read_text().splitlines()
    peak = next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))
    return seconds, peak * 1024 / 1e6


def refuse_others(store: Path, back: Path, final: bool) -> None:
    """Raise an AssertionError where two stores have not the same episodes."""
    with closing(StoreSource(store)) as one, closing(StoreSource(back)) as other:
        assert one.contents.episodes == other.contents.episodes
        for a, b in zip(one.episodes(), other.episodes(), strict=True):
            assert (a.columns.keys(), a.steps, a.tag, a.stream) == (b.columns.keys(), b.steps, b.tag, b.stream)
            for name in a.columns:
                rows = a.steps + (is_observation(name) and final)
                found, wanted = b.columns[name][:rows], a.columns[name][:rows]
                assert found.dtype == wanted.dtype
                assert np.array_equal(found, wanted), f"{name} is another one than it was"


def there_and_back(name: str, report: Report, directory: Path) -> None:
    """Export a store of real frames, and import what came of it."""
    least = report.options.steps or (5_000 if report.quick else 50_000)
    case, paths = CASES[name], [directory / "store", directory / "out", directory / "back"]
    with db.ReplayBuffer(paths[0], columns=COLUMNS, frame_stack=4) as buffer:
        fill(buffer, frames(min(-(-least // 500) * 500, 50_000)), least)
        steps = len(buffer)
    for number, what in enumerate(("export", "import")):
        options = {} if number else case.options
        seconds, peak = alone(measured, what, name, paths[number], paths[number + 1], options)
        report.row(f"{case.about}, {steps:,} steps: {what}", steps / seconds, "steps/s")
        report.row(f"{case.about}, {steps:,} steps: memory of an {what}", peak, "MB", at_most=MOST)
    refuse_others(paths[0], paths[2], case.final)


PARTS: dict[str, Part] = {name: partial(there_and_back, name) for name in CASES}

if __name__ == "__main__":
    given = parser(__doc__)
    given.add_argument("--steps", type=int, help="50,000 by default")
    run("formats", PARTS, given)
