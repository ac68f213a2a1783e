"""Ways to compress frames when their segment is sealed: bytes, microseconds to write a frame, and to read it; and sealing itself.

    python -m bench.sealing [--only racing noise] --json FILE

Of each kind of frames, every way is tried on the same chunks in turn, everything warm, in CPU time of one thread. Encoding
includes decoding the live chunk, as sealing does. `first` is what the first frame of a chunk takes, `full` each frame of all.
Decoding includes a call from Python for each chunk, of 0.2 us.

Camera pictures and depth pictures are made up: CarRacing's frames, enlarged, with and without noise of two grey levels; boxes
that move over a floor, with and without noise of a centimetre. They are no photographs: they tell of sizes, not of contents.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import diskbuffer as db
from bench.frames import frames
from bench.kinds import racing
from bench.measure import Report, ratio
from diskbuffer.native import codec as native
from diskbuffer.schema import Column, Schema
from diskbuffer.store.format import codec
from diskbuffer.store.format.codec import COPY, PICTURES, Method
from diskbuffer.store.format.encoding import Recoder, encode_chunks
from diskbuffer.store.format.sizes import chunk_rows_of
from diskbuffer.store.writing.compression import distances_of

Pixels = npt.NDArray[Any]
LEVELS = [Method("lz4hc", level) for level in range(1, 10)]
OTHERS = [COPY, Method("lz4", 1), Method("lz4", 5), Method("lz4", 9), PICTURES, Method("zstd", 1), Method("zstd", 3)]
TARGETS = {"racing": 3.0}  # how many times as fast as LZ4HC level 7, for files at most a tenth larger
CHUNKS = 40


def camera(n: int, rng: np.random.Generator, size: tuple[int, int], noise: float) -> Pixels:
    """Return frames of CarRacing, enlarged, with noise of so many grey levels."""
    small, found = racing(4_000, 0)[1_000 : 1_000 + n].astype(np.float32), []
    at = [np.linspace(0, 94.999, axis) for axis in size]
    (y, x), (dy, dx) = ([a.astype(np.int64) for a in at], [(a % 1).astype(np.float32) for a in at])
    dy, dx = dy[:, None, None], dx[:, None]
    for frame in small:
        above = frame[y][:, x] * (1 - dx) + frame[y][:, x + 1] * dx
        below = frame[y + 1][:, x] * (1 - dx) + frame[y + 1][:, x + 1] * dx
        large = above * (1 - dy) + below * dy + rng.normal(0, noise, (*size, 3))
        found.append(np.rint(large).clip(0, 255).astype(np.uint8))
    return np.stack(found)


def depth(n: int, rng: np.random.Generator, noise: float) -> Pixels:
    """Return distances in metres, (n, 84, 84), of boxes that move over a floor."""
    y, x = np.mgrid[0:84, 0:84].astype(np.float32)
    places, speeds = rng.uniform(10, 70, (5, 2)), rng.normal(0, 1, (5, 2))
    sizes, distances = rng.uniform(4, 14, 5), rng.uniform(1, 4, 5)
    found = []
    for k in range(n):
        floor = 300 / (y + 40 + 3 * np.sin(k / 50)) + 0.001 * x
        for (cx, cy), size, distance in zip((places + k * speeds) % 84, sizes, distances, strict=True):
            box = (abs(x - cx) < size) & (abs(y - cy) < size) & (floor > distance)
            floor = np.where(box, distance + 0.01 * (x - cx), floor)
        found.append((floor + rng.normal(0, noise, floor.shape) if noise else floor).astype(np.float32))
    return np.stack(found)


def noise(n: int, rng: np.random.Generator) -> Pixels:
    """Return frames that nothing makes smaller."""
    return rng.integers(0, 256, (n, 96, 96, 3)).astype(np.uint8)


KINDS: dict[str, tuple[Callable[[np.random.Generator], Pixels], tuple[int, ...]]] = {  # rows of a chunk: 0 for the store's own
    "ale": (lambda _: frames(12_000), (0,)),
    "racing": (lambda rng: racing(4_000, 0), (0,)),
    "noise": (lambda rng: noise(400, rng), (0,)),
    "camera 128x128": (lambda rng: camera(80, rng, (128, 128), 0), (4, 2, 1)),
    "camera 128x128, noisy": (lambda rng: camera(80, rng, (128, 128), 2), (4, 2, 1)),
    "camera 480x640": (lambda rng: camera(8, rng, (480, 640), 0), (2, 1)),
    "camera 480x640, noisy": (lambda rng: camera(8, rng, (480, 640), 2), (1,)),
    "depth": (lambda rng: depth(200, rng, 0), (0,)),
    "depth, noisy": (lambda rng: depth(200, rng, 0.01), (0,)),
}


def in_turn(rounds: int, competitors: Mapping[str, Callable[[], None]]) -> dict[str, list[float]]:
    """Run competitors in turn; return seconds of this thread on a core, by name, which others on the machine hardly add to."""
    seconds: dict[str, list[float]] = {name: [] for name in competitors}
    for _ in range(rounds):
        for name, call in competitors.items():
            begin = time.thread_time()
            call()
            seconds[name].append(time.thread_time() - begin)
    return seconds


def name_of(method: Method) -> str:
    """Return a name that tells levels of LZ4 apart, too."""
    level = f":{method.level}" if method.level else ""
    return f"{method.compressor}{level}{' shuffled' if method.item > 1 else ''}"


class Chunks:
    """Live chunks of a column in memory, and what each way makes of them."""

    def __init__(self, pixels: Pixels, rows: int, chunks: int) -> None:
        column = Column(pixels.shape[1:], pixels.dtype)
        self.rows = rows or chunk_rows_of(Schema.of({"obs": column}))["obs"]
        self.size, whole = self.rows * column.row_bytes, len(pixels) // self.rows
        chosen = np.unique(np.linspace(0, whole - 1, min(chunks, whole)).astype(np.int64))
        raw = np.ascontiguousarray(pixels[: whole * self.rows].reshape(whole, self.rows, *column.shape)[chosen])
        self.frames = len(chosen) * self.rows
        self._raw, self._item = raw, column.np_dtype.itemsize
        self._live, self._entries = self._room(len(chosen))
        encode_chunks(column, raw.ctypes.data, 0, raw.nbytes, self.size, self._live, self._entries)
        self._recoder = Recoder(self.size, distances_of(column))
        self._target, self._scratch = np.empty(self.size, np.uint8), np.empty(self.size, np.uint8)
        self.sealed: dict[str, tuple[Any, Any]] = {}

    def _room(self, chunks: int) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
        return np.zeros(chunks * codec.bound(self.size), np.uint8), np.zeros((chunks, 2), np.int64)

    @property
    def methods(self) -> list[Method]:
        """All ways; of items of several bytes, also those that shuffle them."""
        plain = [*OTHERS, *LEVELS]
        return plain + [m._replace(item=self._item) for m in plain if self._item > 1 and m.level]

    def encode(self, method: Method) -> None:
        """Seal the chunks."""
        out, moved = self.sealed.setdefault(name_of(method), self._room(len(self._entries)))
        self._recoder.stored[:] = 2, 0
        assert self._recoder.recode(self._live.ctypes.data, self._entries, out, moved, method) > 0

    def decode(self, rows: int, method: Method) -> None:
        """Decode the first rows of each sealed chunk."""
        out, moved = self.sealed[name_of(method)]
        wanted, target, scratch = rows * self.size // self.rows, self._target.ctypes.data, self._scratch.ctypes.data
        for offset, size in (moved + [out.ctypes.data, 0]).tolist():
            assert native.decode(offset, size, self.size, wanted, target, scratch) == 0

    def bytes(self, method: Method) -> float:
        """Return the bytes of a sealed frame."""
        return float(self.sealed[name_of(method)][1][:, 1].sum() / self.frames)


def methods(report: Report, name: str, rng: np.random.Generator, rounds: int, chunks: int) -> None:
    """Try every way on one kind of frames."""
    make, all_rows = KINDS[name]
    pixels = make(rng)
    for rows in all_rows:
        made = Chunks(pixels, rows, chunks)
        what = f"{name}, {made.rows} a chunk"
        known = {name_of(method): method for method in made.methods}

        first: dict[str, Callable[[Method], None]] = {
            "encoding": made.encode,
            "decoding, full": partial(made.decode, made.rows),
            "decoding, first": partial(made.decode, 1),
        }
        taken: dict[str, list[float]] = {}
        for act, function in first.items():
            competitors = {each: partial(function, method) for each, method in known.items()}
            in_turn(1, competitors)
            times = in_turn(rounds, competitors)
            per = made.frames if act != "decoding, first" else made.frames // made.rows
            for each, seconds in times.items():
                report.times(f"{what}, {each}, {act}", [s / per for s in seconds], 1e6, "us")
            taken = taken or times
        smallest = made.bytes(known["lz4hc:7"])
        for each, method in known.items():
            value = made.bytes(method) / (made.size / made.rows)
            report.row(f"{what}, {each}: bytes on disk of each", value, "")
        least = TARGETS.get(name)
        quotient = ratio(taken["lz4hc:7"], taken["pictures"])
        report.row(f"{what}: pictures, times as fast as LZ4HC 7", quotient, "x", at_least=least)
        value = made.bytes(PICTURES) / smallest
        report.row(f"{what}: pictures, size against LZ4HC 7", value, "x", at_most=None if least is None else 1.1)


def sealing(report: Report, name: str, directory: Path, rng: np.random.Generator, rounds: int, n: int) -> None:
    """Extend by frames, and seal them, while nobody else does anything."""
    pixels = KINDS[name][0](rng)
    pixels = np.concatenate([pixels] * -(-(n + 1) // len(pixels)))[: n + 1]
    columns = {"obs": db.Column(pixels.shape[1:], pixels.dtype), "action": db.Column((), "int64")}
    extended, sealed = [], []
    for k in range(rounds):
        with db.ReplayBuffer(directory / str(k), columns=columns, segment_rows=256) as buffer:
            begin = time.perf_counter()
            buffer.extend(obs=pixels, action=np.zeros(n, np.int64), reward=np.zeros(n))
            extended.append((time.perf_counter() - begin) / n)
            buffer.flush(recompress=True)
            sealed.append((time.perf_counter() - begin) / n)
            told = buffer.stats()["compression"]["obs"]
        shutil.rmtree(directory / str(k))
    report.times(f"{name}, extend, a step", extended, 1e6, "us")
    report.times(f"{name}, extend and seal, a step", sealed, 1e6, "us")
    print(f"  sealed by {told['codec']}, {told['us_per_row']:.1f} us of its thread a frame")
    value = 1 / float(np.median(sealed))
    report.row(f"{name}, extend and seal: steps a second", value, "", at_least=10_000 if name == "noise" else None)


def adding(report: Report, directory: Path, steps: int) -> None:
    """Add real frames of 16 environments as fast as they can be added; and see how long sealing takes after that."""
    pixels, n_envs = frames(12_000), 16
    columns = {"obs": db.Column((84, 84), "uint8"), "action": db.Column((), "int64")}
    none, zeros = np.zeros(n_envs, np.bool_), np.zeros(n_envs, np.int64)
    at = np.arange(n_envs) * (len(pixels) // n_envs)
    options: dict[str, Any] = {"columns": columns, "n_envs": n_envs, "autoreset": "next_step", "segment_rows": 256}
    with db.ReplayBuffer(directory / "adding", **options) as buffer:
        begin = time.perf_counter()
        for step in range(steps // n_envs):
            buffer.add(pixels[(at + step) % 12_000], zeros, zeros, pixels[(at + step + 1) % 12_000], none, none)
        added = time.perf_counter()
        left = buffer.stats()["unsealed"] * 256
        buffer.flush(recompress=True)
        end = time.perf_counter()
        figures = buffer.stats()["compression"]["obs"]
    report.row("16 environments, add at full speed: steps a second", steps / (added - begin), "")
    report.row("... of which were not sealed when the last was added", left / steps, "")
    report.row("... sealed after that: frames a second", left / (end - added), "")
    report.row("... that sealing keeps up with, at a third of a core", 1e6 / figures["us_per_row"] / 3, "")
    shutil.rmtree(directory / "adding")


def main() -> None:
    """Run everything, or some kinds."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="a third of the rounds, a quarter of the frames")
    parser.add_argument("--only", nargs="+", choices=[*KINDS, "add"], default=[*KINDS, "add"])
    args = parser.parse_args()
    report, rounds = Report("sealing", args.seed, quick=args.quick), 3 if args.quick else 7
    directory = Path(tempfile.mkdtemp(prefix="diskbuffer-bench-"))
    try:
        for name in args.only:
            if name == "add":
                adding(report, directory, 20_000 if args.quick else 100_000)
                continue
            rng = np.random.default_rng(args.seed)
            methods(report, name, rng, rounds, CHUNKS // 4 if args.quick else CHUNKS)
            if name in ("ale", "racing", "noise"):
                sealing(report, name, directory, rng, rounds, 512 if args.quick else 2048)
    finally:
        shutil.rmtree(directory)
    report.write(args.json)


if __name__ == "__main__":
    main()
