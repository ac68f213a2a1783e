"""Processes that are killed at random instants and come back, forked by a server that has everything imported."""

from __future__ import annotations

import importlib
import multiprocessing
import multiprocessing.context
import time
from pathlib import Path

import numpy as np

from soak.workers import Job


class Crew:
    """Processes that are killed at random, and come back, at once or after `rest` seconds at most.

    Each is ``be(job)`` of a campaign's module, which is told its ``seed``.
    """

    def __init__(self, module: str, jobs: list[Job], random: np.random.Generator, rest: float) -> None:
        self._module, self._jobs, self._random, self._rest = module, jobs, random, rest
        self._context = multiprocessing.get_context("forkserver")
        # `diskbuffer` imports its parts when they are used, and PyTorch, which takes seconds: one would be killed before.
        self._context.set_forkserver_preload([module, "diskbuffer.buffer", "torch"])
        self._there: dict[int, multiprocessing.context.ForkServerProcess] = {}
        self._due = dict.fromkeys(range(len(jobs)), 0.0)  # when those that are not there come
        self.kills = 0

    def go_on(self, chance: float) -> None:
        """Kill one, with a chance, and have those come back whose time it is."""
        for n in [n for n, due in self._due.items() if due <= time.monotonic()]:
            del self._due[n]
            job = self._jobs[n] | {"seed": int(self._random.integers(2**31))}
            self._there[n] = self._context.Process(target=_be, args=(self._module, job))
            self._there[n].start()
        if self._there and self._random.random() < chance:
            self._kill(int(self._random.choice(list(self._there))))

    def _kill(self, n: int) -> None:
        process = self._there.pop(n)
        self.kills += process.is_alive()
        process.kill()
        process.join()  # or who comes in its place would find its lock held
        self._due[n] = time.monotonic() + (0 if self._random.random() < 0.4 else float(self._random.uniform(0, self._rest)))

    def end(self) -> None:
        """Kill all, and wait until they are gone."""
        for n in list(self._there):
            self._kill(n)


def _be(module: str, job: Job) -> None:
    """Be one of a crew."""
    try:
        importlib.import_module(module).be(job)
    except BaseException as error:  # noqa: BLE001  it is told, and the campaign counts it
        (Path(job["root"]).parent / f"error-{job['seed']}").write_text(f"{job}: {error!r}")


def errors_beside(root: Path) -> list[str]:
    """Return what processes raised whose job's ``root`` this is."""
    return [file.read_text() for file in sorted(root.parent.glob("error-*"))]
