"""Several writers' stores, read as one: drawing from eight and from one with as many steps, and adding from many processes.

    python -m bench.writers --json FILE

A learner draws from eight stores and, in turn, from one that has the same frames; then the same while eight processes add to the
eight, as fast as actors that take 2 ms a step. Then as many processes as there are cores, and one alone, add as fast as they can,
to one directory, and to stores that share nothing. On a machine that has other work each of them gets a part of a core, and
together they get less of it each: the seconds tell of the machine then. What writers cost each other is in the processor time.
"""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

import diskbuffer as db
from bench.frames import COLUMNS, frames
from bench.measure import Report, parser, ratio, run
from bench.worker import Worker, in_turns, started

WRITERS, BATCH, STACK, CAPACITY, ROWS = 8, 256, 4, 1_000_000, 1024
EPISODE = 500  # steps
STEP_SECONDS = 0.002  # of an actor


def _options() -> dict[str, Any]:
    return {"columns": COLUMNS, "frame_stack": STACK, "segment_rows": ROWS}


def fill(root: Path, pixels: np.ndarray, steps: int, writers: int | None) -> None:
    """Fill one store, or several, with as many steps each."""
    action, reward, ends = np.arange(EPISODE) % 6, np.ones(EPISODE, np.float32), np.arange(EPISODE) == EPISODE - 1
    for n in range(writers or 1):
        name: dict[str, Any] = {} if writers is None else {"writer": f"actor-{n}"}
        with db.ReplayBuffer(root, CAPACITY, **_options(), **name) as buffer:
            first = n * steps * (writers is not None)
            while len(buffer) < steps:
                at = np.arange(first, first + EPISODE + 1) % len(pixels)
                buffer.extend(obs=pixels[at], action=action, reward=reward, terminated=ends)
                first += EPISODE + 1
            buffer.flush(recompress=True)


class Reader:
    """A learner's process."""

    def __init__(self, root: Path) -> None:
        self._buffer = db.ReplayBuffer(root, mode="r", seed=0)

    def sample(self, batch: int) -> Any:
        """Draw a batch."""
        return self._buffer.sample(batch)

    def refresh(self) -> None:
        """See what is new."""
        self._buffer.refresh()


class Adder:
    """An actor's process."""

    def __init__(self, root: Path, number: int | None, pixels: Path, apart: bool = False) -> None:
        name: dict[str, Any] = {} if number is None or apart else {"writer": f"actor-{number}"}
        root = root / str(number) if apart else root
        self._buffer = db.ReplayBuffer(root, CAPACITY, **_options(), **name)
        self._pixels, self._at = np.load(pixels, mmap_mode="r").view(np.ndarray), 0
        self.add(200, 0.0)

    def add(self, steps: int, pause: float) -> tuple[float, float]:
        """Add so many steps, with a pause after each; return the seconds, and those of the processor, of all threads."""
        begun, busy = time.perf_counter(), time.process_time()
        for _ in range(steps):
            obs, after = self._pixels[self._at % 40_000], self._pixels[(self._at + 1) % 40_000]
            self._at += 1
            self._buffer.add(obs, 1, 1.0, after, False, self._at % EPISODE == 0, new_episode=self._at % EPISODE == 1)
            if pause:
                time.sleep(pause)
        return time.perf_counter() - begun, time.process_time() - busy

    def close(self) -> None:
        """Close the store."""
        self._buffer.close()


def compare(report: Report, directory: Path, rounds: int, while_they_write: str) -> None:
    """Draw from eight stores, and from one with as many steps."""
    with Worker(Reader, directory / "one") as one, Worker(Reader, directory / "many") as many:
        times = in_turns({"one store": one, "eight stores": many}, "sample", BATCH, rounds=rounds)
        for name, seconds in times.items():
            report.times(f"sample({BATCH}) of {name}{while_they_write}", seconds)
        of = ratio(times["one store"], times["eight stores"])
        report.row(f"sample({BATCH}) of eight stores, speed against one store{while_they_write}", of, "x", at_least=0.9)
        refreshed = in_turns({"one store": one, "eight stores": many}, "refresh", rounds=rounds)
        for name, seconds in refreshed.items():
            report.times(f"refresh of {name}{while_they_write}", seconds)


def adding(report: Report, directory: Path, pixels: Path, rounds: int, *, apart: bool) -> None:
    """Add from one process, and from as many as there are cores: to one directory, or to stores that lie apart."""
    cores, where = len(os.sched_getaffinity(0)), ", each to a store apart" if apart else ""
    steps, alone, together = 5000, list[tuple[float, float]](), list[tuple[float, float]]()
    adders = {str(n): Worker(Adder, directory / f"adding{where}", n, pixels, apart) for n in range(cores)}
    with started(adders):
        for _ in range(rounds):
            alone.append(adders["0"].ask("add", steps, 0.0))
            with ThreadPoolExecutor(cores) as pool:
                taken = list(pool.map(lambda adder: adder.ask("add", steps, 0.0), adders.values()))
            together.append((max(seconds for seconds, _ in taken), sum(busy for _, busy in taken) / cores))
    (one, one_busy), (all_of_them, busy) = (zip(*found, strict=True) for found in (alone, together))
    report.times(f"adding 5,000 steps, one writer{where}", one)
    report.times(f"adding 5,000 steps each, {cores} writers{where}", all_of_them)
    report.times(f"the same, processor time, one writer{where}", one_busy)
    report.times(f"the same, processor time of each, {cores} writers{where}", busy)
    of = f"adding from {cores} writers, of {cores} times one writer's speed{where}"
    report.row(of, ratio(one, all_of_them), "x", at_least=None if apart else 0.9)
    of = f"adding from {cores} writers, of one writer's steps for a second of the processor{where}"
    report.row(of, ratio(one_busy, busy), "x")


def both(report: Report, directory: Path) -> None:
    """Draw, draw while eight actors add, and add."""
    steps, rounds = (2_000, 4) if report.quick else (12_000, 30)
    pixels = frames(50_000)
    np.save(file := directory / "pixels.npy", pixels)
    fill(directory / "one", pixels, steps * WRITERS, None)
    fill(directory / "many", pixels, steps, WRITERS)
    compare(report, directory, rounds, "")
    with started({str(n): Worker(Adder, directory / "many", n, file) for n in range(WRITERS)}) as actors:
        seconds = rounds * 0.6 + 5
        with ThreadPoolExecutor(WRITERS) as pool:
            for actor in actors.values():
                pool.submit(actor.ask, "add", int(seconds / STEP_SECONDS), STEP_SECONDS)
            compare(report, directory, rounds, ", while they write")
    for apart in (False, True):
        adding(report, directory, file, 4 if report.quick else 12, apart=apart)


if __name__ == "__main__":
    run("writers", {"all": both}, parser(__doc__))
