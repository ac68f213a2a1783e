"""`sample(n)` of every kind of observation, beside all others, in RAM or on disk; from a cold disk; and beside a running loader.

    python -m bench.sizes [--only ale] [--sizes 1 8 32 64 128 256 1024] [--peers SB3] --json FILE

Everything is warm, except in *cold*; all hold the same steps, draw some of their own, uniformly, and deliver all columns as torch
tensors. Each is in a process of its own, and torch has as many threads there as are fastest. numpy gathers single frames and
nothing more: it is what a batch costs at the least.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from functools import partial
from pathlib import Path

import numpy as np
import psutil
import torch

import diskbuffer as db
from bench.frames import COLUMNS, KINDS, Kind, frames
from bench.measure import Part, Report, parser, ratio, run
from bench.peers import PEERS
from bench.peers.ours import filled
from bench.worker import Worker, alone, in_turns, started

SIZES = (32, 256)
COLD = 8  # batches
CHECKED = 32  # steps of the batch by which each shows that it holds what it was given
OURS, LEAST = "diskbuffer", "numpy"
VECTORS = ("SB3", "TorchRL, LazyTensorStorage")
RIVALS = {"vectors of 4": VECTORS, "vectors of 376": VECTORS}  # else Stable-Baselines3
# At least so many times as fast as the faster of the rivals; at most so many times numpy's time.
TARGETS: dict[str, dict[int, float]] = {
    "ale": {1: 1, 8: 1, 32: 1.5, 64: 2, 128: 2, 256: 2.5, 1024: 2.5},
    **{kind: {256: 2} for kind in ("racing", "mujoco")},
    **{kind: {256: 1} for kind in RIVALS},
}
GATHER = {"ale": 1.2, "racing": 2.0, "mujoco": 2.0}  # with 256
ZARR_PYTHON = 400  # at least so many times as fast, from the same store, with 256 Atari stacks


def start(report: Report, kind: Kind, directory: Path, names: list[str]) -> dict[str, Worker]:
    """Start everybody who can hold such steps, and see that what they return is right.

    Raises
    ------
    RuntimeError
        A batch is not of the steps that were given.
    """
    transitions = kind.transitions(directory, report.seed, kind.steps // 4 if report.quick else None)
    workers: dict[str, Worker] = {}
    for name in names:
        peer = PEERS[name]
        if why := peer.missing() or peer.unfit(transitions):
            report.left_out(name if peer.missing() else f"{name}, {kind.title}", why)
            continue
        own = directory / f"peer-{len(workers)}"
        own.mkdir()
        workers[name] = Worker(peer, transitions, own, report.seed)
    for name, worker in workers.items():
        if wrong := worker.ask("check", CHECKED):
            raise RuntimeError(f"{name} returned another batch of {kind.title} than was stored: {wrong}")
    return workers


def sampling(name: str, report: Report, directory: Path) -> None:
    """Sample one kind of observation."""
    kind, options = KINDS[name], report.options
    if why := kind.missing():
        report.left_out(kind.title, why)
        return
    with started(start(report, kind, directory, list(dict.fromkeys([OURS, LEAST, *options.peers])))) as workers:
        for size in options.sizes:
            taking_part = {who: worker for who, worker in workers.items() if size in SIZES or not PEERS[who].slow}
            for worker in taking_part.values():
                worker.ask("prepare", size)
                worker.ask("tune", size)
            times = in_turns(taking_part, "sample", size, rounds=5 if report.quick else 11)
            for who, taken in times.items():
                report.times(f"{kind.title}, sample({size}): {who}", taken)
            compare(report, name, size, times)


def compare(report: Report, name: str, size: int, times: dict[str, list[float]]) -> None:
    """Note how we compare, with whom there is a target, and with the fastest of all."""
    what, ours = f"{KINDS[name].title}, sample({size})", times[OURS]

    def fastest(names: Iterable[str]) -> str:
        return min(names, key=lambda who: float(np.median(times[who])))

    rivals = [who for who in RIVALS.get(name, ("SB3",)) if who in times]
    if rivals:
        rival = fastest(rivals)
        at_least = TARGETS.get(name, {}).get(size)
        report.row(f"{what}: times as fast as {rival}", ratio(times[rival], ours), "x", at_least=at_least)
    others = [who for who in times if not who.startswith(OURS) and who != LEAST and not PEERS[who].prefetches]
    if set(others) - set(rivals):
        best = fastest(others)
        report.row(f"{what}: times as fast as the fastest, {best}", ratio(times[best], ours), "x")
    at_most = GATHER.get(name) if size == 256 else None
    report.row(f"{what}: time against numpy's gather from RAM", ratio(ours, times[LEAST]), "x", at_most=at_most)
    if "zarr-python" in times and (name, size) == ("ale", 256):
        value = ratio(times["zarr-python"], ours)
        report.row(f"{what}: times as fast as zarr-python from the same store", value, "x", at_least=ZARR_PYTHON)


def loader(report: Report, directory: Path) -> None:
    """Work in pure Python, 10 ms a batch, with and without a loader that provides the batches meanwhile."""

    def work(n: int) -> int:
        return sum(k * k % 7 for k in range(n))

    begin = time.perf_counter()
    work(200_000)
    n = int(200_000 * 0.01 / (time.perf_counter() - begin))
    pixels = frames(12_001)
    taken: dict[bool, list[float]] = {False: [], True: []}
    with db.ReplayBuffer(directory / "store", columns=COLUMNS, frame_stack=4, seed=report.seed) as buffer:
        buffer.extend(obs=pixels, action=np.zeros(12_000, np.int64), reward=np.zeros(12_000))
        buffer.flush(recompress=True)
        batches = iter(buffer.loader(256))
        for _ in range(10):
            next(batches)
        for turn in range(200 if report.quick else 600):
            if turn % 40 == 0:
                time.sleep(0.05)  # the ring is full and the loader idle
            loaded = turn // 20 % 2 == 1
            if loaded:
                next(batches)
            begin = time.perf_counter()
            work(n)
            taken[loaded].append(time.perf_counter() - begin)
        batches.close()  # type: ignore[attr-defined]
    by_itself, beside = (float(np.median(seconds)) for seconds in taken.values())
    report.row("a pure-Python loop is slowed by a running loader by", 100 * (beside / by_itself - 1), "%", at_most=10)


def first_batches(who: str, path: Path, seed: int) -> tuple[float, float, float]:
    """Draw batches of files of which nothing is in memory; return seconds, bytes read and distinct frames of a batch."""
    os.sync()
    for file in (each for each in path.rglob("*") if each.is_file()):
        with file.open("rb") as opened:
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    kind, rng = KINDS["ale"], np.random.default_rng(seed)
    window, distinct = np.arange(-kind.stack + 1, 2), 0
    buffer, raw = db.ReplayBuffer(path / "store", mode="r", seed=seed), np.load(path / "frames.npy", mmap_mode="r")
    before, begin = psutil.Process().io_counters().read_bytes, time.perf_counter()
    for _ in range(COLD):
        if who == OURS:
            steps = buffer.sample(256)["steps"].numpy()
        else:
            steps = rng.integers(kind.stack, len(raw) - 1, 256)
            torch.from_numpy(raw[steps[:, None] + window])
        distinct += len(np.unique(steps[:, None] + window))
    seconds, read = time.perf_counter() - begin, psutil.Process().io_counters().read_bytes - before
    buffer.close()
    return seconds / COLD, read / COLD, distinct / COLD


def cold(report: Report, directory: Path) -> None:
    """Draw the first batches of Atari stacks after the kernel forgot the files, beside numpy.memmap of the frames as they are."""
    kind = KINDS["ale"]
    transitions = kind.transitions(directory, report.seed, 12_000 if report.quick else 200_000)
    filled(transitions, directory, report.seed).close()
    found: dict[str, list[tuple[float, float, float]]] = {OURS: [], "numpy.memmap": []}
    for turn in range(3 if report.quick else 9):
        for who, taken in found.items():
            taken.append(alone(first_batches, who, directory, report.seed + turn))
    times = {who: [seconds for seconds, _, _ in taken] for who, taken in found.items()}
    for who, seconds in times.items():
        report.times(f"cold, {kind.title}, sample(256): {who}", seconds)
    read, wanted = (float(np.median([taken[k] for taken in found[OURS]])) for k in (1, 2))
    if not read:
        report.left_out("a cold disk", "the directory for temporary files is in memory: set TMPDIR")
        return
    size = sum(file.stat().st_blocks * 512 for file in (directory / "store" / "obs").rglob("*"))
    value = read / (wanted * size / len(transitions.frames))
    report.row("cold: bytes read for each that is wanted", value, "x", at_most=1.5)
    report.row("cold: times as fast as numpy.memmap", ratio(times["numpy.memmap"], times[OURS]), "x", at_least=8)


PARTS: dict[str, Part] = {**{name: partial(sampling, name) for name in KINDS}, "loader": loader, "cold": cold}

if __name__ == "__main__":
    given = parser(__doc__)
    given.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="steps of a batch; those who are slow get 32 and 256")
    given.add_argument("--peers", nargs="+", choices=list(PEERS), default=list(PEERS), metavar="PEER")
    run("sizes", PARTS, given)
