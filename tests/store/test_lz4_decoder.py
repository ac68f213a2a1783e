"""Our decoder of LZ4: what the format says that a block means, whole or in part; and no byte elsewhere is read or written."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from diskbuffer.native.codec import decode_lz4
from tests.amounts import examples
from tests.store.test_lz4_pictures import encode

Bytes = npt.NDArray[np.uint8]
ROOM, PAGE = 2**20, mmap.PAGESIZE
GUARD, UNTOUCHED = 512, 0xEE


def by_the_format(block: bytes, wanted: int) -> bytes | None:
    """Decode a block as the format is described; None if it is malformed before `wanted` bytes are there."""
    out, at = bytearray(), 0

    def length(bits: int) -> int:
        nonlocal at
        total = more = bits
        while more == 255 or (total == more == 15):
            more, at = block[at], at + 1
            total += more
        return total

    try:
        while at < len(block) and len(out) < wanted:
            token, at = block[at], at + 1
            literals = length(token >> 4)
            if literals > len(block) - at:
                return None
            out, at = out + block[at : at + literals], at + literals
            if at == len(block) or len(out) >= wanted:
                break
            distance, at = block[at] | block[at + 1] << 8, at + 2
            matched = length(token & 15) + 4
            if not 0 < distance <= len(out):
                return None
            for _ in range(min(matched, wanted - len(out))):
                out.append(out[-distance])
    except IndexError:
        return None
    return bytes(out[:wanted])


@pytest.fixture(scope="module")
def end() -> Iterator[int]:
    """An address before which there is room, and behind which nothing can be read: whoever tries ends this process."""
    libc = ctypes.CDLL(None)
    room = mmap.mmap(-1, ROOM + PAGE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(room))
    assert libc.mprotect(ctypes.c_void_p(address + ROOM), PAGE, 0) == 0
    yield address + ROOM
    assert libc.mprotect(ctypes.c_void_p(address + ROOM), PAGE, 3) == 0


def decode(block: Bytes, wanted: int, end: int) -> tuple[int, Bytes]:
    """Decode a block that ends where memory does; return what is told, and what was decoded."""
    ctypes.memmove(end - len(block), block.ctypes.data, len(block))
    out = np.full(GUARD + wanted + GUARD, UNTOUCHED, np.uint8)
    told = decode_lz4(end - len(block), len(block), out.ctypes.data + GUARD, wanted)
    assert (out[:GUARD] == UNTOUCHED).all(), "wrote before its room"
    assert (out[GUARD + wanted :] == UNTOUCHED).all(), "wrote behind its room"
    return told, out[GUARD : GUARD + wanted]


def check(raw: Bytes, block: Bytes, wanted: int, end: int) -> None:
    told, out = decode(block, wanted, end)
    assert told == wanted
    np.testing.assert_array_equal(out, raw[:wanted])


def picture_like(rng: np.random.Generator, size: int) -> Bytes:
    """Return bytes that repeat what came at any distance before, between noise, both of any length."""
    raw, at = rng.integers(0, rng.choice([1, 2, 4, 256]), size).astype(np.uint8), 0
    typical = rng.choice([4, 30, 100, 700])
    while at < size:
        at += int(rng.geometric(1 / rng.choice([1, 5, 20, 300])))
        distance, n = int(rng.choice([*range(1, 70), 84, 288, 7056, 65_535])), int(rng.geometric(1 / typical))
        for k in range(at, min(at + n, size)) if distance <= at else ():
            raw[k] = raw[k - distance]
        at += n
    return raw


@examples(60, 3_000)
@given(seed=st.integers(0, 2**32 - 1))
def test_what_was_encoded_comes_back_whole_and_in_part(seed: int, end: int) -> None:
    rng = np.random.default_rng(seed)
    raw = picture_like(rng, int(rng.choice([1, 20, 300, 5_000, 40_000])))
    block = encode(raw)
    assert block is not None
    for wanted in {len(raw), *rng.integers(0, len(raw) + 1, 8).tolist(), max(0, len(raw) - int(rng.integers(300)))}:
        check(raw, block, wanted, end)


@examples(100, 5_000)
@given(seed=st.integers(0, 2**32 - 1))
def test_blocks_that_were_changed_anywhere_do_no_harm(seed: int, end: int) -> None:
    rng = np.random.default_rng(seed)
    raw = picture_like(rng, int(rng.choice([20, 300, 5_000])))
    found = encode(raw)
    assert found is not None
    block = found[: len(found) - int(rng.choice([0, 0, 1, 5, int(rng.integers(len(found)))]))].copy()
    for at in rng.integers(0, len(block), int(rng.integers(0, 4))) if len(block) else ():
        block[at] = rng.choice([0, 15, 240, 255, int(rng.integers(256))])
    compare(block, len(raw) + int(rng.choice([0, 0, 1, 1_000])), end)


def compare(block: Bytes, wanted: int, end: int) -> None:
    told, out = decode(block, wanted, end)
    expected = by_the_format(block.tobytes(), wanted)
    if expected is None:
        assert told < 0
    else:
        assert told == len(expected)
        assert out[:told].tobytes() == expected


def test_any_bytes_at_all_do_no_harm(end: int) -> None:
    rng = np.random.default_rng(0)
    for _ in range(2_000):
        block = rng.choice(np.array([0, 1, 15, 16, 31, 240, 255, 84], np.uint8), int(rng.integers(0, 200)))
        compare(block, int(rng.integers(0, 2_000)), end)


def test_a_match_of_distance_nothing_or_before_the_beginning_is_malformed(end: int) -> None:
    literal = [0x1F, 7]
    for distance in (0, 2, 65_535):
        block = np.array([*literal, distance & 255, distance >> 8, *[255] * 20, 0, 0x50, *[1] * 40], np.uint8)
        for wanted in (10, 5_000):
            assert decode(block, wanted, end)[0] < 0
