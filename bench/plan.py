"""Forecasts of `diskbuffer plan` beside what a store then takes of the disk, and the memory that a buffer takes.

    python -m bench.plan

Each environment is tried for `--seconds`, then played at random for many more steps, through a store that keeps fewer of them.
Disk is what `stats()` tells at the end, complete segments recompressed. Memory is by how much more the process has to itself
(RssAnon) than before the store was made: psutil's USS has pages of files that are mapped in it, which are page cache.
"""

from __future__ import annotations

import dataclasses
import tempfile
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.measure import Report, parser
from bench.worker import Worker
from diskbuffer.inspect.environments import make, play
from diskbuffer.inspect.plan import plan_environment

NEAR = 5  # per cent: how far a forecast may be off
EVERY = 64  # calls between batches


@dataclass(frozen=True)
class Case:
    """An environment, how many steps of it are played, and how many of them are kept."""

    name: str
    env: str
    steps: int
    stack: int | None = None
    n_envs: int = 1

    @property
    def kept(self) -> int:
        """Return the capacity."""
        return self.steps * 3 // 5


CASES = [
    Case("Pong, 84x84, stacks of 4", "ALE/Pong-v5", 60_000, 4),
    Case("Breakout, 84x84, stacks of 4, 4 environments", "ALE/Breakout-v5", 60_000, 4, 4),
    Case("Ms. Pac-Man, 84x84, stacks of 4, 8 environments", "ALE/MsPacman-v5", 60_000, 4, 8),
    Case("CarRacing, 96x96x3", "CarRacing-v3", 12_000),
    Case("CartPole, vectors of 4", "CartPole-v1", 200_000),
]


class Run:
    """A training without a learner, in a process of its own."""

    def __init__(self, case: Case, directory: str, seed: int) -> None:
        self._case, self._path, self._seed = case, Path(directory) / "store", seed

    def play(self) -> tuple[int, int]:
        """Add steps, and sample; return the bytes of disk and of memory that it took."""
        from diskbuffer.buffer import ReplayBuffer

        with closing(make(self._case.env, self._case.n_envs)) as env:
            steps = play(env, self._seed)
            next(steps)
            before = _anonymous_bytes()
            with ReplayBuffer(self._path, self._case.kept, env=env, frame_stack=self._case.stack) as buffer:
                for n in range(self._case.steps // self._case.n_envs):
                    buffer.add(**next(steps))
                    if n % EVERY == 0:
                        buffer.sample(256)
                buffer.flush(recompress=True)
                return buffer.stats()["disk_bytes"], _anonymous_bytes() - before

    def close(self) -> None:
        """Hold nothing."""


def _anonymous_bytes() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("RssAnon:"))


def measure(report: Report, case: Case, seconds: float, seed: int, directory: Path) -> None:
    """Plan, run, compare."""
    with closing(make(case.env, case.n_envs)) as env:
        how: dict[str, Any] = {"capacity": case.kept, "steps": case.steps, "frame_stack": case.stack}
        forecast = plan_environment(env, directory, **how, seconds=seconds, seed=seed).disk
    with tempfile.TemporaryDirectory(dir=directory) as temporary, Worker(Run, case, temporary, seed + 1) as worker:
        disk, memory = worker.ask("play")
    report.row(f"disk, {case.name}: forecast", forecast / 1e6, "MB")
    report.row(f"disk, {case.name}: taken", disk / 1e6, "MB")
    report.row(f"disk, {case.name}: off by", 100 * abs(forecast - disk) / disk, "%", at_most=NEAR)
    report.row(f"memory, {case.name}: taken", memory / 1e6, "MB")


def main() -> None:
    """Measure all, and write the report."""
    options = parser(__doc__ or "")
    options.add_argument("--seconds", type=float, default=20.0, help="of each trial")
    options.add_argument("--only", nargs="*", default=[], help="cases whose names begin so")
    options.add_argument("--path", type=Path, default=Path(tempfile.gettempdir()), help="a directory on the disk to measure")
    given = options.parse_args()
    report = Report("plan", given.seed, quick=given.quick)
    for case in CASES:
        if not given.only or case.name.startswith(tuple(given.only)):
            few = dataclasses.replace(case, steps=case.steps // 10) if given.quick else case
            measure(report, few, given.seconds, given.seed, given.path)
    report.write(given.json, keep=bool(given.only))


if __name__ == "__main__":
    main()
