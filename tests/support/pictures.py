"""Frames of workloads as pictures that say which frame they are, also once they have lost something."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
SHAPE = (32, 32, 3)
_PATTERN = (np.arange(1024) // 7 * 3).astype(np.uint8)
_BLOCK = 4  # pixels of a side, as WebP transforms them


def patterned(places: Array, stream: Any, generation: Array) -> Array:
    """Return frames, (n, 1024), of positions of streams in a generation; the first eight bytes say which."""
    flat = (_PATTERN + (places * 11 + stream * 57 + generation * 29).astype(np.uint8)[:, None]) | np.uint8(1)
    flat[:, :8] = numbered(places, stream, generation)
    return np.asarray(flat)


def numbered(places: Array, stream: Any, generation: Array) -> Array:
    """Return the bytes, (n, 8), that say which frame it is."""
    return np.asarray((generation * 2**32 + places * 8 + stream + 1).astype("<i8").view(np.uint8).reshape(-1, 8))


def drawn(frames: Array) -> Array:
    """Return pictures, (n, *SHAPE), of frames, (n, 32, 32): the first 64 bits, a black or white block each."""
    bits = np.unpackbits(frames.reshape(len(frames), -1)[:, :8], axis=1).reshape(-1, 8, 8)
    return np.repeat(255 * np.kron(bits, np.ones((_BLOCK, _BLOCK), np.uint8))[..., None], 3, axis=3).astype(np.uint8)


def seen(pictures: Array) -> Array:
    """Return the frames that pictures were drawn of; zeros of pictures that no frame has."""
    means = pictures.reshape(-1, 8, _BLOCK, 8, 3 * _BLOCK).mean((2, 4))
    first = np.packbits((means > 128).reshape(-1, 64), axis=1)
    number = first.copy().view("<i8")[:, 0]
    frames = patterned((number - 1) % 2**32 // 8, (number - 1) % 8, number >> 32)
    fresh = first[:, 7] != 0  # of `soak.judging.fresh_frames`
    frames[fresh] = first[fresh, 1:2]
    frames[fresh, :8] = first[fresh]
    frames[(number == 0) | (abs(means - 127.5) < 64).any((1, 2))] = 0  # torn
    return np.asarray(frames.reshape(-1, 32, 32))
