"""What limits sampling from a store on this machine: measured, part by part."""

from __future__ import annotations

import itertools
import os
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from diskbuffer import ReplayBuffer
from diskbuffer.errors import EmptyBufferError, InputError
from diskbuffer.inspect.disk import ColumnFiles, seconds_a_step, share_in_memory
from diskbuffer.plugin import flatten, integer, local_path

_FAR = 16 * 1024**2  # bytes to copy from, so that they come from memory and not from the processor's cache
_BATCHES = 8  # different ones, so that what they are made of comes from memory and not from the processor's cache
_IDLE = 0.1  # a learner that waits for less of its time is not limited by sampling


@dataclass(frozen=True)
class Limits:
    """Where the time of a batch goes. All times are seconds a batch.

    Attributes
    ----------
    batch_size, threads : int
        What was measured: so many steps, and the threads that decode them.
    batch : float
        One batch, with everything in memory, in all threads.
    fixed : float
        Of that, what every call costs, however small: drawing, planning, making tensors.
    copying : float
        What writing as many bytes takes, in one thread: rows that are decoded, or copied from where they lie.
    decoding : float
        What is left: verifying and decompressing chunks, in one thread.
    speedup : float
        How many times as fast as one thread all threads are.
    disk : float or None
        What reading takes where nothing is in memory, as many threads at once. None where files cannot be read past the page
        cache, as on macOS; on a tmpfs, which is memory, next to nothing.
    resident : float
        How much of the store's files is in memory, from 0 to 1.
    read : bool
        Whether any of a batch had to be read, after some seconds of sampling. Files have pages that no step needs, so a store
        from which nothing has to be read need not be resident as a whole.
    learner, waited : float or None
        A step of the learner's, and the share of its time, from 0 to 1, that it waits for a loader's batches.
    limit : str
        "disk", "decoding", "copying", "fixed cost" or "learner".
    advice : str
        What to change.
    """

    batch_size: int
    threads: int
    batch: float
    fixed: float
    copying: float
    decoding: float
    speedup: float
    disk: float | None
    resident: float
    read: bool
    learner: float | None
    waited: float | None
    limit: str
    advice: str


def find_limits(
    path: str | os.PathLike[str], batch_size: int = 256, *, seconds: float = 20.0, learner: Callable[[Any], Any] | None = None
) -> Limits:
    """Find out what limits sampling from a store here: the disk, decoding, copying, the fixed cost of a call, or the learner.

    The store is opened for reading only; others may write to it meanwhile.

    Parameters
    ----------
    path : path-like
        A store with steps.
    batch_size : int
        Single steps a batch.
    seconds : float
        How long to measure; less makes figures less certain. It takes a second or two more to open the store.
    learner : callable, optional
        ``learner(batch)`` is a step of yours, with a batch as `ReplayBuffer.loader` gives it.

    Raises
    ------
    EmptyBufferError
        There is nothing to sample.
    InputError, NotAStoreError
        An argument does not fit, or there is no store.
    """
    size = integer("batch_size", batch_size)
    if not seconds > 0:
        raise InputError(f"seconds must be above 0, found {seconds!r}")
    place, part = local_path(path), seconds / 7
    with ReplayBuffer(place, mode="r", threads=1) as alone, ReplayBuffer(place, mode="r") as all_of_them:
        if not len(alone):
            raise EmptyBufferError(f"{place} holds no complete step yet: there is nothing to measure")
        files = _files(all_of_them)
        resident = share_in_memory(files)  # before sampling brings more in
        read = _has_to_read(all_of_them, size, part)
        threads = int(all_of_them.stats()["threads"])
        drawn = [alone.draw(size)["steps"] for _ in range(_BATCHES)]  # the same again and again, so that they are in memory
        turn = itertools.count()
        one, many, batch = _interleaved(
            [
                lambda: alone.at(drawn[next(turn) % _BATCHES][:1]),
                lambda: alone.at(drawn[next(turn) % _BATCHES]),
                lambda: all_of_them.at(drawn[next(turn) % _BATCHES]),
            ],
            3 * part,
        )
        fixed = min(one, batch)
        packed = {path for path in alone.columns if _array(alone, path).shards}
        copying = min(_copying(alone.at(drawn[0]), packed, part), many - fixed)
        decoding = many - fixed - copying
        step_from_disk = seconds_a_step(files, threads, part)
        disk = None if step_from_disk is None else step_from_disk * size
        step, waited = (None, None) if learner is None else _learning(all_of_them, size, learner, part)
    limit = limit_of(fixed, copying, decoding, disk, resident, read, waited)
    return Limits(
        size, threads, batch, fixed, copying, decoding, many / batch, disk, resident, read, step, waited, limit, _ADVICE[limit]
    )


