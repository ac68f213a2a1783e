"""Forecasts of `diskbuffer plan` beside what a longer run then takes of the disk and of memory.

    python -m bench.plan --json FILE

Each environment is tried for `--seconds`, then played at random for many more steps, through a store that holds fewer of them,
with a batch sampled now and then. Memory is by how much more the process has to itself (RssAnon) than before the store was made:
psutil's USS has pages of files that are mapped in it, which are page cache. Disk is what `stats()` tells at the end, all sealed.
Bytes written are what Linux charges the process for, on a disk: none on a tmpfs.
"""

from __future__ import annotations

import dataclasses
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

import diskbuffer as db
from bench.kinds import KINDS
from bench.measure import Report, parser
from bench.worker import Worker
from diskbuffer.inspect.environments import Environment, EnvironmentOptions
from diskbuffer.inspect.memory import anonymous_bytes
from diskbuffer.inspect.plan import Plan, plan
from diskbuffer.inspect.trial import Asked, ratios

NEAR = 20  # per cent: how far a forecast may be off
FIRST_STEPS = 200
EVERY = 16  # steps between batches


@dataclass(frozen=True)
class Case:
    """An environment, how many steps of it are played, and how many of them are kept."""

    name: str
    asked: Asked
    steps: int


def _case(name: str, env: str, steps: int, stack: int | None = None, n_envs: int = 1) -> Case:
    environment = EnvironmentOptions(env=env, n_envs=n_envs)
    return Case(name, Asked(environment=environment, capacity=steps * 3 // 5, n_envs=n_envs, frame_stack=stack), steps)


CASES = [
    _case("Pong, 84x84, stacks of 4", "ALE/Pong-v5", 60_000, 4),
    _case("Breakout, 84x84, stacks of 4, 4 environments", "ALE/Breakout-v5", 60_000, 4, 4),
    _case("CarRacing, 96x96x3", "CarRacing-v3", 12_000),
    _case("BipedalWalker, vectors of 24", "BipedalWalker-v3", 100_000),
    _case("CartPole, vectors of 4", "CartPole-v1", 200_000),
]


class Run:
    """A training without a learner."""

    def __init__(self, asked: Asked, directory: str, seed: int) -> None:
        assert asked.environment is not None
        self._asked, self._path, self._source = asked, Path(directory) / "store", Environment(asked.environment, seed)
        for _ in range(FIRST_STEPS):
            self._source.step()

    def play(self, steps: int) -> dict[str, float]:
        """Add steps, and sample; return what that took."""
        from diskbuffer.buffer import ReplayBuffer

        asked, source = self._asked, self._source
        before, written = anonymous_bytes(), psutil.Process().io_counters().write_bytes
        begun, added, batches = time.perf_counter(), 0, list[float]()
        with ReplayBuffer(self._path, asked.capacity, **source.options, frame_stack=asked.frame_stack) as buffer:
            while added < steps:
                added += buffer.add(**source.step())
                if added % EVERY < asked.n_envs:
                    begin = time.perf_counter()
                    buffer.sample(asked.batch_size)
                    batches.append(time.perf_counter() - begin)
            buffer.flush(recompress=True)
            after, figures = anonymous_bytes(), buffer.stats()
            assert before is not None
            assert after is not None
            return {
                "disk": figures["disk_bytes"],
                "ram": after - before,
                "written": psutil.Process().io_counters().write_bytes - written,
                "seconds": time.perf_counter() - begun,
                "batch": sorted(batches)[len(batches) // 2],
                "segments": figures["segments"],
            }

    def close(self) -> None:
        """Close the environment."""
        self._source.close()


def compare(report: Report, case: Case, forecast: Plan, found: dict[str, float]) -> None:
    """Note a forecast and what was then found."""
    figures = forecast.figures
    assert figures.ram is not None
    for what, planned, at_most in (("disk", figures.disk, NEAR), ("RAM", figures.ram, NEAR), ("written", figures.written, None)):
        taken = found[what.lower()]
        if not taken:
            continue
        report.row(f"{what}, {case.name}: forecast", planned / 1e6, "MB")
        report.row(f"{what}, {case.name}: taken", taken / 1e6, "MB")
        off = 100 * abs(planned - taken) / taken
        report.row(f"{what}, {case.name}: off by", off, "%", at_most=at_most)
    report.row(f"a batch, {case.name}: forecast", 1e3 * forecast.trial.sampling, "ms")
    report.row(f"a batch, {case.name}: taken", 1e3 * found["batch"], "ms")


def measure(report: Report, case: Case, seconds: float, seed: int, directory: Path) -> None:
    """Plan, run, compare."""
    asked = dataclasses.replace(case.asked, seconds=seconds, seed=seed)
    forecast = plan(asked, directory, training_steps=case.steps)
    with tempfile.TemporaryDirectory(dir=directory) as temporary, Worker(Run, asked, temporary, seed + 1) as worker:
        found: dict[str, Any] = worker.ask("play", case.steps)
    compare(report, case, forecast, found)


def typical(report: Report, directory: Path, seed: int) -> None:
    """Note how well the frames of known environments compress, which `diskbuffer plan` tells where it has no environment."""
    for name in ("ale", "racing"):
        kind = KINDS[name]
        frames = kind.make(kind.steps + 1, seed)
        columns = {"obs": db.Column(frames.shape[1:], "uint8"), "action": db.Column((), "int64")}
        with tempfile.TemporaryDirectory(dir=directory) as temporary:
            with db.ReplayBuffer(Path(temporary) / "store", columns=columns, segment_rows=256) as buffer:
                buffer.extend(frames, [0] * (len(frames) - 1), [0.0] * (len(frames) - 1))
                buffer.flush(recompress=True)
            found = ratios(Path(temporary) / "store", sealed=True)["obs"]
        report.row(f"bytes on disk of each byte, {kind.title}", sum(found) / len(found), "x")


def main() -> None:
    """Measure all, and write the report."""
    options = parser(__doc__ or "")
    options.add_argument("--seconds", type=float, default=20.0, help="of each trial")
    options.add_argument("--only", nargs="*", default=[], help="cases whose names begin so")
    options.add_argument("--path", type=Path, default=Path(tempfile.gettempdir()), help="a directory on the disk to measure")
    options.add_argument(
        "--typical", action="store_true", help="how well frames of known environments compress, and nothing else"
    )
    given = options.parse_args()
    report = Report("plan", given.seed, quick=given.quick)
    if given.typical:
        typical(report, given.path, given.seed)
    for case in [] if given.typical else CASES:
        if given.only and not case.name.startswith(tuple(given.only)):
            continue
        if given.quick:
            case = dataclasses.replace(
                case, steps=case.steps // 20, asked=dataclasses.replace(case.asked, capacity=case.steps // 40)
            )
        measure(report, case, min(given.seconds, 5.0) if given.quick else given.seconds, given.seed, given.path)
    report.write(given.json, keep=bool(given.only) or given.typical)


if __name__ == "__main__":
    main()
