"""How small, and how fast, is what codecs make of frames, without a loss (*codecs*) and with one (*lossy*, `codec="webp:90"`).

    python -m bench.packers [--only codecs] --json FILE

*codecs*: every codec is tried on the same chunks in turn, everything warm, in CPU time of one thread. Sealing includes decoding
the live chunk, as it does in a buffer. Then frames are added and recompressed while nobody else does anything. *lossy*: buffers
of pictures, with codecs that lose something and without: bytes, adding, reading, errors.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import diskbuffer as db
from bench.frames import CAMERAS, KINDS, Kind
from bench.measure import Part, Report, in_turn, parser, ratio, run
from diskbuffer.native import codec as native
from diskbuffer.store.format.codec import COPY, PICTURES, Method, bound
from diskbuffer.store.format.encoding import Recoder
from diskbuffer.store.writing.compression import distances_of

UInt8 = npt.NDArray[np.uint8]
ROWS = 4  # of a chunk
SEALED = {  # what a live chunk of LZ4 becomes
    "LZ4 1": COPY,
    "LZ4HC 3": Method("lz4hc", 3),
    "LZ4HC 4": Method("lz4hc", 4),
    "LZ4HC 7": Method("lz4hc", 7),
    "own encoder": PICTURES,
    "zstd 1": Method("zstd", 1),
}
PICTURES_OF = (("Atari, 84x84", KINDS["ale"]), ("CarRacing, 96x96x3", KINDS["racing"]), ("camera, 128x128x3", CAMERAS[128]))
LOSSY = {"LZ4": None, "webp:75": "webp:75", "webp:90": "webp:90"}
LOSSY_OF = (("MuJoCo, 84x84", KINDS["mujoco"]), *((kind.title, kind) for kind in CAMERAS.values()))
BATCH = 256


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


def _made(report: Report, kinds: Iterable[tuple[str, Kind]], n: int) -> Iterator[tuple[str, UInt8]]:
    """Yield frames of each kind that can be made here."""
    for title, kind in kinds:
        if why := kind.missing():
            report.left_out(title, why)
        else:
            yield title, kind.make(n, report.seed)


def codecs(report: Report, directory: Path) -> None:
    """Try every codec on every kind of frames; then extend by frames, and seal them."""
    rounds, chunks, n = (3, 10, 512) if report.quick else (7, 40, 2048)
    for kind, found in _made(report, PICTURES_OF, 4000):
        each = found.reshape(-1, ROWS, *found.shape[1:])
        pixels = each[np.linspace(0, len(each) - 1, chunks).astype(np.int64)].reshape(-1, *found.shape[1:])
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
    for kind, pixels in _made(report, (("noise, 96x96x3", KINDS["noise"]), PICTURES_OF[0]), n + 1):
        columns, taken = {"obs": db.Column(pixels.shape[1:], "uint8"), "action": db.Column((), "int64")}, []
        for k in range(rounds):
            with db.ReplayBuffer(directory / f"{kind} {k}", columns=columns, segment_rows=256) as buffer:
                begin = time.perf_counter()
                buffer.extend(obs=pixels, action=np.zeros(n, np.int64), reward=np.zeros(n))
                buffer.flush(recompress=True)
                taken.append((time.perf_counter() - begin) / n)
        at_least = 10_000 if kind.startswith("noise") else None
        report.row(f"{kind}: extend and recompress, steps a second", 1 / float(np.median(taken)), "", at_least=at_least)


def _added(buffer: db.ReplayBuffer, pixels: UInt8) -> float:
    """Add frames, one step after the other, and seal them; return seconds a step until the last was packed."""
    begin = time.perf_counter()
    for obs, next_obs in itertools.pairwise(pixels):
        buffer.add(obs, 0, 0.0, next_obs, False, False)
    buffer.flush()
    seconds = (time.perf_counter() - begin) / (len(pixels) - 1)
    buffer.flush(recompress=True)
    return seconds


def _psnr(buffer: db.ReplayBuffer, pixels: UInt8) -> float:
    """Return the peak signal-to-noise ratio of what is stored, in dB."""
    steps = np.arange(0, len(pixels) - 256, max(1, len(pixels) // 100))  # those before the last segment, which is not packed
    difference = buffer.at(steps)["obs"].numpy().astype(np.float64) - pixels[steps]
    return 10 * float(np.log10(255**2 / np.mean(difference**2)))


def lossy(report: Report, directory: Path) -> None:
    """Store pictures with a loss and without."""
    n, rounds = (600, 7) if report.quick else (1_500, 25)
    for title, pixels in _made(report, LOSSY_OF, n):
        with ExitStack() as stack:
            buffers = {}
            for codec, given in LOSSY.items():
                columns = {"obs": db.Column(pixels.shape[1:], "uint8", codec=given), "action": db.Column((), "int64")}
                make = partial(db.ReplayBuffer, columns=columns, segment_rows=256)
                with make(directory / f"{title}, {codec}, first") as first:
                    _added(first, pixels[: n // 8])  # warm
                buffer = buffers[codec] = stack.enter_context(make(directory / f"{title}, {codec}"))
                report.row(f"{title}, {codec}: add and pack, a step", 1e6 * _added(buffer, pixels), "us")
                compressed = buffer.stats()["compression"]["obs"]["ratio"]
                report.row(f"{title}, {codec}: bytes on disk of each", compressed, "")
                report.row(f"{title}, {codec}: a frame on disk", compressed * pixels[0].nbytes, "bytes")
                if given is not None:
                    report.row(f"{title}, {codec}: PSNR", _psnr(buffer, pixels), "dB")
            samples = {codec: buffer.sample for codec, buffer in buffers.items()}
            in_turn(3, samples, lambda: BATCH)
            times = in_turn(rounds, samples, lambda: BATCH)
        for codec, seconds in times.items():
            report.times(f"{title}, {codec}: sample({BATCH})", seconds)
            if codec != "LZ4":
                report.row(f"{title}, {codec}: sample({BATCH}), times as long as LZ4", ratio(seconds, times["LZ4"]), "x")


PARTS: dict[str, Part] = {part.__name__: part for part in (codecs, lossy)}

if __name__ == "__main__":
    run("packers", PARTS, parser(__doc__))
