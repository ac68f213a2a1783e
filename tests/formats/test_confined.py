"""What a stranger's file may do to the process that reads it, and what comes of it for the one that imports: an error."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from diskbuffer.errors import InputError, SourceError
from diskbuffer.formats import confined
from diskbuffer.formats.blocks import Block, Wanted
from diskbuffer.formats.confined import ConfinedSource
from diskbuffer.plugin import Contents

# A format whose files say what reading them does.
READER = """
import ctypes, os, sys, time, warnings
import numpy as np
from diskbuffer import Column
from diskbuffer.errors import InputError, SourceError
from diskbuffer.formats import wire
from diskbuffer.plugin import Contents, EpisodeData, Format

PLACE = []

class Source:
    losses = {}

    def __init__(self, path, *, size: int = 3):
        self.does = path.read_text()
        PLACE.append(path)
        self.contents = Contents({"obs": Column((size,)), "action": Column()}, 2, 8, metadata={"pid": os.getpid()})
        self.size = size
        do(self.does, "opening")

    def episodes(self):
        for _ in range(2):
            do(self.does, "an episode")
            yield EpisodeData({"obs": Rows(self.does, (5, self.size)), "action": np.zeros(4, np.float32)}, 4)

    def close(self):
        pass

class Rows:
    dtype = np.dtype("float32")

    def __init__(self, does, shape):
        self.does, self.shape = does, shape

    def __getitem__(self, rows):
        do(self.does, "rows")
        return np.ones(self.shape, np.float32)[rows]

def do(does, where):
    if not does.endswith(where):
        return
    if does.startswith("crash"):
        ctypes.string_at(0)
    if does.startswith("exit"):
        os._exit(3)
    if does.startswith("loop"):
        time.sleep(1000)
    if does.startswith("fill"):
        kept = [np.ones(2**27, np.uint8) for _ in range(1000)]
    if does.startswith("fault"):
        return {}["nothing"]
    if does.startswith("write"):
        open(PLACE[0].with_suffix(".written"), "wb", 0).write(b"x")
    if does.startswith("warn"):
        warnings.warn("the file is odd", UserWarning)
    if does.startswith("input"):
        raise InputError("size must be odd", option="size")
    if does.startswith("lie: "):
        lie = does[5:does.rindex(",")]
        send = wire.Wire.send
        def lying(self, message, arrays=()):
            self._connection.settimeout(None)
            if lie == "noise":
                self._connection.sendall(bytes(range(256)))
            elif lie == "no JSON":
                self._connection.sendall(wire._HEADER.pack(b"dbuf", 5, 0) + b"{x: 1")
            elif lie == "long JSON":
                self._connection.sendall(wire._HEADER.pack(b"dbuf", 2**31, 0) + bytes(2**20))
            elif lie == "deep JSON":
                self._connection.sendall(wire._HEADER.pack(b"dbuf", 2**20, 0) + b"[" * 2**20)
            elif lie == "a list":
                self._connection.sendall(wire._HEADER.pack(b"dbuf", 2, 0) + b"[]")
            elif "arrays" not in lie and "object" not in lie and "error" not in lie and not message.get("blocks"):
                send(self, message, arrays)
            elif lie == "short rows":
                send(self, message, [array[:1] for array in arrays])
            elif lie == "long rows":
                send(self, message, [*arrays, np.zeros(100)])
            elif lie.endswith("rows"):
                rows = {"large": {"obs": 2**40}, "negative": {"obs": -3}, "odd": {"obs": "x"}, "other": {"x": 1}}
                send(self, {**message, "blocks": [["steps", {"stream": 0}, rows[lie[:-5]]]]}, arrays)
            elif lie == "a stream":
                send(self, {**message, "blocks": [["end", {"stream": 7}, {}]]})
            elif lie == "no facts":
                send(self, {**message, "blocks": [["end", 7, {}]]})
            elif lie == "other facts":
                send(self, {**message, "blocks": [["episode", {"stream": 0, "tag": {}, "values": 3, "present": "x"}, {}]]})
            elif lie == "a kind":
                send(self, {**message, "blocks": [[["end"], {"stream": 0}, {}]]})
            elif lie == "two":
                send(self, {**message, "blocks": [["end", {"stream": 0}]]})
            elif lie == "much":
                self._connection.sendall(wire._HEADER.pack(b"dbuf", 2, 2**40) + b"{}")
            elif lie == "an error":
                send(self, {"error": "SystemExit", "what": "x", "option": "", "warnings": []})
            elif lie == "another error":
                send(self, {"error": ["InputError"], "what": {}, "option": 3, "warnings": 3})
            elif lie == "large arrays":
                send(self, {**message, "arrays": {"a": ["<f8", 2**40]}}, arrays)
            elif lie == "an object":
                send(self, {**message, "arrays": {"a": ["|O8", 1]}}, arrays)
            else:
                raise AssertionError(lie)
        wire.Wire.send = lying

FORMAT = Format("odd", "files that do harm", Source)
"""
WHERE = ("opening", "an episode", "rows")


@pytest.fixture
def odd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Install the format as another package does, and return where its file is."""
    place = tmp_path / "packages"
    (place / "odd-1.dist-info").mkdir(parents=True)
    (place / "odd-1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: odd\nVersion: 1\n")
    (place / "odd-1.dist-info" / "entry_points.txt").write_text("[diskbuffer.formats]\nodd = odd_format:FORMAT\n")
    (place / "odd_format.py").write_text(textwrap.dedent(READER))
    monkeypatch.syspath_prepend(place)
    yield tmp_path / "file"
    sys.modules.pop("odd_format", None)


