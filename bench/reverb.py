"""An actor and a learner, beside the same over DeepMind's Reverb: Atari frames, added one by one, and stacks of them sampled.

    python -m bench.reverb --reverb /path/to/venv/bin/python --json FILE

Reverb needs a TensorFlow of its own version, so it runs in a virtual environment of its own (``pip install
'dm-reverb[tensorflow]' 'numpy<2'``), whose interpreter ``--reverb`` or the variable DISKBUFFER_BENCH_REVERB names. Its server, an
actor (`TrajectoryWriter`, in which every frame is sent once) and a learner (`TrajectoryDataset`, which fetches beforehand) are a
process each; ours are an actor with ``writer=`` and a learner with a `loader`. They take turns, on one machine. Reverb keeps all
of it in its server's memory; ours is on the disk, and its memory is what the actor's process allocated more than when it was
empty. What the page cache has of the files is the kernel's to give away, and is not counted.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

import diskbuffer as db
from bench.frames import CACHE, COLUMNS, frames
from bench.measure import Report, anonymous, parser, ratio, run
from bench.worker import Worker

SCRIPT = Path(__file__).parent / "peers" / "reverb_process.py"
VARIABLE = "DISKBUFFER_BENCH_REVERB"
STACK, BATCH = 4, 256
FRAMES = 50_000


class Theirs:
    """A process of Reverb's."""

    def __init__(self, python: str, *arguments: Any) -> None:
        command = [python, str(SCRIPT), *map(str, arguments)]
        variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {"TF_CPP_MIN_LOG_LEVEL": "3"}
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True, env=variables)
        self.first = self._answer()

    def ask(self, request: Any) -> Any:
        """Return what it answers."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{request}\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("> "):
                return json.loads(line[2:])
        raise RuntimeError(f"Reverb's process has ended, with {self._process.wait()}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._process.kill()
        self._process.wait()


class Actor:
    """Our actor."""

    def __init__(self, root: Path, capacity: int) -> None:
        self._pixels, self._at = np.load(CACHE / f"frames-{FRAMES}.npy", mmap_mode="r").view(np.ndarray), 0
        self._buffer = db.ReplayBuffer(root, capacity, columns=COLUMNS, frame_stack=STACK, writer="actor-0")
        self._empty = 0

    def add(self, steps: int) -> list[float]:
        """Add so many steps; return the seconds until a kill would not lose them, and of the processor."""
        add, rows = self._buffer.add, len(self._pixels) - 1
        begin, busy = time.perf_counter(), time.process_time()
        for _ in range(steps):
            at = self._at
            self._at += 1
            add(self._pixels[at % rows], at, 1.0, self._pixels[at % rows + 1], False, False, new_episode=not at)
        return [time.perf_counter() - begin, time.process_time() - busy]

    def memory(self) -> int:
        """Return the bytes that the process allocated: anonymous memory, and no files."""
        return anonymous()

    def close(self) -> None:
        """Close the store."""
        self._buffer.close()


class Learner:
    """Our learner."""

    def __init__(self, root: Path) -> None:
        self._buffer = db.ReplayBuffer(root, mode="r", seed=0)
        self._batches: Any = None

    def sample(self, batches: int) -> float:
        """Take so many batches from a loader; return the seconds."""
        if self._batches is None:
            self._batches = iter(self._buffer.loader(BATCH, refresh_every=1.0))
        begin = time.perf_counter()
        for _ in range(batches):
            next(self._batches)
        return time.perf_counter() - begin

    def refresh(self) -> int:
        """See what there is."""
        self._buffer.refresh()
        return len(self._buffer)


def compare(report: Report, python: str, root: Path, rounds: int, each: int) -> None:
    """Add by turns, then sample by turns."""
    steps, pixels = rounds * each, CACHE / f"frames-{FRAMES}.npy"
    with (
        Theirs(python, "server", steps) as server,
        Theirs(python, "actor", server.first, pixels, STACK) as actor,
        Worker(Actor, root, steps) as ours,
    ):
        for name in ("ours", "theirs"):  # compiled, and connected
            _ = ours.ask("add", 200) if name == "ours" else actor.ask(200)
        empty, served = ours.ask("memory"), server.ask("")
        adding: dict[str, list[float]] = {"ours": [], "theirs": []}
        busy = {"ours": 0.0, "theirs": 0.0}
        for _ in range(rounds):
            for name, (seconds, of_processor) in (("ours", ours.ask("add", each)), ("theirs", actor.ask(each))):
                adding[name].append(seconds / each)
                busy[name] += of_processor / steps
        filled = server.ask("")
        busy["theirs"] += (filled[1] - served[1]) / steps
        grown = {"ours": max(ours.ask("memory") - empty, 0), "theirs": filled[0] - served[0]}
        with Theirs(python, "learner", server.first, STACK, BATCH) as learner, Worker(Learner, root) as reader:
            assert reader.ask("refresh") >= steps * 0.9
            batches = max(4, each // 200)
            reader.ask("sample", 4)
            learner.ask(4)
            assert learner.ask(pixels) == BATCH, "Reverb returns other frames than were added"
            sampling: dict[str, list[float]] = {"ours": [], "theirs": []}
            for _ in range(rounds):
                sampling["ours"].append(reader.ask("sample", batches) / batches)
                sampling["theirs"].append(learner.ask(batches) / batches)
        ours.ask("close")
    for name in ("ours", "theirs"):
        report.times(f"adding a transition, {name}", adding[name], 1e6, "us")
        report.times(f"a batch of {BATCH} stacks, {name}", sampling[name])
    report.row("transitions added a second, against Reverb", ratio(adding["theirs"], adding["ours"]), "x", at_least=2.0)
    report.row("transitions sampled a second, against Reverb", ratio(sampling["theirs"], sampling["ours"]), "x", at_least=2.0)
    report.row("adding a transition: processor time of the actor, ours", busy["ours"] * 1e6, "us")
    report.row("adding a transition: processor time of the actor and the server, Reverb's", busy["theirs"] * 1e6, "us")
    report.row(f"memory for {steps:,} transitions, ours", grown["ours"] / 1e6, "MB")
    report.row(f"memory for {steps:,} transitions, Reverb's server", grown["theirs"] / 1e6, "MB")
    report.row("memory, against Reverb's server", grown["ours"] / grown["theirs"], "x", at_most=0.1)


def beside(report: Report, directory: Path) -> None:
    """Compare, if Reverb is there."""
    if why := missing(report.options.reverb):
        report.left_out("Reverb", why)
        return
    frames(FRAMES)
    compare(report, report.options.reverb, directory / "ours", *((4, 2_000) if report.quick else (20, 5_000)))


def missing(python: str | None) -> str:
    """Return why Reverb cannot take part; nothing, if it can."""
    if not python:
        return f"give the interpreter of an environment that has it, as --reverb or in {VARIABLE}"
    tried = subprocess.run([python, "-c", "import reverb, tensorflow"], capture_output=True, text=True)
    return "" if tried.returncode == 0 else (tried.stderr.strip().splitlines() or ["it cannot be imported"])[-1]


if __name__ == "__main__":
    given = parser(__doc__)
    given.add_argument("--reverb", default=os.environ.get(VARIABLE), metavar="PYTHON", help="an interpreter that has Reverb")
    run("reverb", {"all": beside}, given)
