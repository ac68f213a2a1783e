# kernels: codec picture_chunks
"""Chunks of rows, decoded and verified; see `codec.hpp` and `picture_chunks.hpp`."""

from libc.stdint cimport int64_t, uint8_t, uintptr_t

from diskbuffer.native.libraries cimport attach_libraries

attach_libraries()

cdef extern from "codec.hpp" namespace "diskbuffer" nogil:
    int decode_ "diskbuffer::decode"(
        const uint8_t* chunk, int64_t size, int64_t chunk_bytes, int64_t wanted, uint8_t* target, uint8_t* scratch
    )

cdef extern from "picture_chunks.hpp" namespace "diskbuffer" nogil:
    struct WebP:
        pass

    int verify_picture_ "diskbuffer::verify_picture"(const uint8_t* chunk, int64_t size)
    int decode_picture_ "diskbuffer::decode_picture"(
        const uint8_t* chunk, int64_t size, int64_t width, int64_t height, uint8_t* target, const WebP& webp
    )

cdef extern from *:
    """
    static diskbuffer::WebP diskbuffer_webp(uintptr_t get_info, uintptr_t decode_into) {
        return {reinterpret_cast<decltype(diskbuffer::WebP::get_info)>(get_info),
                reinterpret_cast<decltype(diskbuffer::WebP::decode_into)>(decode_into)};
    }
    """
    WebP diskbuffer_webp(uintptr_t get_info, uintptr_t decode_into)


def decode(uintptr_t chunk, int64_t size, int64_t chunk_bytes, int64_t wanted, uintptr_t target, uintptr_t scratch):
    """Decode the first `wanted` bytes of a chunk of `size` bytes to the address `target`; return 0 or what is wrong.

    `target` has room for what is wanted, `scratch` for `chunk_bytes`, unless all of them are wanted.
    """
    cdef int wrong
    with nogil:
        wrong = decode_(<const uint8_t*>chunk, size, chunk_bytes, wanted, <uint8_t*>target, <uint8_t*>scratch)
    return wrong


def verify_picture(uintptr_t chunk, int64_t size):
    """Verify the checksum of a chunk that is a picture, without decoding it; return 0 or what is wrong."""
    cdef int wrong
    with nogil:
        wrong = verify_picture_(<const uint8_t*>chunk, size)
    return wrong


def decode_picture(
    uintptr_t chunk, int64_t size, int64_t width, int64_t height, uintptr_t target, uintptr_t get_info, uintptr_t decode_into
):
    """Decode a chunk of `size` bytes to the address `target`, (height, width, 3), by libwebp; return 0 or what is wrong."""
    cdef int wrong
    cdef WebP webp = diskbuffer_webp(get_info, decode_into)
    with nogil:
        wrong = decode_picture_(<const uint8_t*>chunk, size, width, height, <uint8_t*>target, webp)
    return wrong