def read(file: Path, does: str, memory: int = confined.MEMORY, ratio: int = 1000, **options: Any) -> tuple[Contents, list[Block]]:
    """Return what a process reads of a file that does something."""
    file.write_text(does)
    with closing(ConfinedSource("odd", file, options, memory, file.stat().st_size, ratio)) as source:
        wanted = Wanted(source.contents.columns, {}, [0] * source.contents.n_envs, source.contents.frame_stack)
        return source.contents, list(source.blocks(wanted))


def test_what_is_well_is_read_by_another_process_that_is_gone_then(odd: Path) -> None:
    contents, found = read(odd, "well")
    assert [block.kind for block in found] == ["episode", "steps", "end"] * 2
    for block in found[1::3]:
        np.testing.assert_array_equal(block.arrays["obs"], np.ones((5, 3), np.float32))
        np.testing.assert_array_equal(block.arrays["action"], np.zeros(4, np.float32))
    pid = int((contents.metadata or {})["pid"])
    assert pid != os.getpid()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize(
    ("does", "said"),
    [
        ("crash", "was ended .signal SIGSEGV"),
        ("exit", "was ended .exit code 3"),
        ("fill", r"takes more than 537 MB of memory; if you trust it, allow more: max_memory=1073741824"),
        ("fault", "damaged, or cannot be read: .*KeyError: 'nothing'"),
        ("write", "File too large"),
    ],
)
def test_what_a_file_does_to_the_process_is_an_error(odd: Path, does: str, where: str, said: str) -> None:
    with pytest.raises(SourceError, match=f"(?s){odd}.*{said}"):
        read(odd, f"{does}, {where}", memory=512 * 1024**2)
    read(odd, "well")


@pytest.mark.parametrize("where", WHERE)
def test_what_takes_for_ever_is_an_error(odd: Path, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(confined, "_PATIENCE", 1.0)
    with pytest.raises(SourceError, match=f"{odd}.*takes more than 1 s"):
        read(odd, f"loop, {where}")


@pytest.mark.parametrize(
    "lie",
    [
        *("noise", "no JSON", "long JSON", "deep JSON", "a list", "short rows", "long rows", "large rows", "negative rows"),
        *("odd rows", "other rows", "a stream", "no facts", "other facts", "a kind", "an error", "another error"),
        *("large arrays", "an object", "two", "much"),
    ],
)
def test_a_process_that_lies_is_an_error(odd: Path, lie: str) -> None:
    where = "opening" if lie in ("large arrays", "an object") else "an episode"
    with pytest.raises(SourceError, match=str(odd)):
        read(odd, f"lie: {lie}, {where}")


def test_more_than_a_file_can_hold_is_refused(odd: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(confined, "_SMALL", 10_000)
    with pytest.raises(SourceError, match=r"it may be a bomb\. If not, allow it: max_ratio=8008"):
        read(odd, "well", size=1000)
    read(odd, "well", size=1000, ratio=20_000)


def test_a_row_that_no_memory_holds_is_refused(odd: Path) -> None:
    with pytest.raises(SourceError, match="a step has 400 MB, of at most 268 MB"):
        read(odd, "well", size=10**8, ratio=10**9)


def test_errors_and_warnings_are_those_of_the_format(odd: Path) -> None:
    with pytest.raises(InputError, match="size must be odd") as raised:
        read(odd, "input, opening")
    assert raised.value.option == "size"
    with pytest.raises(InputError, match="size must be a text, a number"):
        read(odd, "well", size=object())
    with pytest.warns(UserWarning, match="the file is odd"):
        read(odd, "warn, opening")


def test_several_at_once_and_after_the_one_they_fork_from_was_ended(odd: Path) -> None:
    done = list[int]()

    def run(number: int) -> None:
        read(odd, "well")
        done.append(number)

    for first in (0, 4):
        threads = [threading.Thread(target=run, args=(number,)) for number in range(first, first + 4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(done) == first + 4
        if first:
            break
        for child in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split() if sys.platform == "linux" else ():
            if b"reading_process" in Path(f"/proc/{child}/cmdline").read_bytes():
                os.kill(int(child), signal.SIGKILL)


@pytest.mark.skipif(sys.platform != "linux", reason="who is whose child is told by /proc")
def test_it_ends_with_the_process_that_imports(odd: Path) -> None:
    odd.write_text("loop, opening")
    program = (
        "from pathlib import Path; from diskbuffer.formats.confined import ConfinedSource; "
        f"ConfinedSource('odd', Path({str(odd)!r}), {{}}, 2**32, 100, 1000)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(odd.parent / "packages"), *sys.path])}
    importing = subprocess.Popen([sys.executable, "-c", program], env=environment)
    try:
        while not (found := grandchildren(importing.pid)):
            assert importing.poll() is None
            time.sleep(0.05)
    finally:
        importing.kill()
        importing.wait()
    while any(Path(f"/proc/{pid}").exists() for pid in found):
        time.sleep(0.05)


def grandchildren(pid: int) -> list[int]:
    """Return the processes that the children of one have forked."""

    def children(of: int) -> list[int]:
        return [int(child) for child in Path(f"/proc/{of}/task/{of}/children").read_text().split()]

    return [each for child in children(pid) for each in children(child)]
