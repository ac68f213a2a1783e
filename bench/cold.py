"""Stores four times as large as the memory that may hold them: sampling from the disk, beside numpy.memmap and fio.

    python -m bench.cold [--only ale racing noise] --json FILE

Every competitor runs in a process of its own, in a memory cgroup, with all caches dropped. What the process itself needs is
measured on a small store first, with as many batches held; the cgroup is limited to that and a quarter of the store. Then the
competitor reads as much as that quarter holds, unmeasured, so that what is used all the time is in memory, as it would be in a
training; and then batches for some seconds. Competitors take turns, round after round.

numpy.memmap gathers single frames from a file of raw frames, as large as the store, with a quarter of it allowed; all other
columns are given to it. fio reads the same file in blocks as large as what a sample wants, in whole pages, 64 of them at a time,
past the page cache.

- *wanted*: bytes on the disk of the rows that are asked for, each once a batch: rows times the mean size of a row in its shard.
- *chunks*: bytes of the compressed chunks that these rows are in; *pages*: bytes of the pages of 4 KiB that these chunks are in,
  each once a batch. No reading through the page cache can do with less than that, but for what is in memory still.
- *read*: bytes that the process had the disk read, by the kernel's count (`/proc/self/io`).

Needs Linux, root, fio, and a directory on a disk (`bench/.cache`, where stores are made once, and kept: 2.3 GB a kind).
"""

from __future__ import annotations

import argparse
import json
import math
import mmap
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

import diskbuffer as db
from bench.frames import CACHE
from bench.kinds import KINDS
from bench.measure import Report

PAGE = 4096
SHARE = 4  # the store has so many times the memory that may hold it
BATCH, SEQUENCES, LENGTH = 256, 64, 64  # steps; a sequence has a frame more
THREADS = (1, 2, 4, 8)
SMALL = 0.02  # of the store's bytes, of the store that shows what the process itself needs
OURS = ("sample", "sequences", *(f"loader, threads={n}" for n in THREADS))
MEMMAPS = ("memmap", "memmap, MADV_RANDOM", "memmap, sequences")
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

    def enter(self) -> None:
        """Move this process into it."""
        (self.path / "cgroup.procs").write_text(str(os.getpid()))

    def used(self) -> int:
        """Return how much is used now, but for files' contents."""
        stat = dict(line.split() for line in (self.path / "memory.stat").read_text().splitlines())
        return int((self.path / self.usage_file).read_text()) - int(stat[self.files])

    def limit(self, most: int) -> None:
        """Allow so many bytes."""
        (self.path / self.limit_file).write_text(str(most))

    def lift(self) -> None:
        """Allow any amount again."""
        (self.path / self.limit_file).write_text("-1" if "limit" in self.limit_file else "max")


def drop_caches() -> None:
    """Have the kernel drop what of files it keeps in memory."""
    os.sync()
    Path("/proc/sys/vm/drop_caches").write_text("1")


