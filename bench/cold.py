"""Stores four times as large as the memory that may hold them: sampling from the disk, beside numpy.memmap and fio.

    python -m bench.cold [--only ale] --json FILE

Every competitor runs in a process of its own, in a memory cgroup, with all caches dropped. What the process itself needs is
measured on a small store first, with as many batches held; the cgroup is limited to that and a quarter of the store. Then the
competitor reads as much as that quarter holds, unmeasured, so that what is used all the time is in memory, as it would be in a
training; and then batches for some seconds. Competitors take turns, round after round.

numpy.memmap gathers single frames from a file of raw frames, as large as the store, with a quarter of it allowed; all other
columns are given to it. fio reads the same file in blocks as large as what a sample wants, in whole pages, 64 of them at a time,
past the page cache.

- *wanted*: bytes on the disk of the rows that are asked for, each once a batch: rows times the mean size of a row.
- *read*: bytes that the process had the disk read, by the kernel's count (`/proc/self/io`). No reading through the page cache can
  do with less than the pages of 4 KiB that rows are in.

Needs Linux, root, fio, and a directory on a disk (`bench/.cache`, where stores are made once, and kept: 2.3 GB a kind).
"""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

import diskbuffer as db
from bench.frames import CACHE, KINDS
from bench.measure import Part, Report, parser, run
from bench.worker import alone

