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

# Runs an export or an import, and tells of each episode before it is passed on, slowly.
SLOW = """
import json, sys, time
from diskbuffer.formats import export, exporting, import_, importing
run, name, source, target, options = json.loads(sys.argv[1])
find = importing.find
def told(episodes):
    for one in episodes:
        print("episode", flush=True)
        time.sleep(0.01)
        yield one
class Slow:
    def __init__(self, source):
        self.source = source
    def __getattr__(self, name):
        return getattr(self.source, name)
    def episodes(self, first=0):
        return told(self.source.episodes(first))
exporting.StoreSource = lambda *given: Slow(make(*given))
from diskbuffer.formats.stored import StoreSource as make
from dataclasses import replace
importing.find = lambda name: replace(find(name), read=lambda *a, **k: Slow(find(name).read(*a, **k)))
(import_ if run == "import" else export)(name, source, target, progress=False, **options)
"""


def kill_and_go_on(run: str, name: str, source: Path, target: Path, after: int, **options: Any) -> None:
    """Run an export or an import, kill it at episode number `after`, and run it again to its end."""
    command = [sys.executable, "-c", SLOW, json.dumps([run, name, str(source), str(target), options])]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for _ in range(after):
            assert process.stdout.readline() == "episode\n"
        process.send_signal(signal.SIGKILL)
    assert not target.exists()
    (import_ if run == "import" else export)(name, source, target, progress=False, **options)


def fill_the_disk_and_go_on(name: str, store: Path, target: Path, after: int, **options: Any) -> None:
    """Export to a disk that is full after so many episodes, and again to one that is not."""
    episodes = StoreSource.episodes

    def failing(self: StoreSource, first: int = 0) -> Iterator[EpisodeData]:
        for number, one in enumerate(episodes(self, first), first):
            if number == after:
                raise OSError(28, "No space left on device")
            yield one

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(StoreSource, "episodes", failing)
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
