"""Which codec a packing thread can keep up with, beside `add` and beside a learner, on few cores.

    python -m bench.packers --json FILE

A thread compresses frames, four to a chunk, with one codec after the other, without Python's lock, while the main thread adds
frames of the same kind to a buffer as fast as it can, or trains a small CNN. Of each: how many frames a second are compressed
there, bytes of each byte, how far packing falls behind what is added, and how much slower the main thread is than alone. Our own
encoder starts from chunks of LZ4, which it decodes first.
"""

from __future__ import annotations

import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

import diskbuffer as db
from bench.frames import frames
from bench.kinds import KINDS as OBSERVATIONS
from bench.lossy import KINDS as LOSSY
from bench.measure import Report, arguments
from diskbuffer.native import codec as native
from diskbuffer.store.format.codec import bound
from diskbuffer.store.writing.compression import distances_of

UInt8 = npt.NDArray[np.uint8]
ROWS = 4  # of a chunk
CODECS: dict[str, tuple[bytes, int] | None] = {
    "LZ4 1": (b"lz4", 1),
    "LZ4HC 3": (b"lz4hc", 3),
    "LZ4HC 4": (b"lz4hc", 4),
    "own encoder": None,
    "zstd 1": (b"zstd", 1),
}
KINDS: dict[str, tuple[Callable[[int], UInt8], Callable[[], str]]] = {
    "Atari, 84x84": (frames, lambda: ""),
    "CarRacing, 96x96x3": (lambda n: np.asarray(OBSERVATIONS["racing"].make(n, 0), np.uint8), OBSERVATIONS["racing"].missing),
    "camera, 128x128x3": LOSSY["camera 128"][1:],
}


class Packer:
    """Compress frames, over and over again, in a thread."""

    def __init__(self, pixels: UInt8, codec: tuple[bytes, int] | None) -> None:
        self._pixels, self._codec = np.ascontiguousarray(pixels[: len(pixels) // ROWS * ROWS]), codec
        self._chunk = ROWS * self._pixels[0].nbytes
        self._chunks = len(self._pixels) // ROWS
        self._ended = False
        self.frames = self.bytes = 0
        if codec is None:
            self._live = np.empty(self._chunks * bound(self._chunk), np.uint8)
            self._entries = np.zeros((self._chunks, 2), np.int64)
            self._encode(self._live, self._entries, 0, b"lz4", 1)

    def _encode(self, out: UInt8, entries: Any, first: int, name: bytes, level: int) -> int:
        source, size = self._pixels.ctypes.data, self._pixels.nbytes
        return int(native.encode_chunks(source, first * self._chunk, size, self._chunk, name, level, out, entries))

    def run(self) -> None:
        """Compress, sixteen chunks at a time, until `end`."""
        each = min(16, self._chunks)
        out, entries, at = np.empty(each * bound(self._chunk), np.uint8), np.zeros((each, 2), np.int64), 0
        workspace, stored = np.empty(native.workspace_bytes(self._chunk), np.uint8), np.zeros(2, np.int64)
        distances = distances_of(db.Column(self._pixels.shape[1:], "uint8"))
        while not self._ended:
            at = 0 if at + each > self._chunks else at
            if self._codec is None:
                given = self._live.ctypes.data, self._entries[at : at + each], self._chunk, b"pictures", 0, 1, distances
                size = native.recode_chunks(*given, workspace, stored, out, entries)
            else:
                size = self._encode(out, entries, at, *self._codec)
            self.frames, self.bytes, at = self.frames + each * ROWS, self.bytes + int(size), at + each

    def beside(self, seconds: float, work: Callable[[], int]) -> tuple[float, float]:
        """Run beside calls of `work`, which returns how much it did; return how many frames, and how much work, a second."""
        self.frames = self.bytes = 0
        self._ended = False
        thread = threading.Thread(target=self.run)
        thread.start()
        rate = alone(seconds, work)
        self._ended = True
        packed = self.frames / seconds
        thread.join()
        return packed, rate

    @property
    def share(self) -> float:
        """Bytes of each byte."""
        return float(self.bytes / (self.frames * self._pixels[0].nbytes))


def alone(seconds: float, work: Callable[[], int]) -> float:
    """Return how much work is done a second."""
    done, until, begun = 0, time.perf_counter() + seconds, time.perf_counter()
    while time.perf_counter() < until:
        done += work()
    return done / (time.perf_counter() - begun)


def adding(directory: Path, pixels: UInt8) -> Callable[[], int]:
    """Return what adds a hundred steps to a buffer."""
    columns = {"obs": db.Column(pixels.shape[1:], "uint8"), "action": db.Column((), "int64")}
    buffer = db.ReplayBuffer(directory / "store", 20_000, columns=columns)
    at = 0

    def add() -> int:
        nonlocal at
        for _ in range(100):
            at = (at + 1) % (len(pixels) - 1)
            buffer.add(pixels[at], 0, 1.0, pixels[at + 1], False, at == len(pixels) - 2, new_episode=at == 0)
        return 100

    return add


def learning(pixels: UInt8) -> Callable[[], int]:
    """Return what makes a gradient step of a small CNN."""
    torch.manual_seed(0)
    batch = torch.from_numpy(np.ascontiguousarray(pixels[:32])).reshape(32, -1, *pixels.shape[1:3]).float() / 255
    layers = (nn.Conv2d(batch.shape[1], 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU(), nn.Flatten(), nn.LazyLinear(6))
    network = nn.Sequential(*layers)
    network(batch)
    optimiser = torch.optim.Adam(network.parameters(), 1e-4)

    def learn() -> int:
        optimiser.zero_grad()
        network(batch).square().mean().backward()
        optimiser.step()
        return 1

    return learn


def main() -> None:
    """Run everything."""
    args = arguments((__doc__ or "").splitlines()[0])
    report = Report("packers", args.seed, quick=args.quick)
    rounds, seconds, n = (1, 0.5, 400) if args.quick else (5, 2.0, 4000)
    for kind, (make, missing) in KINDS.items():
        if why := missing():
            report.left_out(kind, why)
            continue
        pixels = make(n)
        packers = {name: Packer(pixels, codec) for name, codec in CODECS.items()}
        directory = Path(tempfile.mkdtemp(prefix="diskbuffer-bench-"))
        try:
            for what, unit, work in (("add", "steps", adding(directory, pixels)), ("a learner", "updates", learning(pixels))):
                found: dict[str, list[tuple[float, float, float]]] = {name: [] for name in packers}
                for _ in range(rounds):
                    by_itself = alone(seconds, work)
                    for name, packer in packers.items():
                        packed, rate = packer.beside(seconds, work)
                        found[name].append((packed, rate, rate / by_itself))
                for name, rows in found.items():
                    packed, rate, slower = np.median(rows, axis=0).tolist()
                    report.row(f"{kind}, {name}, beside {what}: frames packed", packed, "a second")
                    report.row(f"{kind}, {name}, beside {what}: {unit}", rate, "a second")
                    report.row(f"{kind}, {name}, beside {what}: speed of that, of alone", slower, "x")
                    if what == "add":
                        report.row(f"{kind}, {name}: of what is added, is packed in time", min(1.0, packed / rate), "x")
            for name, packer in packers.items():
                report.row(f"{kind}, {name}: bytes of each byte", packer.share, "x")
        finally:
            shutil.rmtree(directory, ignore_errors=True)
    report.write(args.json)


if __name__ == "__main__":
    main()
