"""Statistics of three cameras: one pass over all steps, and what is left to do after a thousand more, in a ring that evicts.

    python -m bench.statistics --json FILE

Grey 84x84 pictures of scenes that move, in episodes of 1,000 steps, with as many steps as the capacity from the start.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

import diskbuffer as db
from bench.measure import Part, Report, anonymous, parser, run, settled

SIDE, CAMERAS, EPISODE = 84, ("front", "top", "wrist"), 1000


class Robot:
    """Record episodes of a scene that moves before the cameras."""

    def __init__(self, path: Path, capacity: int, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        columns = {f"obs/{name}": db.Column((SIDE, SIDE), "uint8") for name in CAMERAS} | {"action": db.Column((7,))}
        self.buffer = db.ReplayBuffer(path, capacity, columns=columns, seed=seed)
        scenes = self.rng.integers(0, 256, (EPISODE + 101, SIDE // 7, SIDE // 7), np.uint8)
        self.scenes = scenes.repeat(7, 1).repeat(7, 2)

    def record(self) -> None:
        """Record an episode."""
        first = int(self.rng.integers(0, 98))
        obs: dict[str, Any] = {name: self.scenes[first + n : first + n + EPISODE + 1] for n, name in enumerate(CAMERAS)}
        over = np.arange(EPISODE) == EPISODE - 1
        self.buffer.extend(obs, self.rng.normal(size=(EPISODE, 7)), np.zeros(EPISODE), terminated=over)

    def statistics(self) -> list[db.ColumnStatistics]:
        """Return those of all cameras."""
        return [self.buffer.columns.statistics(f"obs/{name}") for name in CAMERAS]


class Peak:
    """The most memory of its own that this process has had, looked at in a thread."""

    def __init__(self) -> None:
        self.bytes, self._over = 0, threading.Event()
        self._thread = threading.Thread(target=self._look)

    def _look(self) -> None:
        while not self._over.wait(0.01):
            self.bytes = max(self.bytes, anonymous())

    def __enter__(self) -> Peak:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


def cameras(report: Report, directory: Path) -> None:
    """Compare with numpy's, and with a pass by somebody who knows nothing yet."""
    steps = 20_000 if report.quick else 1_000_000
    robot = Robot(directory / "store", steps, report.seed)
    with robot.buffer:
        for _ in range(steps // EPISODE + 7):
            robot.record()
        before = settled()
        with Peak() as peak:
            begun = time.perf_counter()
            found = robot.statistics()
            seconds = time.perf_counter() - begun
        report.row(f"one pass over {steps:,} steps of 3 cameras", seconds, "s")
        report.row("memory of its own that it takes", (peak.bytes - before) / 1e6, "MB", at_most=300)
        rows, total, squares = 0, 0, 0
        for episode in robot.buffer.episodes.read(columns=["obs/front"]):
            frames = episode["obs"]["front"].numpy()
            counts = np.bincount(frames.reshape(-1), minlength=256)
            rows, total = rows + frames.size, total + int(counts @ np.arange(256))
            squares += int(counts @ np.arange(256) ** 2)
        mean = total / rows
        off = max(abs(float(found[0].mean) - mean), abs(float(found[0].std) - float(np.sqrt(squares / rows - mean**2))))
        report.row("mean, and deviation, beside numpy's", off, "", at_most=1e-6)
        one, three = list[float](), list[float]()
        for _ in range(5 if report.quick else 31):
            robot.record()
            time.sleep(0.25)  # until the new steps are compressed
            begun = time.perf_counter()
            robot.buffer.columns.statistics("obs/front")
            one.append(time.perf_counter() - begun)
            found = robot.statistics()
            three.append(time.perf_counter() - begun)
        for name, seconds_of in (("one camera", one), ("all three", three)):
            report.times(f"after 1,000 more steps, {name}", seconds_of)
            report.row(f"after 1,000 more steps, {name}, the median", float(np.median(seconds_of)) * 1e3, "ms", at_most=20)
        with db.ReplayBuffer(directory / "store", mode="r") as other:
            anew = [other.columns.statistics(f"obs/{name}") for name in CAMERAS]
        equal = all(
            (one.mean, one.std, one.count) == (two.mean, two.std, two.count) for one, two in zip(found, anew, strict=True)
        )
        report.row("equal to a pass by a reader", float(equal), "", at_least=1)


PARTS: dict[str, Part] = {"cameras": cameras}

if __name__ == "__main__":
    run("statistics", PARTS, parser(__doc__))
