"""A store's files and the disk: how much of them is in memory, and what it takes to read what is not."""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

_PAGE = mmap.PAGESIZE
_LOOKED_AT = 256  # files, at most


@dataclass(frozen=True)
class ColumnFiles:
    """The files of a column, one a segment, in random order; and how many bytes are read for one step of it."""

    files: tuple[Path, ...]
    bytes_a_read: int

    @classmethod
    def of(cls, directory: Path, segment_rows: int, rows_a_read: int) -> ColumnFiles:
        """List the files of a column, of which `rows_a_read` consecutive rows are read at once."""
        found = sorted(directory.glob("c.*"))
        order = np.random.default_rng(0).permutation(len(found))
        sizes = [used for file in found[:_LOOKED_AT] if (used := _allocated(file))]
        mean = sum(sizes) / len(sizes) * rows_a_read / segment_rows if sizes else 0
        return cls(tuple(found[n] for n in order), max(1, -(-int(mean) // _PAGE)) * _PAGE)


def share_in_memory(columns: Sequence[ColumnFiles]) -> float:
    """Return how much of the files is in the page cache, from 0 to 1, as the system tells (``mincore``)."""
    mincore = ctypes.CDLL(None, use_errno=True).mincore
    there = whole = 0
    for file in [file for column in columns for file in column.files[: max(1, _LOOKED_AT // len(columns))]]:
        pages = -(-_allocated(file) // _PAGE)
        try:
            with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, prot=mmap.PROT_READ) as mapped:
                view = np.frombuffer(mapped, np.uint8)
                found = np.zeros(-(-len(view) // _PAGE), np.uint8)
                failed = mincore(*map(ctypes.c_void_p, (view.ctypes.data, len(view), found.ctypes.data)))
                del view
        except (OSError, ValueError):  # it was evicted meanwhile, or is empty
            continue
        if not failed:
            there, whole = there + min(pages, int((found & 1).sum())), whole + pages
    return there / whole if whole else 1.0


def seconds_a_step(columns: Sequence[ColumnFiles], threads: int, seconds: float) -> float | None:
    """Time reading one step's bytes of all columns from random places of the disk, past the page cache, many threads at once.

    None where that cannot be done, as on macOS.
    """
    direct = getattr(os, "O_DIRECT", 0)
    columns = [column for column in columns if column.files]
    if not direct or not columns:
        return None
    largest, until = max(column.bytes_a_read for column in columns), time.perf_counter() + seconds
    done, lock = [0.0, 0.0], threading.Lock()

    def read(column: ColumnFiles, rng: np.random.Generator, memory: memoryview) -> None:
        file = column.files[int(rng.integers(len(column.files)))]
        fd = os.open(file, os.O_RDONLY | direct)
        try:
            last = max(0, _allocated(file) - column.bytes_a_read) // _PAGE
            os.preadv(fd, [memory[: column.bytes_a_read]], int(rng.integers(last + 1)) * _PAGE)
        finally:
            os.close(fd)

    def work(seed: int) -> None:
        rng, steps, begun = np.random.default_rng(seed), 0, time.perf_counter()
        with mmap.mmap(-1, largest) as memory, memoryview(memory) as view:
            while not steps or time.perf_counter() < until:
                try:
                    for column in columns:
                        read(column, rng, view)
                except FileNotFoundError:  # it was evicted meanwhile
                    continue
                except OSError:  # no reading past the page cache here
                    return
                steps += 1
        with lock:
            done[0], done[1] = done[0] + steps, done[1] + time.perf_counter() - begun

    workers = [threading.Thread(target=work, args=(seed,), daemon=True) for seed in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return done[1] / done[0] / threads if done[0] else None


def _allocated(file: Path) -> int:
    """Return the bytes of disk that a file takes, without its holes; 0 where it is gone."""
    try:
        return file.stat().st_blocks * 512
    except FileNotFoundError:
        return 0
