"""Exports and imports that are stopped in the middle: by a disk that is full, and by SIGKILL."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

from diskbuffer.formats import EpisodeData, export, import_
from diskbuffer.formats.stored import StoreSource
from diskbuffer.plugin import Appender
from tests.formats import episodes as made
from tests.support.in_fork import in_fork
from tests.support.workloads import boot

ROUNDS = 8
KILLED = 99  # the status of a process that ended as if it had been killed


def stop(*_: Any, **__: Any) -> None:
    """Stop a run as Ctrl-C does."""
    raise KeyboardInterrupt


def stopping_at(number: int, error: BaseException | None = None) -> Any:
    """Return `StoreSource.episodes`, which raises before that episode: a KeyboardInterrupt where no error is given."""
    episodes = StoreSource.episodes

    def stopping(self: StoreSource, first: int = 0) -> Iterator[EpisodeData]:
        for n, one in enumerate(episodes(self, first), first):
            if n == number:
                raise error or KeyboardInterrupt
            yield one

    return stopping


def killed(code: str, after: int, *arguments: str, said: str = "episode", cwd: Path | None = None) -> None:
    """Run Python code in a process, and kill it when it has said a line for the time number `after`: it waits for one then."""
    command = [sys.executable, "-c", code, *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=cwd) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("\n" * (after - 1))
        process.stdin.flush()
        for _ in range(after):
            assert process.stdout.readline() == f"{said}\n"
        process.send_signal(signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL, "it was over before it could be killed"


def killed_and_finished(run: str, name: str, source: Path, target: Path, seed: int, **options: Any) -> Iterator[None]:
    """Export or import again and again: each time it is killed once or more, at any call of a function, then run to its end.

    Between two runs the machine may start anew, with all that was written. Imports are killed in the middle of episodes, too, of
    which the store was flushed. What is at the target is to be looked at after each time, and is removed then.
    """
    random, counted, told = np.random.default_rng(seed), target.with_name("counted"), target.with_name("calls")
    work = partial(import_ if run == "import" else export, name, source, progress=False, **options)
    stopped = partial(_in_small_blocks, work) if run == "import" else work
    assert in_fork(partial(_tell, told, partial(stopped, counted))) == 0
    calls = int(told.read_text())
    _remove(counted)
    for _ in range(ROUNDS):
        boots = 1
        for _ in range(random.integers(1, 4)):
            at = int(random.integers(calls))
            with booted(boots):
                assert target.exists() or in_fork(partial(_calls, partial(stopped, target), at)) in (0, KILLED)
            boots += int(random.integers(2))
        with booted(boots):
            if not target.exists():
                work(target)
                assert not list(target.parent.glob(".*"))
            yield
        _remove(target)
        _remove(target.with_name(f".{target.name}.unfinished"))


def _in_small_blocks(import_to: Callable[[Path], object], target: Path) -> None:
    """Import in blocks of a step or so, each of which is flushed, as happens every half minute."""
    patched, append = pytest.MonkeyPatch(), Appender.append

    def append_and_flush(self: Appender, *given: Any, **named: Any) -> None:
        append(self, *given, **named)
        self._buffer.flush()

    patched.setattr(Appender, "append", append_and_flush)
    made.read_here(patched, 100)
    import_to(target)


@contextmanager
def booted(number: int) -> Iterator[None]:
    """Have the machine be in its boot of that number."""
    with boot(number), mock.patch("diskbuffer.formats.unfinished.boot_id", return_value=str(number)):
        yield


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _tell(file: Path, work: Callable[[], object]) -> None:
    file.write_text(str(_calls(work)))


def _calls(work: Callable[[], object], last: int | None = None) -> int:
    """Do something, and return how many calls of functions that took; with `last`, end the process as a kill does at that one."""
    count = itertools.count()

    def seen(*_: object) -> None:
        if next(count) == last:
            os._exit(KILLED)

    sys.setprofile(seen)
    try:
        work()
    finally:
        sys.setprofile(None)
    return next(count)


def fill_the_disk_and_go_on(name: str, store: Path, target: Path, after: int, **options: Any) -> None:
    """Export to a disk that is full after so many episodes, and again to one that is not."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(StoreSource, "episodes", stopping_at(after, OSError(28, "No space left on device")))
        with pytest.raises(OSError, match="No space left"):
            export(name, store, target, progress=False, **options)
    assert not target.exists()
    export(name, store, target, progress=False, **options)


def assert_same_in_each_stream(store: Path, other: Path) -> None:
    """Assert that two stores have the same episodes, those of each stream in their order."""
    both = [made.read(store), made.read(other)]
    for stream in {one["stream"] for one in both[0]}:
        mine, others = ([one for one in found if one["stream"] == stream] for found in both)
        made.assert_same(mine, others)
    assert len(both[0]) == len(both[1])