_ADVICE = {
    "learner": "the learner is never kept waiting: sampling faster would change nothing",
    "disk": (
        "most of the time goes into reading: give the page cache more memory, or a smaller capacity, use a faster disk, or more "
        "threads and a longer prefetch in loader(), so that the disk has more reads at once"
    ),
    "decoding": (
        "most of the time goes into decompressing chunks: use loader(), which decodes ahead in threads, give it more threads if "
        "cores are idle, and let the store be sealed (ReplayBuffer.seal), as sealed chunks decode faster"
    ),
    "copying": (
        "most of the time goes into copying rows: ask for fewer or smaller columns (at(columns=)), or take one batch for several "
        "steps of the learner"
    ),
    "fixed cost": (
        "most of the time is what every call costs, however small: ask for larger batches, and split them; or use loader(), "
        "which makes batches while the learner works"
    ),
}


def limit_of(
    fixed: float, copying: float, decoding: float, disk: float | None, resident: float, read: bool, waited: float | None
) -> str:
    """Return what limits sampling, by what was measured: see `Limits`. The disk does where anything has to be read from it."""
    if waited is not None and waited < _IDLE:
        return "learner"
    shares = {
        "fixed cost": fixed,
        "copying": copying,
        "decoding": decoding,
        "disk": (disk or 0.0) * (1 - resident) if read else 0.0,
    }
    return max(shares, key=lambda name: shares[name])


def _has_to_read(buffer: ReplayBuffer, size: int, seconds: float) -> bool:
    """Sample for some time; return whether one in 16 batches of its second half, or more, had to wait for the disk."""
    begun = time.perf_counter()
    before, batches = -1, 0
    while (passed := time.perf_counter() - begun) < seconds or not batches:
        if before < 0 and passed >= seconds / 2:
            before = _waits()
        buffer.sample(size)
        batches += before >= 0
    return 16 * (_waits() - before) > batches


def _waits() -> int:
    """Count how often this process has waited for pages: page faults with reading, or reads where these are not counted."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_majflt + usage.ru_inblock


def _interleaved(calls: list[Callable[[], Any]], seconds: float) -> list[float]:
    """Time calls in turn, so that a machine's moods strike them all; return the median of each."""
    found: list[list[float]] = [[] for _ in calls]
    for call in [call for call in calls for _ in range(_BATCHES)]:
        call()
    until = time.perf_counter() + seconds
    while time.perf_counter() < until or len(found[0]) < 3:
        for call, taken in zip(calls, found, strict=True):
            begun = time.perf_counter()
            call()
            taken.append(time.perf_counter() - begun)
    return [float(np.median(taken)) for taken in found]


def _copying(batch: Any, packed: set[str], seconds: float) -> float:
    """Time writing the bytes of a batch: of packed columns from the processor's cache, of others from far apart in memory."""
    memories: dict[int, tuple[str, int, int]] = {}  # obs and next_obs share theirs
    for path, tensor in flatten(batch).items():
        storage = tensor.untyped_storage()
        memories[storage.data_ptr()] = path.removeprefix("next_"), len(tensor), max(1, storage.nbytes() // len(tensor))
    pieces = [
        (np.ones((1 if path in packed else -(-_FAR // nbytes), nbytes), np.uint8), np.empty((n, nbytes), np.uint8))
        for path, n, nbytes in memories.values()
    ]
    rng = np.random.default_rng(0)

    def copy() -> None:
        for source, target in pieces:
            np.take(source, rng.integers(0, len(source), len(target)), axis=0, out=target, mode="clip")

    return _interleaved([copy], seconds)[0]


def _array(buffer: ReplayBuffer, path: str) -> Any:
    import zarr

    return zarr.open_array(buffer.path / path, mode="r")


def _files(buffer: ReplayBuffer) -> list[ColumnFiles]:
    """List the files of every column, and how many rows of each are read for a step: a chunk's, or its own."""
    found, root = [], buffer.path
    for path in buffer.columns:
        array = _array(buffer, path)
        rows = array.shards[0] if array.shards else array.chunks[0]
        found.append(ColumnFiles.of(root / path, rows, array.chunks[0] if array.shards else 1))
    return [column for column in found if column.files]


def _learning(buffer: ReplayBuffer, size: int, learner: Callable[[Any], Any], seconds: float) -> tuple[float, float]:
    """Return the time of a learner's step, and the share of its time that it waits for batches."""
    loader = buffer.loader(size, rank=0, world_size=1)
    begun, steps, until = 0.0, 0, 0.0
    for n, batch in enumerate(loader):
        if n == 3:  # threads have started
            loader.waited, begun = 0.0, time.perf_counter()
            until = begun + seconds
        learner(batch)
        steps = n - 2
        if n > 3 and time.perf_counter() > until:
            break
    taken = time.perf_counter() - begun
    return (taken - loader.waited) / max(1, steps), loader.waited / taken
