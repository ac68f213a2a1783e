"""An encoder of LZ4 blocks for consecutive pictures, which knows where such resemble each other.

LZ4HC looks for what comes again by walking chains of all places that begin with the same four bytes. In pictures of few colours
such chains are long, and nearly all of their places are worthless. What comes again in a frame lies at few distances: one pixel
(areas of one colour), one line of pixels, one frame, and whatever distances the last matches had. These are tried first; chains,
of six bytes and few steps, find the rest. The parse is LZ4HC's idea: a match is written only after a look at its end for a longer
one that begins inside of it. Of CarRacing's frames that takes a third of the time of LZ4HC level 7, for 8 % larger files; of
Atari's a half, for 2 % (`python -m bench.sealing`).

What it writes is the format of LZ4 blocks (github.com/lz4/lz4, doc/lz4_Block_format.md), which any LZ4 decoder reads.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from diskbuffer.native.compiling import compiled
from diskbuffer.native.libraries import memcpy
from diskbuffer.native.memory import different_32, leading_zeros, load_any_u32, load_any_u64, load_u8, store_u8, trailing_zeros

Int64 = npt.NDArray[np.int64]

_HASH_BITS = 14
_WINDOW = 65535  # the largest distance that LZ4 can say
_SHORTEST = 4  # bytes of a match
_LAST_LITERALS, _LAST_MATCH = 5, 12  # of a block: bytes at its end that are no match, and in which none may begin
_FIXED, _RECENT = 3, 2  # distances that are always tried: pixel, line and frame; those of the last matches
_DEPTH = 3  # places of a chain that are tried
_INSIDE = 4  # places at the begin and the end of a match that others can find
_NOWHERE, _NO_DISTANCE = -(2**20), 2**40
_ESCAPE = 15  # what four bits of a length say where bytes follow
_HASHED, _PRIME = np.uint64(16), np.uint64(0x9E3779B185EBCA87)  # six bytes of eight
_SHIFT = np.uint64(64 - _HASH_BITS)
_HURRY = 7  # where nothing comes again, every 128 bytes the search goes by steps that are one byte longer


def tables() -> tuple[npt.NDArray[np.int32], npt.NDArray[np.uint16]]:
    """Return what `encode` works with: one of these for each thread."""
    return np.empty(1 << _HASH_BITS, np.int32), np.empty(_WINDOW + 1, np.uint16)


def distances(pixel: int, line: int, frame: int) -> Int64:
    """Return where to look first, in bytes: (`_FIXED` + `_RECENT`,) of which the latter are room."""
    found = [distance if 0 < distance <= _WINDOW else _NO_DISTANCE for distance in (frame, pixel, line)]
    return np.array([*found, *[_NO_DISTANCE] * _RECENT], np.int64)


@compiled
def _same_after(a: int, b: int, end: int) -> int:
    """Count the bytes that are the same from `a` and from `b`, which lies before it, on, up to `end`."""
    begin = a
    while a + 32 <= end:
        where = different_32(a, b)
        if where != np.uint64(0):
            return a - begin + trailing_zeros(where)
        a, b = a + 32, b + 32
    while a + 8 <= end:
        different = load_any_u64(a) ^ load_any_u64(b)
        if different != np.uint64(0):
            return a - begin + (trailing_zeros(different) >> 3)
        a, b = a + 8, b + 8
    while a < end and load_u8(a) == load_u8(b):
        a, b = a + 1, b + 1
    return a - begin


@compiled
def _same_before(a: int, b: int, begin: int) -> int:
    """Count the bytes that are the same before `a` and before `b`, back to `begin`."""
    end = a
    while a - 32 >= begin:
        where = different_32(a - 32, b - 32)
        if where != np.uint64(0):
            return end - a + leading_zeros(where) - 32
        a, b = a - 32, b - 32
    while a - 8 >= begin:
        different = load_any_u64(a - 8) ^ load_any_u64(b - 8)
        if different != np.uint64(0):
            return end - a + (leading_zeros(different) >> 3)
        a, b = a - 8, b - 8
    while a > begin and load_u8(a - 1) == load_u8(b - 1):
        a, b = a - 1, b - 1
    return end - a


@compiled
def _hash(address: int) -> int:
    return int(((load_any_u64(address) << _HASHED) * _PRIME) >> _SHIFT)


@compiled
def _insert(source: int, at: int, head: Any, chain: Any) -> None:
    h = _hash(source + at)
    chain[at & _WINDOW] = min(at - np.int64(head[h]), _WINDOW)
    head[h] = at


@compiled
def _find(source: int, at: int, low: int, end: int, least: int, head: Any, chain: Any, near: Any) -> tuple[int, int, int]:
    """Return (begin, length, distance) of the longest match that `at` lies in and that begins at `low` or later.

    It ends before the address `end`, and is longer than `least`; distance 0 if there is none.
    """
    address, first = source + at, source + low
    begin, length, distance = at, least, 0
    four = load_any_u32(address)
    place = np.int64(head[_hash(address)])
    for k in range(_FIXED + _RECENT + _DEPTH):
        if k < _FIXED + _RECENT:
            d = near[k]
        else:
            d = at - place
            if d > _WINDOW:
                break
            place -= np.int64(chain[place & _WINDOW])
        if d > low or load_any_u32(address - d) != four or load_u8(first + length) != load_u8(first + length - d):
            continue
        until = at + 4 + _same_after(address + 4, address + 4 - d, end)
        if until - low > length:
            since = at - _same_before(address, address - d, first)
            if until - since > length:
                begin, length, distance = since, until - since, d
    return begin, length, distance


@compiled
def _write_length(target: int, rest: int) -> int:
    while rest >= 255:
        store_u8(target, 255)
        target, rest = target + 1, rest - 255
    store_u8(target, rest)
    return target + 1


@compiled
def _write_literals(source: int, count: int, target: int) -> int:
    """Write a token without its match, and literals; return where to go on."""
    store_u8(target, min(count, _ESCAPE) << 4)
    target += 1
    if count >= _ESCAPE:
        target = _write_length(target, count - _ESCAPE)
    memcpy(target, source, count)
    return target + count


@compiled
def _write_sequence(source: int, literals: int, length: int, distance: int, target: int, limit: int) -> int:
    """Write literals and the match after them; return where to go on, or 0 where there is no room."""
    if target + literals + (literals + length) // 255 + 8 > limit:
        return 0
    token, target = target, _write_literals(source, literals, target)
    store_u8(target, distance & 255)
    store_u8(target + 1, distance >> 8)
    target, rest = target + 2, length - _SHORTEST
    store_u8(token, load_u8(token) | min(rest, _ESCAPE))
    return _write_length(target, rest - _ESCAPE) if rest >= _ESCAPE else target


@compiled
def _remember(near: Any, distance: int) -> None:
    for k in range(_FIXED + _RECENT):
        if near[k] == distance:
            return
    for k in range(_FIXED + _RECENT - 1, _FIXED, -1):
        near[k] = near[k - 1]
    near[_FIXED] = distance


@compiled
def encode(source: int, size: int, target: int, room: int, head: Any, chain: Any, near: Any) -> int:
    """Compress `size` bytes to at most `room`; return how many, or 0 where they do not fit.

    `head` and `chain` are `tables`, `near` is `distances`.
    """
    start, limit, end, last = target, target + room, source + size - _LAST_LITERALS, size - _LAST_MATCH
    head[:] = _NOWHERE
    near[_FIXED:] = _NO_DISTANCE
    at, written, inserted = 1, 0, 0
    while at <= last:
        begin, length, distance = _find(source, at, at, end, _SHORTEST - 1, head, chain, near)
        if distance == 0:
            if inserted <= at:
                _insert(source, at, head, chain)
                inserted = at + 1
            at += 1 + ((at - written) >> _HURRY)
            continue
        back = _same_before(source + at, source + at - distance, source + max(written, distance))
        at, length = at - back, length + back
        while True:
            stop = min(at + length - 2, last)
            first = max(inserted, at)
            for k in range(first, min(stop, first + _INSIDE)):
                _insert(source, k, head, chain)
            for k in range(max(first + _INSIDE, stop - _INSIDE), stop):
                _insert(source, k, head, chain)
            inserted = max(inserted, stop)
            if at + length - 2 > last:
                break
            begin, longer, other = _find(source, at + length - 2, at, end, length, head, chain, near)
            if other == 0:
                break
            if begin - at >= _SHORTEST:
                length = min(length, begin - at)
                target = _write_sequence(source + written, at - written, length, distance, target, limit)
                if target == 0:
                    return 0
                _remember(near, distance)
                written = at + length
            at, length, distance = begin, longer, other
        target = _write_sequence(source + written, at - written, length, distance, target, limit)
        if target == 0:
            return 0
        _remember(near, distance)
        at = written = at + length
        for k in range(inserted, min(at, last)):
            _insert(source, k, head, chain)
        inserted = max(inserted, min(at, last))
    rest = size - written
    if target + rest + rest // 255 + 2 > limit:
        return 0
    return _write_literals(source + written, rest, target) - start
