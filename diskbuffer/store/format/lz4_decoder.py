"""A decoder of LZ4 blocks for pictures, whose matches are long and lie one pixel, one line or one frame back.

liblz4's decoder is made for text: it copies 18 bytes of a match, and then goes on by 32. Each turn of a loop that the processor
did not expect costs as much as copying hundreds of bytes. Here the first 128 bytes of a match are copied without asking how long
it is, where there is room for so many, and areas of one colour are written, not copied. Of CarRacing's frames that takes 0.6 of
liblz4's time, of Atari's as long (`python -m bench.sealing`). Where matches are short, liblz4 is faster.

The format: github.com/lz4/lz4, doc/lz4_Block_format.md. Nothing is believed: a block may be damaged, or made to do harm.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from diskbuffer.native.compiling import compiled
from diskbuffer.native.libraries import memcpy
from diskbuffer.native.memory import copy_16, copy_64, fill_64, load_any_u64, load_u8, opaque, store_any_u64

_ESCAPE, _MORE = 15, 255  # what four bits of a length, and a byte of it, say where more bytes of it follow
_SHORTEST = 4  # bytes of a match
_AT_ONCE = 128  # bytes of a match that are copied whatever its length
_READ, _WRITTEN = 18, 128  # bytes that must be left of the block, and of the room for what it says, to copy without care
_MALFORMED = -1

# By distance: its smallest multiple that is no less than 64.
_WIDE = np.array([0, *[-(-64 // d) * d for d in range(1, 64)]], np.int64)
# By distance: the bytes of a word that are its own, by what to multiply them to repeat them, how far these repeats go on.
_OWN = np.array([0, *[2 ** (8 * d) - 1 for d in range(1, 8)]], np.uint64)
_REPEAT = np.array([0, *[sum(2**k for k in range(0, 64, 8 * d)) for d in range(1, 8)]], np.uint64)
_STEP = np.array([8, *[8 // d * d for d in range(1, 8)]], np.int64)


@compiled
def _byte(address: int) -> Any:
    return np.int64(load_u8(address))  # signed, as addresses are


@compiled
def _rest_of_length(at: int, end: int) -> tuple[Any, int]:
    """Return what the bytes at an address add to a length, and where they end; negative if that is not before `end`."""
    total, more = np.int64(0), np.int64(_MORE)
    while more == _MORE:
        if at >= end:
            return np.int64(_MALFORMED), at
        more, at = _byte(at), at + 1
        total += more
    return total, at


@compiled
def decode_block(source: int, size: int, target: int, wanted: int) -> int:
    """Decode the first `wanted` bytes of a block of `size` bytes to an address; return how many there are, negative if malformed.

    No byte is read outside of the block, nor written outside of what is wanted.
    """
    at, end, out, until = source, source + size, target, target + wanted
    near_end, near_until = end - _READ, until - _WRITTEN
    while at < near_end and out < near_until:
        begin, token = at, _byte(at)
        literals, length, at = token >> 4, token & _ESCAPE, at + 1
        if literals == _ESCAPE:
            more, at = _rest_of_length(at, near_end)
            literals += more
            if more < 0 or literals >= near_end - at or literals >= near_until - out:
                at = begin
                break
            k = 0
            while k < literals:
                copy_16(out + k, at + k)
                k = opaque(k + 16)
        else:
            copy_16(out, at)
        out, at = out + literals, at + literals
        distance, more = _byte(at) | _byte(at + 1) << 8, _byte(at + 2)
        escaped: Any = np.int64(length == _ESCAPE)  # a number, as the processor cannot guess it; a branch would cost more
        more = opaque(escaped * more)
        length, at = length + _SHORTEST + more, at + 2 + escaped
        if more == _MORE:
            more, at = _rest_of_length(at, end)
            if more < 0:
                return _MALFORMED
            length += more
        if distance == 0 or distance > out - target:
            return _MALFORMED
        if length > near_until - out:
            length = min(length, until - out)
            _repeat(out, distance, length)
        elif distance >= 64:
            _copy(out, out - distance, length)
        elif distance == 1:
            _fill(out, np.uint64(load_u8(out - 1)) * _REPEAT[1], length)
        else:
            _copy_near(out, distance, length)
        out += length
    if out == until:
        return wanted
    return _decode_with_care(at, end, out, target, until)


@compiled
def _copy(out: int, match: int, length: int) -> None:
    """Copy from at least 64 bytes before; more is written than `length`: less than 128 bytes."""
    copy_64(out, match)
    copy_64(out + 64, match + 64)
    k = _AT_ONCE
    while k < length:
        copy_64(out + k, match + k)
        k = opaque(k + 64)


@compiled
def _fill(out: int, word: int, length: int) -> None:
    """Write a word again and again; more is written than `length`: less than 128 bytes."""
    fill_64(out, word)
    fill_64(out + 64, word)
    k = _AT_ONCE
    while k < length:
        fill_64(out + k, word)
        k = opaque(k + 64)


@compiled
def _copy_near(out: int, distance: int, length: int) -> None:
    """Copy from less than 64 bytes before; more is written than `length`: less than 128 bytes."""
    k, wide = 0, _WIDE[distance]
    some = min(wide, length)
    if distance >= 8:
        while k < some:
            store_any_u64(out + k, load_any_u64(out + k - distance))
            k = opaque(k + 8)
    else:
        word, step = (load_any_u64(out - distance) & _OWN[distance]) * _REPEAT[distance], _STEP[distance]
        while k < some:
            store_any_u64(out + k, word)
            k = opaque(k + step)
    if length > wide:
        _copy(out + wide, out, length - wide)


@compiled
def _repeat(out: int, distance: int, length: int) -> None:
    """Copy from any distance, and not a byte more."""
    match = out - distance
    while length > distance:  # what was copied is there to be copied, too
        memcpy(out, match, distance)
        out, length, distance = out + distance, length - distance, 2 * distance
    memcpy(out, match, length)


@compiled
def _decode_with_care(at: int, end: int, out: int, target: int, until: int) -> int:
    """Decode the rest of a block, near an end of it or of the room; see `decode_block`."""
    while at < end:
        token, at = _byte(at), at + 1
        literals, length = token >> 4, token & _ESCAPE
        if literals == _ESCAPE:
            more, at = _rest_of_length(at, end)
            if more < 0:
                return _MALFORMED
            literals += more
        if literals > end - at:
            return _MALFORMED
        literals = min(literals, until - out)
        memcpy(out, at, literals)
        out, at = out + literals, at + literals
        if at == end or out == until:
            break
        if end - at < 2:
            return _MALFORMED
        distance, at = _byte(at) | _byte(at + 1) << 8, at + 2
        if length == _ESCAPE:
            more, at = _rest_of_length(at, end)
            if more < 0:
                return _MALFORMED
            length += more
        if distance == 0 or distance > out - target:
            return _MALFORMED
        length = min(length + _SHORTEST, until - out)
        _repeat(out, distance, length)
        out += length
        if out == until:
            break
    return out - target