def bytes_read() -> int:
    """Return how many bytes this process had the disk read."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("read_bytes")).split()[1])


# Stores


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
    steps: dict[str, Any] = {"action": np.zeros(n, np.int64), "reward": np.zeros(n)}
    with db.ReplayBuffer(building / "trial", n, columns=columns, frame_stack=kind.stack) as trial:
        trial.extend(obs=pixels, **steps)
        trial.flush(recompress=True)
        each = on_disk(building / "trial" / "obs") / len(pixels)
    shutil.rmtree(building / "trial")
    total = int(size / each)
    with db.ReplayBuffer(building / "store", total, columns=columns, frame_stack=kind.stack) as buffer:
        for first in range(0, total, n + 1):
            rows = min(n, max(1, total - first - 1))
            buffer.extend(obs=pixels[: rows + 1], **{path: values[:rows] for path, values in steps.items()})
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


def places(store: Path) -> npt.NDArray[np.int64]:
    """Return of each chunk of a store of one stream in which file it is, where, and its bytes: (chunks, 3)."""
    import zarr

    group = zarr.open_group(store, mode="r")
    settings: dict[str, Any] = group.attrs["diskbuffer"]  # type: ignore[assignment]
    first, length = (np.asarray(group[f"_segments/{name}"], np.int64) for name in ("first_row", "length"))
    chunks, found = settings["segment_rows"] // settings["chunk_rows"]["obs"], []
    shape = group["obs"].shape[1:]  # type: ignore[union-attr]
    for slot in np.argsort(first, kind="stable"):
        if length[slot, 0]:
            file = store / "obs" / (f"c.{slot}" + ".0" * len(shape))
            with file.open("rb") as shard:
                shard.seek(-16 * chunks, os.SEEK_END)
                entries = np.frombuffer(shard.read(), np.int64).reshape(chunks, 2)
            there = -(-int(length[slot, 0]) // settings["chunk_rows"]["obs"])
            found.append(np.column_stack([np.full(chunks, slot), entries])[:there])
    return np.concatenate(found)


# Competitors, in processes of their own


def ours(path: Path, name: str, who: str, seed: int) -> Iterator[Read]:
    """Yield what reads a batch from a store."""
    kind = KINDS[name]
    before, after = kind.stack - 1, LENGTH if who == "sequences" else 1
    with db.ReplayBuffer(path / "store", mode="r", seed=seed) as buffer:
        if who == "sequences":
            sampler = db.Slices(LENGTH, seed)
            batches = iter(lambda: buffer.sample(SEQUENCES, sampler), None)
            before = 0 if kind.stack == 1 else before
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
    kind, rng = KINDS[name], np.random.default_rng(seed)
    shape, stack = json.loads((path / "store" / "obs" / "zarr.json").read_text())["shape"][1:], kind.stack
    mapped = np.memmap(path / "raw", np.uint8, "r")
    if who == "memmap, MADV_RANDOM":
        mapped._mmap.madvise(mmap.MADV_RANDOM)  # type: ignore[attr-defined]
    frames = mapped[: len(mapped) // math.prod(shape) * math.prod(shape)].reshape(-1, *shape)
    sequences = who == "memmap, sequences"
    window = np.arange(LENGTH + 1 if sequences else stack + 1)
    n = SEQUENCES if sequences else BATCH
    beside = [np.zeros(len(frames), dtype) for dtype in (np.int64, np.float32, np.bool_, np.bool_)]

    def read() -> npt.NDArray[np.int64]:
        rows = rng.integers(0, len(frames) - len(window), n)[:, None] + window
        torch.from_numpy(frames[rows])
        for column in beside:
            torch.from_numpy(column[rows])
        return rows

    yield read


def compete(group: Cgroup, path: Path, small: Path, name: str, who: str, seed: int, seconds: float) -> dict[str, Any]:
    """Read batches as one competitor does, in memory that is limited; return the seconds of each, and bytes."""
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
    begin, before, cold = time.perf_counter(), bytes_read(), 0.0
    while bytes_read() - before < allowed and time.perf_counter() - begin < 4 * seconds:
        read()
        cold = cold or time.perf_counter() - begin
    rows, times, begin, before = [], list[float](), time.perf_counter(), bytes_read()
    while time.perf_counter() - begin < seconds:
        started = time.perf_counter()
        rows.append(read())
        times.append(time.perf_counter() - started)
    elapsed, found = time.perf_counter() - begin, bytes_read() - before
    for _ in running:
        pass
    return {"times": times, "seconds": elapsed, "read": found, "first": cold, **what_was_wanted(path, name, who, rows)}


def what_was_wanted(path: Path, name: str, who: str, rows: list[npt.NDArray[np.int64]]) -> dict[str, float]:
    """Return the bytes of the rows of batches, of their chunks, and of the pages of these."""
    if who in MEMMAPS:
        return {}
    found, chunk_rows = {"wanted": 0.0, "chunks": 0.0, "pages": 0.0}, 4
    chunks = places(path / "store")
    each = chunks[:, 2].sum() / len(chunks) / chunk_rows
    for batch in rows:
        distinct = np.unique(np.maximum(batch, 0))
        touched = chunks[np.unique(distinct // chunk_rows)]
        first, last = touched[:, 1] // PAGE, (touched[:, 1] + touched[:, 2] - 1) // PAGE
        of = np.repeat(touched[:, 0] << 32, last - first + 1)
        offsets = np.concatenate([np.arange(a, b + 1) for a, b in zip(first, last, strict=True)])
        found["wanted"] += len(distinct) * each
        found["chunks"] += float(touched[:, 2].sum())
        found["pages"] += PAGE * len(np.unique(of + offsets))
    return found


# The benchmark


def in_a_process(group: Cgroup, seconds: float, seed: int, *what: str) -> dict[str, Any]:
    """Run a competitor in the cgroup."""
    group.lift()
    command = [sys.executable, "-m", "bench.cold", "--compete", *what, "--seed", str(seed), "--seconds", str(seconds)]
    command += ["--cgroup", json.dumps([str(group.path), group.limit_file, group.usage_file, group.files])]
    done = subprocess.run(command, preexec_fn=group.enter, stdout=subprocess.PIPE, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def fio(file: Path, block: int, seconds: float) -> float:
    """Return the bytes a second that fio reads at random, 64 blocks at a time."""
    drop_caches()
    options = {"name": "cold", "filename": file, "rw": "randread", "bs": block, "iodepth": 64, "direct": 1, "ioengine": "libaio"}
    options |= {"runtime": seconds, "time_based": 1, "output-format": "json"}
    command = ["fio", *(f"--{name}={value}" for name, value in options.items())]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    return float(json.loads(done.stdout)["jobs"][0]["read"]["bw_bytes"])


def run(report: Report, group: Cgroup, name: str, args: argparse.Namespace) -> None:
    """Let all competitors read one kind of observation."""
    path, small = made(name, args.size, args.seed), made(name, int(args.size * SMALL), args.seed)
    whose = [who for who in (*OURS, *MEMMAPS) if args.who is None or who in args.who]
    found: dict[str, list[dict[str, Any]]] = {who: [] for who in whose}
    rates: dict[str, list[float]] = {}
    blocks: dict[str, int] = {}
    for turn in range(args.rounds):
        for who in whose:
            result = in_a_process(group, args.seconds, args.seed + turn, str(path), str(small), name, who)
            found[who].append(result)
            if who in OURS:
                samples = (SEQUENCES if who == "sequences" else BATCH) * len(result["times"])
                blocks[who] = -(-int(result["wanted"] / samples) // PAGE) * PAGE
                rates.setdefault(who, []).append(fio(path / "raw", blocks[who], args.seconds))
    for who, results in found.items():
        report.times(f"{name}: {who}", [seconds for result in results for seconds in result["times"]])
        if who in MEMMAPS:
            continue

        def total(what: str, results: list[dict[str, Any]] = results) -> float:
            return float(sum(result[what] for result in results))

        wanted = total("wanted")
        parts = ", ".join(f"{what} {total(what) / wanted:.2f}" for what in ("chunks", "pages", "read"))
        rate, first = total("read") / total("seconds") / 1e6, 1e3 * total("first") / len(results)
        print(f"       bytes for each that is wanted: {parts}; {rate:.0f} MB/s; the first batch of all took {first:.0f} ms")
        value = total("read") / wanted
        report.row(f"{name}, {who}: bytes read for each that is wanted", value, "x", at_most=1.5)
        if who in rates:
            value = float(np.median([r["read"] / r["seconds"] / rate for r, rate in zip(results, rates[who], strict=True)]))
            report.row(f"{name}, {who}: share of fio's rate, {blocks[who] // 1024} KiB", value, "x", at_least=0.6)
        rival = "memmap, sequences" if who == "sequences" else "memmap"
        if rival in found:
            each = zip(found[rival], results, strict=True)
            value = float(np.median([np.mean(a["times"]) / np.mean(b["times"]) for a, b in each]))
            report.row(f"{name}, {who}: times as fast as numpy.memmap", value, "x", at_least=8)


def main() -> None:
    """Run all kinds, or some; or, as a child, one competitor."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="half of the bytes, one round")
    parser.add_argument("--only", nargs="+", choices=("ale", "racing", "noise"), default=("ale", "racing", "noise"))
    parser.add_argument("--who", nargs="+", choices=(*OURS, *MEMMAPS))
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--cgroup", type=json.loads, help=argparse.SUPPRESS)
    parser.add_argument("--compete", nargs=4, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.compete:
        path, small, name, who = args.compete
        group = Cgroup(Path(args.cgroup[0]), *args.cgroup[1:])
        print(json.dumps(compete(group, Path(path), Path(small), name, who, args.seed, args.seconds)))
        return
    args.size = (512 if args.quick else 1024) * 1024**2
    args.rounds, args.seconds = args.rounds or (1 if args.quick else 3), args.seconds or (2 if args.quick else 5)
    if os.name != "posix" or sys.platform != "linux" or os.geteuid() != 0 or shutil.which("fio") is None:
        print("left out: this needs Linux, root (to drop the page cache, and to limit memory), and fio")
        return
    group_made = Cgroup.make()
    if group_made is None:
        print("left out: this needs memory cgroups that can be made below /sys/fs/cgroup")
        return
    report = Report("cold", args.seed, quick=args.quick)
    try:
        for name in args.only:
            run(report, group_made, name, args)
    finally:
        group_made.path.rmdir()
    report.write(args.json)


if __name__ == "__main__":
    main()
