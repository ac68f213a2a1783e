"""Forecasts of `diskbuffer plan` beside what a store then takes of the disk, and the memory that a buffer takes.

    python -m bench.plan

Each environment is tried for `--seconds`, then played at random for many more steps, through a store that keeps fewer of them.
Disk is what `stats()` tells at the end, complete segments recompressed. Memory is by how much more the process has to itself
(RssAnon) than before the store was made: psutil's USS has pages of files that are mapped in it, which are page cache.
"""

from __future__ import annotations

import dataclasses
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from bench.measure import Part, Report, anonymous, parser, run
from bench.worker import alone
from diskbuffer import ReplayBuffer
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


CASES = {
    "pong": Case("Pong, 84x84, stacks of 4", "ALE/Pong-v5", 60_000, 4),
    "breakout": Case("Breakout, 84x84, stacks of 4, 4 environments", "ALE/Breakout-v5", 60_000, 4, 4),
    "ms_pacman": Case("Ms. Pac-Man, 84x84, stacks of 4, 8 environments", "ALE/MsPacman-v5", 60_000, 4, 8),
    "racing": Case("CarRacing, 96x96x3", "CarRacing-v3", 12_000),
    "cartpole": Case("CartPole, vectors of 4", "CartPole-v1", 200_000),
}


def played(case: Case, path: Path, seed: int) -> tuple[int, int]:
    """Add steps, and sample, as a training without a learner; return the bytes of disk and of memory that it took."""
    with closing(make(case.env, case.n_envs)) as env:
        steps = play(env, seed)
        next(steps)
        before = anonymous()
        with ReplayBuffer(path, case.kept, env=env, frame_stack=case.stack) as buffer:
            for n in range(case.steps // case.n_envs):
                buffer.add(**next(steps))
                if n % EVERY == 0:
                    buffer.sample(256)
            buffer.flush(recompress=True)
            return buffer.stats()["disk_bytes"], anonymous() - before


def measure(name: str, report: Report, directory: Path) -> None:
    """Plan, play, compare."""
    case, seed = CASES[name], report.seed
    case = dataclasses.replace(case, steps=case.steps // 10) if report.quick else case
    with closing(make(case.env, case.n_envs)) as env:
        how: dict[str, Any] = {"capacity": case.kept, "steps": case.steps, "frame_stack": case.stack}
        forecast = plan_environment(env, directory, **how, seconds=report.options.seconds, seed=seed).disk
    disk, memory = alone(played, case, directory / "store", seed + 1)
    report.row(f"disk, {case.name}: forecast", forecast / 1e6, "MB")
    report.row(f"disk, {case.name}: taken", disk / 1e6, "MB")
    report.row(f"disk, {case.name}: off by", 100 * abs(forecast - disk) / disk, "%", at_most=NEAR)
    report.row(f"memory, {case.name}: taken", memory / 1e6, "MB")


PARTS: dict[str, Part] = {name: partial(measure, name) for name in CASES}

if __name__ == "__main__":
    given = parser(__doc__)
    given.add_argument("--seconds", type=float, default=20.0, help="of each trial")
    run("plan", PARTS, given)
