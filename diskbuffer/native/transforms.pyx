"""Pictures made grey and smaller, and stacks of frames turned; see `transforms.hpp`."""

cimport numpy as cnp
from libc.stdint cimport int64_t, uint8_t
from libcpp cimport bool as truth

from diskbuffer.native.arrays cimport int64s, length, uint8s

cnp.import_array()

cdef extern from "transforms.hpp" namespace "diskbuffer" nogil:
    struct PictureShape:
        int64_t height, width, channels

    struct Pictures:
        const uint8_t* pictures
        uint8_t* results

    int64_t transform_pictures_ "diskbuffer::transform_pictures"(
        Pictures pictures, Pictures known, const int64_t* which, int64_t n, PictureShape shape, PictureShape new_shape, truth grey
    )
    void interleave_ "diskbuffer::interleave"(
        const uint8_t* stacks, int64_t n, int64_t stack, int64_t pixels, int64_t pixel_bytes, uint8_t* target
    )


cdef int check_shape(object array, int64_t n, object like) except -1:
    if length(array) != n or array.shape[1:] != like.shape[1:]:
        raise ValueError(f"expected an array of shape {(n, *like.shape[1:])}, found {array.shape}")
    return 0


def transform_pictures(pictures, results, which, known, known_results, truth grey):
    """Transform pictures, but for those that are known; return how many were not.

    Parameters
    ----------
    pictures, results : (n, height, width, channels) uint8
        Results are written; their height and width may be others.
    which : (n,) int64
        For each picture, which known one it may be, or -1.
    known, known_results : (m, height, width, channels) uint8
        What was transformed before; they may be the same arrays as `pictures` and `results`.
    grey : bool
        Whether three channels become one.
    """
    cdef Pictures all_pictures = Pictures(uint8s(pictures, 4), uint8s(results, 4))
    cdef Pictures those_known = Pictures(uint8s(known, 4), uint8s(known_results, 4))
    cdef int64_t* known_numbers = int64s(which)
    cdef int64_t transformed, n = length(pictures), largest = length(known) - 1
    cdef PictureShape before = PictureShape(length(pictures, 1), length(pictures, 2), length(pictures, 3))
    cdef PictureShape after = PictureShape(length(results, 1), length(results, 2), length(results, 3))
    check_shape(results, n, results)
    check_shape(known, length(known), pictures)
    check_shape(known_results, length(known), results)
    if before.channels != (3 if grey else after.channels) or (grey and after.channels != 1):
        raise ValueError(f"pictures of shape {pictures.shape} cannot become {results.shape}")
    if n != length(which) or (n and which.max() > largest):
        raise ValueError(f"expected {n} numbers of {largest + 1} pictures, found {which}")
    if before.height * before.width < 1 or after.height * after.width < 1 or before.height * before.width > 1 << 23:
        raise ValueError(f"expected pictures of 1 to {1 << 23} pixels, found {pictures.shape} and {results.shape}")
    with nogil:
        transformed = transform_pictures_(all_pictures, those_known, known_numbers, n, before, after, grey)
    if transformed < 0:
        raise MemoryError
    return transformed


def interleave(stacks, turned):
    """Turn stacks of pictures, (n, stack, pixels, bytes) uint8: each pixel of `turned`, (n, pixels, stack, bytes), has all frames'."""
    cdef uint8_t* source = uint8s(stacks, 4)
    cdef uint8_t* target = uint8s(turned, 4)
    cdef int64_t n = length(stacks), stack = length(stacks, 1), pixels = length(stacks, 2), pixel_bytes = length(stacks, 3)
    if length(turned) != n or length(turned, 1) != pixels or length(turned, 2) != stack or length(turned, 3) != pixel_bytes:
        raise ValueError(f"expected an array of shape {(n, pixels, stack, pixel_bytes)}, found {turned.shape}")
    with nogil:
        interleave_(source, n, stack, pixels, pixel_bytes, target)
