"""Hostile chunks for the compiled decoder, their checksums right: it must not read nor write a byte out of bounds.

Chunk, target and scratch each lie against a page that nobody may touch, so that one byte too far is a SIGSEGV. What is
returned as good must have been decoded: a batch's memory is used before, and what was in it may not come out again.
"""

from __future__ import annotations

import ctypes
import mmap
import random
from collections.abc import Callable
from typing import Any

import google_crc32c
import numcodecs.blosc
import numpy as np

from diskbuffer.native.codec import decode
from diskbuffer.store.format import codec

_PAGE = mmap.PAGESIZE
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
SIZES = (1, 7, 16, 31, 128, 1000, 1024, 4488, 28_224)  # of chunks, uncompressed
LARGEST = 64 * 1024
HOSTILE = (0, 1, 2, 15, 16, 19, 20, 21, 255, 2**16, 2**24, 2**31 - 1, 2**31, 2**31 + 1, 2**32 - 20, 2**32 - 1)
UNWRITTEN = -1  # what `decode` returned as good was, in part, what lay there before


class Guarded:
    """Memory between two pages that nobody may touch."""

    def __init__(self, size: int = LARGEST) -> None:
        self._size = -(-size // _PAGE) * _PAGE
        self._map = mmap.mmap(-1, self._size + 2 * _PAGE)
        self.begin = ctypes.addressof(ctypes.c_char.from_buffer(self._map)) + _PAGE
        self.end = self.begin + self._size
        for guard in (self.begin - _PAGE, self.end):
            if _libc.mprotect(guard, _PAGE, 0):
                raise OSError(ctypes.get_errno(), "mprotect")

    def place(self, size: int, at_end: bool) -> int:
        """Return where `size` bytes lie against one of the guards."""
        return self.end - size if at_end else self.begin


class Decoder:
    """Decode chunks between guards."""

    def __init__(self) -> None:
        self._chunk, self._target, self._scratch = Guarded(2 * LARGEST), Guarded(), Guarded()

    def decode(self, chunk: bytes, chunk_bytes: int, wanted: int, at_end: bool = True) -> int:
        """Return what `diskbuffer.native.codec.decode` returns, or `UNWRITTEN`."""
        source = self._chunk.place(len(chunk), at_end)
        target = self._target.place(wanted, at_end)
        scratch = self._scratch.place(chunk_bytes, at_end)
        ctypes.memmove(source, chunk, len(chunk))
        found = []
        for fill in (0x55, 0xAA):
            ctypes.memset(target, fill, wanted)
            ctypes.memset(scratch, fill, chunk_bytes)
            wrong = decode(source, len(chunk), chunk_bytes, wanted, target, scratch)
            if wrong:
                return wrong
            found.append(ctypes.string_at(target, wanted))
        return 0 if found[0] == found[1] else UNWRITTEN


# Chunks


def chunk_of(seed: int, number: int) -> tuple[bytes, int, int, bool]:
    """Return hostile chunk `number` of a seed: its bytes, those uncompressed that it claims, those wanted, where it lies."""
    rng = random.Random(seed * 2**40 + number)
    chunk_bytes = rng.choice(SIZES)
    made = rng.choice((_good, _good, _foreign, _crafted, _crafted, _noise))(rng, chunk_bytes)
    body = mutated(made, chunk_bytes, rng)
    wanted = rng.choice((chunk_bytes, rng.randint(1, chunk_bytes), max(1, chunk_bytes // 4)))
    return vouched(body), chunk_bytes, wanted, rng.random() < 0.7


def mutated(made: bytes, chunk_bytes: int, rng: random.Random) -> bytes:
    """Change a chunk without its checksum, so that most of what comes still gets past the header."""
    body = bytearray(made)
    for _ in range(rng.choice((0, 1, 1, 2, 3, 8))):
        rng.choice((_flip, _flip, _word, _header, _splice, _cut, _stream_byte, _stream_byte))(rng, body)
    if len(body) >= 16:
        if rng.random() < 0.95:
            body[12:16] = len(body).to_bytes(4, "little")
        if rng.random() < 0.95:
            body[4:8] = chunk_bytes.to_bytes(4, "little")
        if rng.random() < 0.5:  # one block of LZ4, as ours are
            body[2], body[3] = 0x20 | rng.choice((0, 0, 0, 0x10, 0x2)), 1
            body[8:12] = chunk_bytes.to_bytes(4, "little")
        if len(body) >= 24 and rng.random() < 0.5:
            body[16:20] = (20).to_bytes(4, "little")
            body[20:24] = (len(body) - 24).to_bytes(4, "little")
    return bytes(body)


def vouched(body: bytes) -> bytes:
    """Put the checksum behind a chunk, which tells nothing of who wrote it."""
    checksum: int = google_crc32c.value(body)
    return body + checksum.to_bytes(4, "little")


_made: dict[tuple[int, bytes, int, int, int], bytes] = {}


def _data(rng: random.Random, chunk_bytes: int) -> bytes:
    """Return what compresses well, or not at all."""
    kind = rng.randrange(4)
    if kind == 0:
        return rng.randbytes(chunk_bytes)
    if kind == 1:
        return bytes([rng.randrange(256)]) * chunk_bytes
    unit = rng.randbytes(rng.randint(1, 64))
    data = bytearray((unit * (chunk_bytes // len(unit) + 1))[:chunk_bytes])
    for _ in range(kind * 3):
        data[rng.randrange(chunk_bytes)] = rng.randrange(256)
    return bytes(data)


def _good(rng: random.Random, chunk_bytes: int) -> bytes:
    """Compress as we do."""
    return _compressed(rng.randrange(64), b"lz4" if rng.random() < 0.5 else b"lz4hc", 0, 0, chunk_bytes)


def _foreign(rng: random.Random, chunk_bytes: int) -> bytes:
    """Compress as we never do: other codecs, shuffled, in many blocks."""
    names = [name.encode() for name in numcodecs.blosc.list_compressors()]
    return _compressed(rng.randrange(16), rng.choice(names), rng.randrange(3), rng.choice((0, 0, 64, 512)), chunk_bytes)


def _compressed(seed: int, cname: bytes, shuffle: int, blocksize: int, chunk_bytes: int) -> bytes:
    key = (seed, cname, shuffle, blocksize, chunk_bytes)
    if key not in _made:
        data = np.frombuffer(_data(random.Random(seed), chunk_bytes), np.uint8)
        typed = data.view(np.uint32) if seed % 2 and chunk_bytes % 4 == 0 else data
        _made[key] = bytes(numcodecs.blosc.compress(typed, cname, 1 + seed % 9, shuffle, blocksize))
    return _made[key]


def _crafted(rng: random.Random, chunk_bytes: int) -> bytes:
    """Write sequences of LZ4, with offsets and lengths that lead anywhere."""
    stream, there = bytearray(), 0
    while there < chunk_bytes and len(stream) < 2 * chunk_bytes + 40:
        literals = rng.choice((0, 0, 1, 4, 14, 15, 16, 40, rng.randint(0, chunk_bytes)))
        length = rng.choice((4, 4, 5, 18, 19, 20, 300, rng.randint(4, chunk_bytes + 40)))
        if rng.random() < 0.9:
            literals = min(literals, chunk_bytes - there)
            length = max(4, min(length, chunk_bytes - there - literals))
        stream.append(min(literals, 15) << 4 | min(length - 4, 15))
        stream += _rest(literals) + rng.randbytes(literals if rng.random() < 0.97 else literals // 2)
        offset = rng.choice((1, 2, 8, max(1, there), there + literals, there + literals + 1, 0, 65_535, rng.randint(0, 65_535)))
        stream += min(offset, 65_535).to_bytes(2, "little") + _rest(length - 4)
        there += literals + length
    if rng.random() < 0.5:  # as a stream must end
        stream += bytes([rng.randrange(16) << 4]) + rng.randbytes(rng.randrange(16))
    head = bytes([2, 1, 0x20, 1]) + chunk_bytes.to_bytes(4, "little") * 2 + bytes(4)
    return head + (20).to_bytes(4, "little") + len(stream).to_bytes(4, "little") + bytes(stream)


def _rest(length: int) -> bytes:
    """Write what of a length is beyond 15."""
    if length < 15:
        return b""
    return b"\xff" * ((length - 15) // 255) + bytes([(length - 15) % 255])


def _noise(rng: random.Random, chunk_bytes: int) -> bytes:
    return bytes([2, 1, rng.choice((0x20, 0x21, 0, 0x60, 0x80, rng.randrange(256))), rng.choice((1, 4, 8))]) + rng.randbytes(
        rng.randint(0, min(chunk_bytes, 2000) + 30)
    )


# Mutations


def _flip(rng: random.Random, body: bytearray) -> None:
    if body:
        body[rng.randrange(len(body))] ^= 1 << rng.randrange(8)


def _word(rng: random.Random, body: bytearray) -> None:
    """Put a number where one of the first ones stands, or anywhere."""
    at = rng.choice((4, 8, 12, 16, 20, 24, rng.randrange(max(len(body), 1))))
    value = rng.choice((*HOSTILE, len(body), len(body) - 4, len(body) + 1, rng.randrange(2**32)))
    body[at : at + 4] = (value % 2**32).to_bytes(4, "little")


def _header(rng: random.Random, body: bytearray) -> None:
    if len(body) >= 4:
        body[rng.randrange(4)] = rng.choice((0, 1, 2, 3, 4, 5, 0x20, 0x21, 0x22, 0x30, 255, rng.randrange(256)))


def _splice(rng: random.Random, body: bytearray) -> None:
    """Repeat a part elsewhere, longer or shorter than what was there."""
    if body:
        a, b, c = (rng.randrange(len(body)) for _ in range(3))
        body[a : a + rng.randrange(40)] = body[b : b + rng.randrange(40)] if c % 2 else rng.randbytes(c % 40)


def _cut(rng: random.Random, body: bytearray) -> None:
    del body[rng.randint(0, len(body)) :]


def _stream_byte(rng: random.Random, body: bytearray) -> None:
    """Put a token or an offset into the stream."""
    if len(body) > 24:
        body[rng.randrange(24, min(len(body), 24 + rng.choice((4, 40, 4000))))] = rng.choice(
            (0, 0xFF, 0xF0, 0x0F, rng.randrange(256))
        )


def run(decoder: Decoder, seed: int, first: int, count: int, begun: Callable[[int], Any]) -> dict[str, int]:
    """Decode hostile chunks; return how often what came of it, and the first of which part was not written.

    ``begun(number)`` is told of each before it is decoded, for who looks after a crash.
    """
    results: dict[str, int] = {}
    for number in range(first, first + count):
        begun(number)
        result = decoder.decode(*chunk_of(seed, number))
        name = {0: "decoded", UNWRITTEN: "unwritten"}.get(result, codec.REASONS.get(result, "an unknown reason"))
        results[name] = results.get(name, 0) + 1
        if result == UNWRITTEN:
            results.setdefault("first unwritten", number)
    return results
