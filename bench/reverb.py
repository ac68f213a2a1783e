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

import os
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np

import diskbuffer as db
from bench.frames import CACHE, COLUMNS, frames
from bench.measure import Report, anonymous, parser, ratio, run
from bench.peers import asked
from bench.worker import Worker

SCRIPT = Path(__file__).parent / "peers" / "reverb_process.py"
VARIABLE = "DISKBUFFER_BENCH_REVERB"
STACK, BATCH, FRAMES = 4, 256, 50_000
PIXELS = CACHE / f"frames-{FRAMES}.npy"


def theirs(python: str, *arguments: Any) -> AbstractContextManager[Callable[[Any], Any]]:
    """Start a process of Reverb's; its block has what asks it."""
    return asked.process(python, SCRIPT, *arguments, variables={"TF_CPP_MIN_LOG_LEVEL": "3"})


class Actor:
    """Our actor."""

    def __init__(self, root: Path, capacity: int) -> None:
        self._pixels, self._at = np.load(PIXELS, mmap_mode="r").view(np.ndarray), 0
        self._buffer = db.ReplayBuffer(root, capacity, columns=COLUMNS, frame_stack=STACK, writer="actor-0")

    def add(self, steps: int) -> list[float]:
        """Add so many steps; return the seconds until a kill would not lose them, and of the processor."""
        add, rows = self._buffer.add, len(self._pixels) - 1
        begin, busy = time.perf_counter(), time.process_time()
        for at in range(self._at, self._at + steps):
            add(self._pixels[at % rows], at, 1.0, self._pixels[at % rows + 1], False, False, new_episode=not at)
        self._at += steps
        return [time.perf_counter() - begin, time.process_time() - busy]

    def memory(self) -> int:
        """Return the bytes that the process allocated: anonymous memory, and no files."""
        return anonymous()

    def close(self) -> None:
        """Close the store."""
        self._buffer.close()


class Learner:
    """Our learner, with what there is when it starts."""

    def __init__(self, root: Path) -> None:
        self._buffer = db.ReplayBuffer(root, mode="r", seed=0)
        self._batches = iter(self._buffer.loader(BATCH, refresh_every=1.0))

    def steps(self) -> int:
        """Return how many there are."""
        return len(self._buffer)

    def sample(self, batches: int) -> float:
        """Take so many batches from a loader; return the seconds."""
        begin = time.perf_counter()
        for _ in range(batches):
            next(self._batches)
        return time.perf_counter() - begin


def compare(report: Report, python: str, root: Path, rounds: int, each: int) -> None:
    """Add by turns, then sample by turns."""
    steps = rounds * each
    with theirs(python, "server", steps) as server, Worker(Actor, root, steps) as ours:
        address, *served = server("")
        with theirs(python, "actor", address, PIXELS, STACK) as actor:
            ours.ask("add", 200)  # compiled, and connected
            actor(200)
            empty = ours.ask("memory")
            _, *served = server("")
            added = [(ours.ask("add", each), actor(each)) for _ in range(rounds)]
            _, *filled = server("")
        grown = {"ours": max(ours.ask("memory") - empty, 0), "theirs": filled[0] - served[0]}
        with theirs(python, "learner", address, STACK, BATCH) as learner, Worker(Learner, root) as reader:
            assert reader.ask("steps") >= steps * 0.9
            batches = max(4, each // 200)
            reader.ask("sample", 4)
            learner(4)
            assert learner(PIXELS) == BATCH, "Reverb returns other frames than were added"
            sampled = [(reader.ask("sample", batches), learner(batches)) for _ in range(rounds)]
        ours.ask("close")
    names, taken = ("ours", "theirs"), np.asarray(added) / each
    adding = {name: taken[:, k, 0].tolist() for k, name in enumerate(names)}
    busy = {name: float(taken[:, k, 1].mean()) for k, name in enumerate(names)}
    busy["theirs"] += (filled[1] - served[1]) / steps
    sampling = {name: (np.asarray(sampled)[:, k] / batches).tolist() for k, name in enumerate(names)}
    for name in names:
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
    if why := asked.missing(report.options.reverb, "reverb, tensorflow", "--reverb", VARIABLE):
        report.left_out("Reverb", why)
        return
    frames(FRAMES)
    compare(report, report.options.reverb, directory / "ours", *((4, 2_000) if report.quick else (20, 5_000)))


if __name__ == "__main__":
    given = parser(__doc__)
    given.add_argument("--reverb", default=os.environ.get(VARIABLE), metavar="PYTHON", help="an interpreter that has Reverb")
    run("reverb", {"all": beside}, given)
