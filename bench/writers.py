"""Several writers' stores, read as one: drawing from eight and from one with as many steps, and adding from many processes.

    python -m bench.writers --json FILE

A learner draws from eight stores and, in turn, from one that has the same frames; then the same while eight processes add to the
eight, as fast as actors that take 2 ms a step. Then as many processes as there are cores, and one alone, add as fast as they can,
to one directory, and to stores that share nothing. On a machine that has other work each of them gets a part of a core.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import numpy as np

import diskbuffer as db
from bench.frames import COLUMNS, Frames, frames
from bench.measure import Part, Report, parser, ratio, run
from bench.worker import Worker, in_turns, started

WRITERS, BATCH, CAPACITY = 8, 256, 1_000_000
OPTIONS: dict[str, Any] = {"columns": COLUMNS, "frame_stack": 4, "segment_rows": 1024}
EPISODE, ADDED = 500, 5_000  # steps
STEP_SECONDS = 0.002  # of an actor


def fill(buffer: db.ReplayBuffer, pixels: Frames, first: int, steps: int) -> None:
    """Fill a store with episodes, beginning with some frame."""
    ends = np.arange(EPISODE) == EPISODE - 1
    with buffer:
        while len(buffer) < steps:
            obs = pixels[np.arange(first, first + EPISODE + 1) % len(pixels)]
            buffer.extend(obs=obs, action=np.arange(EPISODE) % 6, reward=np.ones(EPISODE), terminated=ends)
            first += EPISODE + 1
        buffer.flush(recompress=True)


class Adder:
    """An actor's process."""

    def __init__(self, root: Path, writer: str | None, pixels: Path) -> None:
        self._buffer = db.ReplayBuffer(root, CAPACITY, **OPTIONS, writer=writer)
        self._pixels, self._at = np.load(pixels, mmap_mode="r").view(np.ndarray), 0
        self.add(200, 0.0)

    def add(self, steps: int, pause: float) -> float:
        """Add so many steps, with a pause after each; return the seconds."""
        begun = time.perf_counter()
        for _ in range(steps):
            obs, after = self._pixels[self._at % 40_000], self._pixels[(self._at + 1) % 40_000]
            self._at += 1
            self._buffer.add(obs, 1, 1.0, after, False, self._at % EPISODE == 0, new_episode=self._at % EPISODE == 1)
            if pause:
                time.sleep(pause)
        return time.perf_counter() - begun

    def close(self) -> None:
        """Close the store."""
        self._buffer.close()


def reader(root: Path) -> db.ReplayBuffer:
    """Return a learner's buffer."""
    return db.ReplayBuffer(root, mode="r", seed=0)


def compare(report: Report, directory: Path, rounds: int, while_they_write: str) -> None:
    """Draw from eight stores, and from one with as many steps."""
    readers = {"one store": Worker(reader, directory / "one"), "eight stores": Worker(reader, directory / "many")}
    with started(readers):
        times = in_turns(readers, "sample", BATCH, rounds=rounds)
    for name, seconds in times.items():
        report.times(f"sample({BATCH}) of {name}{while_they_write}", seconds)
    value = ratio(times["one store"], times["eight stores"])
    report.row(f"sample({BATCH}) of eight stores, speed against one store{while_they_write}", value, "x", at_least=0.9)


def drawing(report: Report, directory: Path) -> None:
    """Draw, and draw while eight actors add."""
    steps, rounds = (2_000, 4) if report.quick else (12_000, 30)
    pixels = frames(50_000)
    np.save(file := directory / "pixels.npy", pixels)
    fill(db.ReplayBuffer(directory / "one", CAPACITY, **OPTIONS), pixels, 0, steps * WRITERS)
    for n in range(WRITERS):
        fill(db.ReplayBuffer(directory / "many", CAPACITY, **OPTIONS, writer=f"actor-{n}"), pixels, n * steps, steps)
    compare(report, directory, rounds, "")
    with started({str(n): Worker(Adder, directory / "many", f"actor-{n}", file) for n in range(WRITERS)}) as actors:
        for actor in actors.values():
            actor.begin("add", int((rounds * 0.6 + 5) / STEP_SECONDS), STEP_SECONDS)
        compare(report, directory, rounds, ", while they write")


def adding(report: Report, directory: Path) -> None:
    """Add from one process, and from as many as there are cores: to one directory, or to stores that lie apart."""
    cores = len(os.sched_getaffinity(0))
    np.save(file := directory / "pixels.npy", frames(50_000))
    for where in ("", ", each to a store apart"):
        one, several = list[float](), list[float]()
        adders = {}
        for n in range(cores):
            root, writer = (directory / f"apart-{n}", None) if where else (directory / "together", f"actor-{n}")
            adders[str(n)] = Worker(Adder, root, writer, file)
        with started(adders):
            for _ in range(4 if report.quick else 12):
                one.append(adders["0"].ask("add", ADDED, 0.0))
                several.append(max([each.result() for each in [adder.begin("add", ADDED, 0.0) for adder in adders.values()]]))
        report.times(f"adding 5,000 steps, one writer{where}", one)
        report.times(f"adding 5,000 steps each, {cores} writers{where}", several)
        what = f"adding from {cores} writers, of {cores} times one writer's speed{where}"
        report.row(what, ratio(one, several), "x", at_least=None if where else 0.9)


PARTS: dict[str, Part] = {part.__name__: part for part in (drawing, adding)}

if __name__ == "__main__":
    run("writers", PARTS, parser(__doc__))
