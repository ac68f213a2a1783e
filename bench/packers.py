"""How small, and how fast, is what codecs make of frames; and which of them a packing thread can keep up with, on few cores.

    python -m bench.packers [--only codecs] --json FILE

*codecs*: every codec is tried on the same chunks in turn, everything warm, in CPU time of one thread. Sealing includes decoding
the live chunk, as it does in a buffer. Then frames are added and recompressed while nobody else does anything.

*beside*: a thread compresses frames, four to a chunk, with one codec after the other, without Python's lock, while the main
thread adds frames of the same kind to a buffer as fast as it can, or trains a small CNN. Of each: how many frames a second are
compressed there, bytes of each byte, how far packing falls behind what is added, and how much slower the main thread is than
alone. Our own encoder starts from chunks of LZ4, which it decodes first.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

import diskbuffer as db
from bench.frames import KINDS as OBSERVATIONS
from bench.frames import frames, noise
from bench.lossy import KINDS as LOSSY
from bench.measure import Part, Report, in_turn, parser, ratio, run
from diskbuffer.native import codec as native
from diskbuffer.store.format.codec import COPY, PICTURES, Method, bound
from diskbuffer.store.format.encoding import Recoder
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
SEALED = {  # what a live chunk of LZ4 becomes
    "LZ4 1": COPY,
    "LZ4HC 3": Method("lz4hc", 3),
    "LZ4HC 4": Method("lz4hc", 4),
    "LZ4HC 7": Method("lz4hc", 7),
    "own encoder": PICTURES,
    "zstd 1": Method("zstd", 1),
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


class Chunks:
    """Live chunks in memory, and what each codec makes of them."""

    def __init__(self, pixels: UInt8) -> None:
        column, self._chunk = db.Column(pixels.shape[1:], "uint8"), ROWS * pixels[0].nbytes
        self._entries, self._moved = np.zeros((2, len(pixels) // ROWS, 2), np.int64)
        self._out = np.zeros(len(self._moved) * bound(self._chunk), np.uint8)
        self._live, source = np.zeros_like(self._out), np.ascontiguousarray(pixels)
        native.encode_chunks(source.ctypes.data, 0, source.nbytes, self._chunk, b"lz4", 1, self._live, self._entries)
        self._recoder = Recoder(self._chunk, distances_of(column))
        self._target, self._scratch = np.empty(self._chunk, np.uint8), np.empty(self._chunk, np.uint8)

    def seal(self, method: Method, _: Any = None) -> float:
        """Seal all; return bytes of each byte."""
        self._recoder.stored[:] = 2, 0
        assert self._recoder.recode(self._live.ctypes.data, self._entries, self._out, self._moved, method) > 0
        return float(self._moved[:, 1].sum() / (len(self._moved) * self._chunk))

    def read(self, _: Any) -> None:
        """Decode what was sealed."""
        target, scratch = self._target.ctypes.data, self._scratch.ctypes.data
        for offset, size in (self._moved + [self._out.ctypes.data, 0]).tolist():
            assert native.decode(offset, size, self._chunk, self._chunk, target, scratch) == 0


def _kinds(report: Report, n: int) -> Iterator[tuple[str, UInt8]]:
    """Yield frames of each kind that can be made here."""
    for kind, (make, missing) in KINDS.items():
        if why := missing():
            report.left_out(kind, why)
        else:
            yield kind, make(n)


def codecs(report: Report, directory: Path) -> None:
    """Try every codec on every kind of frames; then extend by frames, and seal them."""
    rounds, chunks, n = (3, 10, 512) if report.quick else (7, 40, 2048)
    for kind, found in _kinds(report, 4000):
        whole = found[: 4000 // ROWS * ROWS]
        each = whole.reshape(-1, ROWS, *whole.shape[1:])
        pixels = each[np.linspace(0, len(each) - 1, chunks).astype(np.int64)].reshape(-1, *whole.shape[1:])
        made, share = {codec: Chunks(pixels) for codec in SEALED}, dict[str, float]()
        seals = {codec: partial(made[codec].seal, method) for codec, method in SEALED.items()}
        sealing = in_turn(rounds, seals, lambda: None, clock=time.thread_time)
        reading = in_turn(rounds, {codec: each.read for codec, each in made.items()}, lambda: None, clock=time.thread_time)
        for codec, seal in seals.items():
            share[codec] = seal()
            for what, times in (("sealing", sealing), ("reading", reading)):
                report.row(f"{kind}, {codec}: {what} a frame", 1e6 * float(np.median(times[codec])) / len(pixels), "us")
            report.row(f"{kind}, {codec}: bytes of each byte", share[codec], "")
        racing, value = kind.startswith("CarRacing"), ratio(sealing["LZ4HC 7"], sealing["own encoder"])
        report.row(f"{kind}: own encoder, times as fast as LZ4HC 7", value, "x", at_least=3.0 if racing else None)
        larger = share["own encoder"] / share["LZ4HC 7"]
        report.row(f"{kind}: own encoder, size against LZ4HC 7", larger, "x", at_most=1.1 if racing else None)
    for kind, pixels in (("noise, 96x96x3", noise(n + 1, report.seed)), ("Atari, 84x84", frames(n + 1))):
        columns, taken = {"obs": db.Column(pixels.shape[1:], "uint8"), "action": db.Column((), "int64")}, []
        for k in range(rounds):
            with db.ReplayBuffer(directory / f"{kind} {k}", columns=columns, segment_rows=256) as buffer:
                begin = time.perf_counter()
                buffer.extend(obs=pixels, action=np.zeros(n, np.int64), reward=np.zeros(n))
                buffer.flush(recompress=True)
                taken.append((time.perf_counter() - begin) / n)
        at_least = 10_000 if kind.startswith("noise") else None
        report.row(f"{kind}: extend and recompress, steps a second", 1 / float(np.median(taken)), "", at_least=at_least)


def beside(report: Report, directory: Path) -> None:
    """Pack beside what adds, and what learns."""
    rounds, seconds, n = (1, 0.5, 400) if report.quick else (5, 2.0, 4000)
    for kind, pixels in _kinds(report, n):
        packers = {name: Packer(pixels, codec) for name, codec in CODECS.items()}
        jobs = {"add": ("steps", adding(directory / kind, pixels)), "a learner": ("updates", learning(pixels))}
        for what, (unit, work) in jobs.items():
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
            report.row(f"{kind}, {name}: bytes of each byte, beside others", packer.share, "x")


PARTS: dict[str, Part] = {part.__name__: part for part in (codecs, beside)}

if __name__ == "__main__":
    run("packers", PARTS, parser(__doc__))
