"""What a test may not leave behind: signal handlers, environment variables, another working directory, children and threads."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_SIGNALS = [int(each) for each in signal.Signals]
GRACE = 30.0  # seconds in which children and threads may still end, on a machine that is busy
_TASKS = "/proc/self/task"  # Linux's; elsewhere children are not looked for
# Threads and processes that stay for the next test: of servers and libraries that a session starts once.
# "Dummy-1" is one that native code began, such as Ray's, which called Python.
_THREADS = (
    "Dummy-",
    "zarr",
    "asyncio_",
    "ray",
    "pin_memory",
    "QueueFeederThread",
    "tqdm_monitor",
    "serve_forever",
    "ThreadPoolExecutor-",
)
_COMMANDS = (
    "reading_process",
    "multiprocessing.resource_tracker",
    "multiprocessing.forkserver",
    "tests.support.writers",
    "ray",
    "chromedriver",
)
_HANDLERS = ("torch", "ray")  # modules of libraries; what they set is put back, and no failure
_VARIABLES = (
    *("PYTEST_CURRENT_TEST", "RAY_", "KMP_", "TF_", "TPU_", "TORCH", "LAZY_LEGACY_OP", "JAX_", "CUDA_", "GRPC_"),
    *("LD_LIBRARY_PATH", "QT_", "MPLBACKEND", "SDL_", "PYGAME_"),
)


@contextlib.contextmanager
def none_left() -> Iterator[None]:
    """Raise an AssertionError if the block leaves something behind; what can be put back is put back."""
    for number, handler in _handlers().items():
        if _is_of_library(handler):  # of a fixture for the whole session: children that are forked would have it, too
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    handlers, variables, directory = _handlers(), dict(os.environ), os.getcwd()
    threads, children = set(threading.enumerate()), _children()
    yield
    left = list[str]()
    for number, handler in _handlers().items():
        if handler != handlers[number]:
            if not _is_of_library(handler):
                left.append(f"a handler of {signal.Signals(number).name}: {handler}")
            signal.signal(number, handlers[number])
    for name in variables.keys() | os.environ.keys():
        if os.environ.get(name) != variables.get(name) and not name.startswith(_VARIABLES):
            left.append(f"the environment variable {name}={os.environ.get(name)!r}")
            os.environ.pop(name, None)
            if name in variables:
                os.environ[name] = variables[name]
    if os.getcwd() != directory:
        left.append(f"the working directory {os.getcwd()}")
        os.chdir(directory)
    until, wait = time.monotonic() + GRACE, 0.01
    while (found := _new_threads(threads) + _new_children(children)) and time.monotonic() < until:
        if (forks := sys.modules.get("diskbuffer.formats.forks")) and forks._newest is not None:
            forks._newest.serves()  # it ends when no import came for some seconds, which is seen when one comes
        gc.collect()  # a buffer that is dropped is closed when it is collected; so is one that a thread drops now
        time.sleep(wait)
        wait = min(2 * wait, 1.0)
    left.extend(found)
    assert not left, f"the test left behind: {'; '.join(left)}"


def _handlers() -> dict[int, Any]:
    return {number: signal.getsignal(number) for number in _SIGNALS}


def _is_of_library(handler: Any) -> bool:
    return getattr(handler, "__module__", "").startswith(_HANDLERS)


def _new_threads(before: set[threading.Thread]) -> list[str]:
    new = [thread for thread in threading.enumerate() if thread not in before]
    return [f"the thread {thread.name}" for thread in new if not any(each in thread.name for each in _THREADS)]


def _new_children(before: set[int]) -> list[str]:
    left = list[str]()
    for pid in _children() - before:
        with contextlib.suppress(OSError):
            command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
            if not any(each in command for each in _COMMANDS):
                left.append(f"the process {pid}: {command[:200] or 'which has ended, and was not waited for'}")
    return left


def _children() -> set[int]:
    found = set[int]()
    with contextlib.suppress(FileNotFoundError):
        for task in os.listdir(_TASKS):
            with contextlib.suppress(OSError), open(f"{_TASKS}/{task}/children") as file:
                found.update(map(int, file.read().split()))
    return found
