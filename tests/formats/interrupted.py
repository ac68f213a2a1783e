"""Exports and imports that are stopped in the middle: by a disk that is full, and by SIGKILL."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from diskbuffer.formats import EpisodeData, export, import_
from diskbuffer.formats.stored import StoreSource
from tests.formats import episodes as made

# Runs an export or an import; tells of each episode before it is written, or of each block that was added, and waits for a line.
SLOW = """
import json, sys
import pytest
from diskbuffer.formats import export, exporting, import_
from diskbuffer.formats.stored import StoreSource
from diskbuffer.plugin import Appender
from tests.formats.episodes import read_here
run, name, source, target, options = json.loads(sys.argv[1])
class Slow(StoreSource):
    def episodes(self, first=0):
        for one in super().episodes(first):
            print("episode", flush=True)
            sys.stdin.readline()
            yield one
exporting.StoreSource = Slow
add = Appender.append
def slow(self, *given, **named):
    add(self, *given, **named)
    print("block", flush=True)
    sys.stdin.readline()
Appender.append = slow
read_here(pytest.MonkeyPatch(), 100)
(import_ if run == "import" else export)(name, source, target, progress=False, **options)
"""


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


def kill_and_go_on(run: str, name: str, source: Path, target: Path, *after: int, **options: Any) -> None:
    """Run an export or an import, kill it at that episode, or block, of each run, and run it again to its end."""
    for number in after:
        argument = json.dumps([run, name, str(source), str(target), options])
        killed(SLOW, number, argument, said="episode" if run == "export" else "block")
        assert not target.exists()
        assert (target.parent / f".{target.name}.unfinished").is_dir()
    (import_ if run == "import" else export)(name, source, target, progress=False, **options)
    assert not list(target.parent.glob(".*"))


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
