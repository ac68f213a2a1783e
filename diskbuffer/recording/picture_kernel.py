"""Pictures made grey and smaller, in integers: the same on every machine.

OpenCV and Pillow take other paths on other processors, and promise no equal results; what is stored must not depend on them.

A picture of H x W pixels becomes one of h x w. In units of 1 / h of a pixel, row r is [r * h, r * h + h), and row i of the
result covers [i * H, i * H + H). So how much it covers of each row is an integer, and these add up to H; of columns alike. A
pixel of the result is a sum of at most 255 * H * W, divided by H * W.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from diskbuffer.native.compiling import compiled
from diskbuffer.native.libraries import memcmp


@compiled
def transform(frames: Any, known: Any, which: Any, made: Any, found: Any, grey: bool) -> int:
    """Transform pictures, but for those that are known; return how many were not.

    Parameters
    ----------
    frames : (n, H, W, C) uint8
        What is given, contiguous.
    known : (m, H, W, C) uint8
        Pictures that were transformed before, to `made`. It may be `frames` itself, and `made` `found`.
    which : (n,) int64
        For each, which known one it may be, or -1.
    made : (m, h, w, c) uint8
    found : (n, h, w, c) uint8
        Where results are written to.
    grey : bool
        Whether three channels become one.
    """
    n, height, width, channels = frames.shape
    size = height * width * channels
    rows = np.empty((height, width * found.shape[3]), np.uint8)
    sums = np.empty(rows.shape[1], np.uint32)
    transformed = 0
    for i in range(n):
        k = which[i]
        if k >= 0 and memcmp(frames.ctypes.data + i * size, known.ctypes.data + k * size, size) == 0:
            found[i] = made[k]
            continue
        transformed += 1
        if grey:
            _make_grey(frames[i], rows)
        else:
            rows = frames[i].reshape(height, width * channels)
        if found.shape[1] == height and found.shape[2] == width:
            found[i] = rows.reshape(height, width, found.shape[3])
        else:
            _resize(rows, sums, found[i])
    return transformed


@compiled
def _make_grey(frame: Any, rows: Any) -> None:
    given, found = frame.reshape(frame.size), rows.reshape(rows.size)
    for c in range(found.size):
        red, green, blue = np.uint32(given[3 * c]), np.uint32(given[3 * c + 1]), np.uint32(given[3 * c + 2])
        luma = red * np.uint32(19595) + green * np.uint32(38470) + blue * np.uint32(7471) + np.uint32(32768)
        found[c] = luma >> np.uint32(16)


@compiled
def _resize(rows: Any, sums: Any, found: Any) -> None:
    """Write the mean of the area that each pixel of the result covers."""
    height, (h, w, channels) = rows.shape[0], found.shape
    width = rows.shape[1] // channels
    columns = _columns(width, w, channels)
    # Sums, and the half that is added to round, are at most 256 * n. For those, this multiplication and shift divide by n
    # exactly: what is too much of `factor`, at most 1, adds less than 1 / n to the result as long as 256 * n * n < 2 ** shift.
    # For n up to `transforms.MOST_PIXELS`, 2 ** 23, the product fits 64 bits.
    n, shift = np.uint64(height * width), np.uint64(0)
    while (np.uint64(1) << shift) <= np.uint64(256) * n * n:
        shift += np.uint64(1)
    factor, half = (np.uint64(1) << shift) // n + np.uint64(1), n // np.uint64(2)
    for i in range(h):
        first, last = i * height // h, ((i + 1) * height - 1) // h
        for r in range(first, last + 1):
            part, row = np.uint32(min((i + 1) * height, (r + 1) * h) - max(i * height, r * h)), rows[r]
            if r == first:
                for c in range(sums.size):
                    sums[c] = part * np.uint32(row[c])
            else:
                for c in range(sums.size):
                    sums[c] += part * np.uint32(row[c])
        for j in range(w):
            begin, end, before, after = columns[j]
            for channel in range(channels):
                total = np.uint64(before) * np.uint64(sums[begin + channel]) + np.uint64(after) * np.uint64(sums[end + channel])
                for c in range(begin + channels, end, channels):
                    total += np.uint64(w) * np.uint64(sums[c + channel])
                found[i, j, channel] = ((total + half) * factor) >> shift


@compiled
def _columns(width: int, w: int, channels: int) -> Any:
    """Return where the first and the last pixel of a row are that each of `w` covers, and how much of them; 0 if that is one."""
    found = np.empty((w, 4), np.int64)
    for j in range(w):
        begin, end = j * width // w, ((j + 1) * width - 1) // w
        found[j, 0], found[j, 1] = begin * channels, end * channels
        found[j, 2] = min((j + 1) * width, (begin + 1) * w) - j * width
        found[j, 3] = (j + 1) * width - end * w if end > begin else 0
    return found
