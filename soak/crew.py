"""Processes that are killed at random instants and come back, forked by one that has everything compiled."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from soak.workers import Job, ended, started


class Nurse:
    """The process that forks others, each of which is ``be(job)`` of a campaign's module; ``prepare(directory)`` compiles."""

    def __init__(self, module: str, directory: Path) -> None:
        self._process, self._lock = started("soak.crew", module, str(directory)), threading.Lock()
        assert self._line() == b"ready"

    def _line(self) -> bytes:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def fork(self, job: Job) -> int:
        """Have a process begin; return which it is."""
        assert self._process.stdin is not None
        with self._lock:
            self._process.stdin.write(json.dumps(job).encode() + b"\n")
            return int(self._line())

    def close(self) -> None:
        """Let it go."""
        ended(self._process)


class Crew:
    """Processes that are killed at random, and come back, at once or after `rest` seconds at most."""

    def __init__(self, nurse: Nurse, jobs: list[Job], random: np.random.Generator, rest: float) -> None:
        self._nurse, self._jobs, self._random, self._rest = nurse, jobs, random, rest
        self._pids: dict[int, int] = {}
        self._due = dict.fromkeys(range(len(jobs)), 0.0)  # when those that are not there come
        self.kills = 0

    def go_on(self, chance: float) -> None:
        """Kill one, with a chance, and have those come back whose time it is."""
        for n in [n for n, due in self._due.items() if due <= time.monotonic()]:
            del self._due[n]
            self._pids[n] = self._nurse.fork(self._jobs[n] | {"seed": int(self._random.integers(2**31))})
        if self._pids and self._random.random() < chance:
            self._kill(int(self._random.choice(list(self._pids))))

    def _kill(self, n: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pids.pop(n), signal.SIGKILL)
            self.kills += 1
        self._due[n] = time.monotonic() + (0 if self._random.random() < 0.4 else float(self._random.uniform(0, self._rest)))

    def end(self) -> None:
        """Kill all, and wait until they are gone."""
        pids = list(self._pids.values())
        for n in list(self._pids):
            self._kill(n)
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                while True:
                    os.kill(pid, 0)
                    time.sleep(0.005)


def errors_beside(root: Path) -> list[str]:
    """Return what processes raised whose job's ``root`` this is."""
    return [file.read_text() for file in sorted(root.parent.glob("error-*"))]


def serve(module: Any, directory: Path) -> None:
    """Be a nurse."""
    module.prepare(directory)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    print("ready", flush=True)
    for line in sys.stdin:
        job = json.loads(line)
        child = os.fork()
        if child == 0:
            try:
                module.be(job)
            except BaseException as error:  # noqa: BLE001  it is told, and the campaign counts it
                (Path(job["root"]).parent / f"error-{os.getpid()}").write_text(f"{job}: {error!r}")
            finally:
                os._exit(1)
        print(child, flush=True)


if __name__ == "__main__":
    serve(importlib.import_module(sys.argv[1]), Path(sys.argv[2]))
