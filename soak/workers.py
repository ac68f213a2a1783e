"""Processes that may crash, hang or eat memory while they do jobs, and tell of it: a campaign counts that as a result.

A worker is a process that has everything imported and forks a child for the jobs; where the child dies, it forks another.
Jobs and answers are lines of JSON, one at a time. A campaign's module has ``child(directory)``, which returns what does a job in
the child, and perhaps ``warm()``, which imports what that needs; or just ``run(...)``, which returns what went wrong, or nothing,
perhaps with counts.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import importlib
import json
import os
import queue
import resource
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import diskbuffer as db
from tests.by_hand import flush_by_hand

Job = dict[str, Any]
Answer = dict[str, Any]
MEMORY = 2 * 1024**3  # bytes that a job may take, on top of what a process takes that has everything imported
_HERE = Path(__file__).resolve().parent.parent


def started(*command: str) -> subprocess.Popen[bytes]:
    """Start ``python -m command``, with pipes for its input and what it prints."""
    paths = os.pathsep.join([str(_HERE), *filter(None, [os.environ.get("PYTHONPATH")])])
    return subprocess.Popen(
        [sys.executable, "-m", *command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        bufsize=0,  # or a line could wait where `select` does not see it
        env={**os.environ, "PYTHONPATH": paths, "PYTHONWARNINGS": "ignore:resource_tracker"},  # of children that end at once
    )


def ended(process: subprocess.Popen[bytes]) -> None:
    """Let go of a process that ends with its input."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.close()
    process.wait()
    process.stdout.close()


class Worker:
    """Run a worker for a campaign's module, and give it jobs.

    Parameters
    ----------
    module : str
    directory : Path
        The worker's own.
    timeout : float
        Seconds that a job may take until it counts as hanging.
    """

    def __init__(self, module: str, directory: Path, timeout: float = 10.0) -> None:
        self._timeout, self._pid = timeout, 0
        directory.mkdir(parents=True, exist_ok=True)
        self._process = started("soak.workers", module, str(directory))

    def do(self, job: Job) -> Answer:
        """Have a job done. ``{"died": signal}`` or ``{"hung": seconds}`` where that came of it."""
        self._pid = self._pid or int(self._line(120)["pid"])
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(job).encode() + b"\n")
        self._process.stdin.flush()
        begin = time.monotonic()
        try:
            answer = self._line(self._timeout)
        except TimeoutError:
            os.kill(self._pid, signal.SIGABRT)  # so that it tells where its threads are
            self._line(60)
            answer = {"hung": round(time.monotonic() - begin, 1)}
        if "died" in answer or "hung" in answer:
            self._pid = 0
        return answer

    def _line(self, timeout: float) -> Answer:
        assert self._process.stdout is not None
        if not select.select([self._process.stdout], [], [], timeout)[0]:
            raise TimeoutError
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the worker itself has failed; its error is above")
        answer: Answer = json.loads(line)
        return answer

    def close(self) -> None:
        """Let the worker go."""
        ended(self._process)


def child_of(module: Any, directory: Path) -> Callable[[Job], Answer]:
    """Return what does the jobs of a module."""
    if hasattr(module, "child"):
        do: Callable[[Job], Answer] = module.child(directory)
        return do

    def run(job: Job) -> Answer:
        found = module.run(*job["run"])
        return {"wrong": found} if isinstance(found, str) else {"wrong": found[0], "counts": found[1]}

    return run


def serve(module: Any, directory: Path) -> None:
    """Be a worker: warm up, then fork children, each of which does jobs."""
    answers = os.dup(1)
    os.dup2(2, 1)  # what is printed is no answer

    def tell(answer: Answer) -> None:
        os.write(answers, json.dumps(answer).encode() + b"\n")

    _ = db.ReplayBuffer, db.check, importlib.import_module("torch")  # imported now, and not in each child
    flush_by_hand()
    getattr(module, "warm", lambda: None)()
    gc.collect()
    gc.freeze()  # children that look for garbage look at their own
    while True:
        pid = os.fork()
        if pid == 0:
            try:
                do = child_of(module, directory)
                faulthandler.enable(file=2)
                tell({"pid": os.getpid()})
                _limit_memory()
                for line in iter(sys.stdin.buffer.readline, b""):
                    tell(do(json.loads(line)))
                os._exit(0)
            except BaseException:  # noqa: BLE001  there is nobody else to tell
                traceback.print_exc()
                os._exit(3)
        _, status = os.waitpid(pid, 0)
        if not os.WIFSIGNALED(status):
            sys.exit(os.waitstatus_to_exitcode(status))
        tell({"died": signal.Signals(os.WTERMSIG(status)).name})


def _limit_memory() -> None:
    """Have what is too much memory for one job be a MemoryError."""
    status = Path("/proc/self/status").read_text()
    now = next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmData"))
    resource.setrlimit(resource.RLIMIT_DATA, (now + MEMORY, now + MEMORY))


class Pool:
    """Several workers, who share the jobs of one campaign after the other."""

    def __init__(self, module: str, directory: str | Path, workers: int = 2, timeout: float = 10.0) -> None:
        self.directory = Path(directory)
        self._workers = [Worker(module, Path(directory) / f"worker{n}", timeout) for n in range(workers)]

    def do(self, job: Job) -> Answer:
        """Have one job done."""
        return self._workers[0].do(job)

    def do_all(self, jobs: Iterable[Job], seconds: float | None = None) -> Iterator[tuple[Job, Answer]]:
        """Have jobs done; yield each with its answer, until there are none or the time is up."""
        waiting, lock = iter(jobs), threading.Lock()
        found: queue.SimpleQueue[tuple[Job, Answer] | BaseException | None] = queue.SimpleQueue()
        until, stopped = time.monotonic() + (seconds or 1e9), threading.Event()

        def work(worker: Worker) -> None:
            try:
                while time.monotonic() < until and not stopped.is_set():
                    with lock:
                        job = next(waiting, None)
                    if job is None:
                        break
                    found.put((job, worker.do(job)))
                found.put(None)
            except BaseException as error:  # noqa: BLE001  raised by who waits
                found.put(error)

        threads = [threading.Thread(target=work, args=(worker,)) for worker in self._workers]
        for thread in threads:
            thread.start()
        try:
            going = len(threads)
            while going:
                case = found.get()
                if isinstance(case, BaseException):
                    raise case
                if case is None:
                    going -= 1
                else:
                    yield case
        finally:
            stopped.set()
            for thread in threads:
                thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for worker in self._workers:
            worker.close()


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """Have a directory in memory, where there is some: thousands of stores are written and thrown away."""
    memory = Path("/dev/shm")
    path = tempfile.mkdtemp(prefix="soak-", dir=memory if memory.is_dir() else None)
    try:
        yield Path(path)
    finally:
        shutil.rmtree(path, ignore_errors=True)


def failure(call: Callable[[Path], object]) -> str:
    """Call a function with a directory of its own; return what it raised, or nothing."""
    with tempfile.TemporaryDirectory(prefix="diskbuffer-soak-") as directory:
        try:
            call(Path(directory))
        except Exception:  # noqa: BLE001  which is what is looked for
            return traceback.format_exc(limit=-6)
    return ""


if __name__ == "__main__":
    serve(importlib.import_module(sys.argv[1]), Path(sys.argv[2]))
