"""Our encoder of LZ4: whatever it is given comes out of LZ4's decoder, and pictures become as small as LZ4HC makes them."""

from __future__ import annotations

import ctypes

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diskbuffer.native import codec as native
from diskbuffer.native.c_functions import BLOSC, find
from diskbuffer.store.format import codec
from diskbuffer.store.format.encoding import Recoder

Bytes = npt.NDArray[np.uint8]
GUARD = 64


def decompressed(source: int, size: int, target: int, room: int) -> int:
    partial = find(BLOSC, "LZ4_decompress_safe_partial")
    partial.argtypes = [ctypes.c_ssize_t, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_int, ctypes.c_int]
    return int(partial(source, target, size, room, room))


def encode(raw: Bytes, distances: tuple[int, int, int] = (1, 84, 7056), room: int | None = None) -> Bytes | None:
    """Return the LZ4 block, or None where it does not fit into `room`."""
    room = len(raw) + len(raw) // 255 + 16 if room is None else room
    out = np.full(room + GUARD, 0xEE, np.uint8)
    size = native.encode_lz4(raw.ctypes.data, len(raw), out.ctypes.data, room, np.array(distances))
    assert (out[room:] == 0xEE).all(), "wrote behind its room"
    return out[:size].copy() if size else None


def check(raw: Bytes, distances: tuple[int, int, int] = (1, 84, 7056)) -> Bytes:
    block = encode(raw, distances)
    assert block is not None
    found = np.zeros(len(raw), np.uint8)
    assert decompressed(block.ctypes.data, len(block), found.ctypes.data, len(raw)) == len(raw)
    np.testing.assert_array_equal(found, raw)
    for room in (0, 1, len(block) - 1):
        assert encode(raw, distances, room) is None or room >= len(block)
    return block


@settings(max_examples=300, deadline=None)
@given(st.binary(min_size=1, max_size=400), st.integers(0, 9), st.tuples(*[st.integers(0, 70_000)] * 3))
def test_any_bytes_come_back(raw: bytes, times: int, distances: tuple[int, int, int]) -> None:
    check(np.frombuffer(raw * (1 + times), np.uint8).copy(), distances)


@pytest.mark.some(8)
@pytest.mark.parametrize("seed", range(60))
def test_what_repeats_itself_at_any_distance_comes_back(seed: int) -> None:
    """Copies of what came before, of any length, from any distance up to beyond the window, between noise of any length."""
    rng = np.random.default_rng(seed)
    size, colours = int(rng.integers(13, 300_000)), int(rng.choice([1, 2, 4, 256]))
    raw, at = rng.integers(0, colours, size).astype(np.uint8), 0
    while at < size:
        at += int(rng.geometric(1 / rng.choice([1, 5, 20, 300, 5_000])))
        distance, n = (
            int(rng.choice([1, 3, 84, 288, 7056, 65_534, 65_535, 65_536, int(rng.integers(1, size))])),
            int(rng.geometric(0.01)),
        )
        for k in range(at, min(at + n, size)) if 0 < distance <= at else ():
            raw[k] = raw[k - distance]
        at += n
    pixel, line, frame = rng.choice(np.array([0, 1, 3, 84, 288, 7056, 27_648, 65_535, 65_536, 10**6]), 3).tolist()
    check(raw, (pixel, line, frame))


@pytest.mark.parametrize("size", [*range(1, 40), 65_535, 65_536, 65_537, 200_001])
def test_one_colour_of_any_size_comes_back_and_is_small(size: int) -> None:
    assert len(check(np.full(size, 7, np.uint8))) <= 20 + size // 255


def test_noise_does_not_fit_and_is_given_up_soon() -> None:
    raw = np.random.default_rng(0).integers(0, 256, 110_592).astype(np.uint8)
    assert encode(raw, room=len(raw) - 32) is None
    assert len(check(raw)) <= len(raw) + len(raw) // 255 + 16


def test_a_chunk_that_does_not_come_back_as_it_was_is_noticed() -> None:
    """What a chunk decodes to is compared with what it was made of."""
    rng = np.random.default_rng(0)
    raw = np.repeat(rng.integers(0, 4, 2_000), 8).astype(np.uint8)
    live = np.empty(codec.bound(len(raw)), np.uint8)
    entries = np.empty((1, 2), np.int64)
    native.encode_chunks(raw.ctypes.data, 0, len(raw), len(raw), b"lz4", 1, live, entries)
    out, moved = np.empty_like(live), np.empty((1, 2), np.int64)
    for spoil in (False, True):
        recoder = Recoder(len(raw), (1, 84, 7056))
        size = recoder.recode(live.ctypes.data, entries, out, moved, codec.PICTURES)
        chunk = out[:size].copy()
        back = np.concatenate([raw, np.zeros(len(raw), np.uint8)])
        if spoil:
            back[100] ^= 1  # as if the chunk came of something else
        assert native.decodes_to(chunk.ctypes.data, len(chunk), back.ctypes.data, len(raw)) is not spoil