PAGE = 4096
SHARE = 4  # the store has so many times the memory that may hold it
BATCH, SEQUENCES, LENGTH = 256, 64, 64  # steps; a sequence has a frame more
SMALL = 0.02  # of the store's bytes, of the store that shows what the process itself needs
OURS = ("sample", "sequences", "loader, threads=2", "loader, threads=4")
MEMMAPS = ("memmap", "memmap, sequences")
# Where memory cgroups are, what their limit is called, and what of their use is files'; version 1 of them, then 2.
CGROUPS = (
    (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes", "memory.usage_in_bytes", "cache"),
    (Path("/sys/fs/cgroup"), "memory.max", "memory.current", "file"),
)

Read = Callable[[], npt.NDArray[np.int64]]  # reads a batch, and returns the rows that it asked for: (samples, window)


@dataclass
class Cgroup:
    """A memory cgroup of our own."""

    path: Path
    limit_file: str
    usage_file: str
    files: str

    @classmethod
    def make(cls) -> Cgroup | None:
        """Make one; None where that is not possible."""
        for parent, *names in CGROUPS:
            path = parent / f"diskbuffer-cold-{os.getpid()}"
            try:
                path.mkdir()
            except OSError:
                continue
            if (path / names[0]).exists():
                return cls(path, *names)
            path.rmdir()
        return None

    def used(self) -> int:
        """Return how much is used now, but for files' contents."""
        stat = dict(line.split() for line in (self.path / "memory.stat").read_text().splitlines())
        return int((self.path / self.usage_file).read_text()) - int(stat[self.files])

    def limit(self, most: int | None) -> None:
        """Allow so many bytes, or any amount."""
        none = "-1" if "limit" in self.limit_file else "max"
        (self.path / self.limit_file).write_text(none if most is None else str(most))


def drop_caches() -> None:
    """Have the kernel drop what of files it keeps in memory."""
    os.sync()
    Path("/proc/sys/vm/drop_caches").write_text("1")


def bytes_read() -> int:
    """Return how many bytes this process had the disk read."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("read_bytes")).split()[1])


def made(name: str, size: int, seed: int) -> Path:
    """Return a directory with a store and a file of raw frames, both of about `size` bytes; made once, kept in bench/.cache.

    The kind's frames come again and again, as episodes.
    """
    path, kind = CACHE / f"cold-{name}-{size}", KINDS[name]
    if path.exists():
        return path
    building = path.with_suffix(".building")
    shutil.rmtree(building, ignore_errors=True)
    building.mkdir(parents=True)
    pixels = kind.make(kind.steps, seed)
    n, columns = len(pixels) - 1, {"obs": db.Column(pixels.shape[1:], pixels.dtype.name), "action": db.Column((), "int64")}
    with db.ReplayBuffer(building / "trial", n, columns=columns, frame_stack=kind.stack) as trial:
        trial.extend(obs=pixels, action=np.zeros(n, np.int64), reward=np.zeros(n))
        trial.flush(recompress=True)
        total = int(size / on_disk(building / "trial" / "obs") * len(pixels))
    shutil.rmtree(building / "trial")
    with db.ReplayBuffer(building / "store", total, columns=columns, frame_stack=kind.stack) as buffer:
        for first in range(0, total, n + 1):
            rows = min(n, max(1, total - first - 1))
            buffer.extend(obs=pixels[: rows + 1], action=np.zeros(rows, np.int64), reward=np.zeros(rows))
            buffer.cut_off()
        buffer.flush(recompress=True)
    frames = on_disk(building / "store") // pixels[0].nbytes
    with open(building / "raw", "wb") as file:
        for first in range(0, frames, len(pixels)):
            pixels[: frames - first].tofile(file)
    building.rename(path)
    return path


def on_disk(directory: Path) -> int:
    """Return the bytes that files below a directory take; live shards have holes."""
    return sum(512 * file.stat().st_blocks for file in directory.rglob("*"))


def ours(path: Path, name: str, who: str, seed: int) -> Iterator[Read]:
    """Yield what reads a batch from a store."""
    kind = KINDS[name]
    before, after = kind.stack - 1, LENGTH if who == "sequences" else 1
    with db.ReplayBuffer(path / "store", mode="r", seed=seed) as buffer:
        if who == "sequences":
            sampler = db.Slices(LENGTH, seed)
            batches = iter(lambda: buffer.sample(SEQUENCES, sampler), None)
        elif who == "sample":
            batches = iter(lambda: buffer.sample(BATCH), None)
        else:
            threads = int(who.split("=")[1])
            batches = iter(buffer.loader(BATCH, threads=threads, prefetch=max(2, threads)))

        def read() -> npt.NDArray[np.int64]:
            steps = next(batches)["steps"].numpy()
            return np.asarray(steps.reshape(len(steps), -1)[:, :1] + np.arange(-before, after + 1))

        yield read
        if hasattr(batches, "close"):
            batches.close()


def memmap(path: Path, name: str, who: str, seed: int) -> Iterator[Read]:
    """Yield what gathers a batch from raw frames."""
    rng = np.random.default_rng(seed)
    shape = json.loads((path / "store" / "obs" / "zarr.json").read_text())["shape"][1:]
    mapped = np.memmap(path / "raw", np.uint8, "r")
    frames = mapped[: len(mapped) // math.prod(shape) * math.prod(shape)].reshape(-1, *shape)
    sequences = who == "memmap, sequences"
    window = np.arange(LENGTH + 1 if sequences else KINDS[name].stack + 1)
    beside = [np.zeros(len(frames), dtype) for dtype in (np.int64, np.float32, np.bool_, np.bool_)]

    def read() -> npt.NDArray[np.int64]:
        rows = rng.integers(0, len(frames) - len(window), SEQUENCES if sequences else BATCH)[:, None] + window
        torch.from_numpy(frames[rows])
        for column in beside:
            torch.from_numpy(column[rows])
        return rows

    yield read


def compete(group: Cgroup, path: Path, small: Path, name: str, who: str, seed: int, seconds: float) -> dict[str, Any]:
    """Read batches as one competitor does, in memory that is limited; return the seconds of each, and bytes."""
    group.limit(None)
    (group.path / "cgroup.procs").write_text(str(os.getpid()))
    competitor = memmap if who in MEMMAPS else ours
    trial = competitor(small, name, who, seed)
    read = next(trial)
    used, done = [group.used()], threading.Event()

    def watch() -> None:
        while not done.wait(1e-3):
            used.append(group.used())

    watching = threading.Thread(target=watch)
    watching.start()
    for _ in range(100):
        read()
    done.set()
    watching.join()
    for _ in trial:
        pass
    del read, trial
    allowed = (path / "raw").stat().st_size // SHARE
    drop_caches()
    group.limit(max(used) + allowed)
    running = competitor(path, name, who, seed)
    read = next(running)
    begin, before = time.perf_counter(), bytes_read()
    while bytes_read() - before < allowed and time.perf_counter() - begin < 4 * seconds:
        read()
    distinct, times, begin, before = 0, list[float](), time.perf_counter(), bytes_read()
    while time.perf_counter() - begin < seconds:
        started = time.perf_counter()
        rows = read()
        times.append(time.perf_counter() - started)
        distinct += len(np.unique(np.maximum(rows, 0)))
    elapsed, found = time.perf_counter() - begin, bytes_read() - before
    for _ in running:
        pass
    each = on_disk(path / "store" / "obs") / json.loads((path / "store" / "obs" / "zarr.json").read_text())["shape"][0]
    return {"times": times, "seconds": elapsed, "read": found, "wanted": distinct * each}


def fio(file: Path, block: int, seconds: float) -> float:
    """Return the bytes a second that fio reads at random, 64 blocks at a time."""
    drop_caches()
    options = {"name": "cold", "filename": file, "rw": "randread", "bs": block, "iodepth": 64, "direct": 1, "ioengine": "libaio"}
    options |= {"runtime": seconds, "time_based": 1, "output-format": "json"}
    command = ["fio", *(f"--{name}={value}" for name, value in options.items())]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    return float(json.loads(done.stdout)["jobs"][0]["read"]["bw_bytes"])


def measure(name: str, report: Report, _: Path) -> None:
    """Let all competitors read one kind of observation."""
    if sys.platform != "linux" or os.geteuid() != 0 or shutil.which("fio") is None:
        report.left_out("what is larger than memory", "this needs Linux, root (to drop the page cache and limit memory), and fio")
        return
    group = Cgroup.make()
    if group is None:
        report.left_out("what is larger than memory", "memory cgroups cannot be made below /sys/fs/cgroup")
        return
    try:
        turns(report, group, name)
    finally:
        group.path.rmdir()


def turns(report: Report, group: Cgroup, name: str) -> None:
    """Let all competitors take turns, and compare them."""
    size, rounds, seconds = (512 << 20, 1, 2.0) if report.quick else (1 << 30, 3, 5.0)
    path, small = made(name, size, report.seed), made(name, int(size * SMALL), report.seed)
    found: dict[str, list[dict[str, Any]]] = {who: [] for who in (*OURS, *MEMMAPS)}
    rates: dict[str, list[float]] = {who: [] for who in OURS}
    for turn in range(rounds):
        for who, results in found.items():
            result = alone(compete, group, path, small, name, who, report.seed + turn, seconds)
            results.append(result)
            if who in OURS:
                samples = (SEQUENCES if who == "sequences" else BATCH) * len(result["times"])
                rates[who].append(fio(path / "raw", -(-int(result["wanted"] / samples) // PAGE) * PAGE, seconds))
    for who, results in found.items():
        report.times(f"{name}: {who}", [seconds for result in results for seconds in result["times"]])
        if who in MEMMAPS:
            continue
        value = sum(result["read"] for result in results) / sum(result["wanted"] for result in results)
        report.row(f"{name}, {who}: bytes read for each that is wanted", value, "x", at_most=1.5)
        shares = [r["read"] / r["seconds"] / rate for r, rate in zip(results, rates[who], strict=True)]
        report.row(f"{name}, {who}: share of fio's rate", float(np.median(shares)), "x", at_least=0.6)
        rival = found["memmap, sequences" if who == "sequences" else "memmap"]
        faster = [np.mean(a["times"]) / np.mean(b["times"]) for a, b in zip(rival, results, strict=True)]
        report.row(f"{name}, {who}: times as fast as numpy.memmap", float(np.median(faster)), "x", at_least=8)


PARTS: dict[str, Part] = {name: partial(measure, name) for name in ("ale", "racing", "noise")}

if __name__ == "__main__":
    run("cold", PARTS, parser(__doc__))
