"""Stores of real frames to other formats and back: steps a second, and how much memory that takes.

    python -m bench.formats [--steps 1000000 --only lerobot minari] --json FILE

Each export and each import is a process of its own, as `diskbuffer export` and `diskbuffer import` are. Its time is that of the
call; its memory the most that it ever had, everything included: libraries, and pages of files that are mapped. What comes back
is compared with the store, bit by bit; final observations only where the format has them.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import diskbuffer as db
from bench.frames import COLUMNS, frames
from bench.measure import ONLY, Report, parser
from diskbuffer.formats.stored import StoreSource
from diskbuffer.schema import is_observation

ROWS = 500  # frames of an episode, one more than it has steps
MOST = 500  # MB of memory

CHILD = """
import json, sys, time
run, format, source, target, options = json.loads(sys.argv[1])
if run == "export":
    from diskbuffer.formats import export as call
else:
    from diskbuffer.formats import import_ as call
begin = time.perf_counter()
call(format, source, target, progress=False, **options)
seconds = time.perf_counter() - begin
peak = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(json.dumps([seconds, peak * 1024 / 1e6]))
"""


@dataclass(frozen=True)
class Case:
    """A format."""

    about: str
    final: bool = True  # whether it has final observations
    options: dict[str, Any] = field(default_factory=dict)  # of the export


CASES = {
    "lerobot": Case("LeRobot, lossless video", final=False, options={"allow_loss": ["final_obs"]}),
    "minari": Case("Minari, HDF5"),
    "dreamer": Case("Dreamer, npz"),
    "diffusion_policy": Case("diffusion_policy, Zarr v2", final=False, options={"allow_loss": ["final_obs"]}),
    "tensordict": Case("TensorDict"),
}


def make(path: Path, least: int, seed: int) -> int:
    """Make a store of episodes of real frames; return how many steps it has."""
    pixels, random, steps = frames(min(-(-least // ROWS) * ROWS, 50_000)), np.random.default_rng(seed), ROWS - 1
    terminated = np.arange(steps) == steps - 1
    with db.ReplayBuffer(path, columns=COLUMNS, frame_stack=4) as buffer:
        first = 0
        while len(buffer) < least:
            obs, first = pixels[first : first + ROWS], (first + ROWS) % len(pixels)
            action, reward = random.integers(0, 6, steps), random.integers(0, 2, steps).astype(np.float32)
            buffer.extend(obs=obs, action=action, reward=reward, terminated=terminated)
        buffer.flush(recompress=True)
        return len(buffer)


def measured(run: str, format: str, source: Path, target: Path, options: dict[str, Any]) -> tuple[float, float]:
    """Export or import in a process; return the seconds that it took, and its most memory in MB."""
    arguments = json.dumps([run, format, str(source), str(target), options])
    seconds, peak = json.loads(subprocess.check_output([sys.executable, "-c", CHILD, arguments], text=True))
    return seconds, peak


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


def main() -> None:
    """Run everything."""
    given = parser(__doc__.splitlines()[0])
    given.add_argument("--steps", type=int, help="50,000 by default")
    given.add_argument("--only", nargs="+", choices=CASES, help=ONLY)
    args = given.parse_args()
    report = Report("formats", args.seed, quick=args.quick)
    directory = Path(tempfile.mkdtemp(prefix="diskbuffer-bench-"))
    try:
        steps = make(directory / "store", args.steps or (5_000 if args.quick else 50_000), args.seed)
        for name in args.only or CASES:
            case, paths = CASES[name], [directory / "store", directory / "out", directory / "back"]
            for number, run in enumerate(("export", "import")):
                options = {} if number else case.options
                seconds, peak = measured(run, name, paths[number], paths[number + 1], options)
                report.row(f"{case.about}: {run} of {steps:,} steps", steps / seconds, "steps/s")
                report.row(f"{case.about}: {run} of {steps:,} steps: memory", peak, "MB", at_most=MOST)
            refuse_others(paths[0], paths[2], case.final)
            for path in paths[1:]:
                shutil.rmtree(path)
    finally:
        shutil.rmtree(directory)
    report.write(args.json, keep=bool(args.only))


if __name__ == "__main__":
    main()
