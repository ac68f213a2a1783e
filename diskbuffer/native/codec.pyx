"""Chunks of rows: compressed, decoded and verified; see `codec.hpp`, `picture_chunks.hpp` and `recoding.hpp`."""

cimport numpy as cnp
from libc.stdint cimport int64_t, uint8_t, uintptr_t

from diskbuffer.native.arrays cimport int64s, length, uint8s
from diskbuffer.native.libraries cimport attach_libraries

cnp.import_array()
attach_libraries()

cdef extern from "codec.hpp" namespace "diskbuffer" nogil:
    enum:
        HEADER_ "diskbuffer::HEADER"
        CHECKSUM_ "diskbuffer::CHECKSUM"
        BAD_ENTRY_ "diskbuffer::BAD_ENTRY"
        BAD_CHECKSUM_ "diskbuffer::BAD_CHECKSUM"
        BAD_HEADER_ "diskbuffer::BAD_HEADER"
        BAD_STREAM_ "diskbuffer::BAD_STREAM"
        BAD_PICTURE_ "diskbuffer::BAD_PICTURE"
        OUTSIDE_ "diskbuffer::OUTSIDE"
    int decode_ "diskbuffer::decode"(
        const uint8_t* chunk, int64_t size, int64_t chunk_bytes, int64_t n_bytes, uint8_t* target, uint8_t* scratch
    )
    int64_t encode_ "diskbuffer::encode"(
        const uint8_t* rows, int64_t chunk_bytes, const char* compressor, int level, int64_t item_bytes, uint8_t* target
    )

cdef extern from "lz4.hpp" namespace "diskbuffer" nogil:
    int64_t decode_lz4_ "diskbuffer::decode_lz4"(const uint8_t* block, int64_t size, uint8_t* target, int64_t n_bytes)

cdef extern from "picture_chunks.hpp" namespace "diskbuffer" nogil:
    enum:
        PICTURE_HEADER_ "diskbuffer::PICTURE_HEADER"

    struct WebP:
        pass

    int verify_picture_ "diskbuffer::verify_picture"(const uint8_t* chunk, int64_t size)
    int decode_file_ "diskbuffer::decode_file"(
        const uint8_t* file, int64_t size, int64_t width, int64_t height, uint8_t* target, const WebP& webp
    )
    int decode_picture_ "diskbuffer::decode_picture"(
        const uint8_t* chunk, int64_t size, int64_t width, int64_t height, uint8_t* target, const WebP& webp
    )

cdef extern from "recoding.hpp" namespace "diskbuffer" nogil:
    struct Entry:
        pass

    struct Stored:
        pass

    struct Workspace:
        pass

    struct Method:
        const char* compressor
        int level
        int64_t item_bytes
        int64_t pixel_line_frame[3]

    int64_t workspace_bytes_ "diskbuffer::workspace_bytes"(int64_t chunk_bytes)
    int64_t encode_chunks_ "diskbuffer::encode_chunks"(
        const uint8_t* rows, int64_t first, int64_t ring, int64_t chunk_bytes, const char* compressor, int level, uint8_t* target,
        Entry* entries, int64_t n
    )
    int64_t recode_chunks_ "diskbuffer::recode_chunks"(
        const uint8_t* shard, const Entry* entries, int64_t n, int64_t chunk_bytes, const Method& method, Workspace& workspace,
        Stored& stored, uint8_t* target, Entry* moved
    )
    bint decodes_to_ "diskbuffer::decodes_to"(const uint8_t* chunk, int64_t size, uint8_t* rows, int64_t chunk_bytes)
    int64_t copy_pictures_ "diskbuffer::copy_pictures"(
        const uint8_t* shard, const Entry* entries, int64_t n, int64_t row_bytes, uint8_t* target, Entry* moved
    )

cdef extern from *:
    """
    #include <memory>
    static diskbuffer::WebP diskbuffer_webp(uintptr_t get_info, uintptr_t decode_into) {
        return {reinterpret_cast<decltype(diskbuffer::WebP::get_info)>(get_info),
                reinterpret_cast<decltype(diskbuffer::WebP::decode_into)>(decode_into)};
    }
    static int64_t diskbuffer_encode_lz4(const uint8_t* rows, int64_t size, uint8_t* target, int64_t room, const int64_t* distances) {
        const int64_t pixel_line_frame[] = {distances[0], distances[1], distances[2]};
        return std::make_unique<diskbuffer::PictureEncoder>()->encode(rows, size, target, room, pixel_line_frame);
    }
    """
    WebP diskbuffer_webp(uintptr_t get_info, uintptr_t decode_into)
    int64_t diskbuffer_encode_lz4(
        const uint8_t* rows, int64_t size, uint8_t* target, int64_t room, const int64_t* distances
    ) except + nogil

HEADER, CHECKSUM, PICTURE_HEADER = HEADER_, CHECKSUM_, PICTURE_HEADER_
BAD_ENTRY, BAD_CHECKSUM, BAD_HEADER, BAD_STREAM = BAD_ENTRY_, BAD_CHECKSUM_, BAD_HEADER_, BAD_STREAM_
BAD_PICTURE, OUTSIDE = BAD_PICTURE_, OUTSIDE_


def decode(uintptr_t chunk, int64_t size, int64_t chunk_bytes, int64_t n_bytes, uintptr_t target, uintptr_t scratch):
    """Decode the first `n_bytes` bytes of a chunk of `size` bytes to the address `target`; return 0 or what is wrong.

    `target` has room for these; `scratch` for `chunk_bytes`, unless all of them are decoded.
    """
    cdef int wrong
    with nogil:
        wrong = decode_(<const uint8_t*>chunk, size, chunk_bytes, n_bytes, <uint8_t*>target, <uint8_t*>scratch)
    return wrong


def encode(uintptr_t rows, int64_t chunk_bytes, const char* compressor, int level, int64_t item_bytes, uintptr_t target):
    """Compress rows to a chunk at the address `target`, which has room for `bound`; return its size, 0 or less if it failed."""
    cdef int64_t size
    with nogil:
        size = encode_(<const uint8_t*>rows, chunk_bytes, compressor, level, item_bytes, <uint8_t*>target)
    return size


def encode_chunks(uintptr_t rows, int64_t first, int64_t ring, int64_t chunk_bytes, const char* compressor, int level, out, entries):
    """Compress chunks of a ring of `ring` bytes at an address, from byte `first` on, one after the other into `out`.

    They are as many as there are `entries`, (n, 2) int64, which become (offset in `out`, size). Returns the bytes written, -1 if it
    failed.
    """
    cdef uint8_t* target = uint8s(out)
    cdef Entry* where = <Entry*>int64s(entries, 2)
    cdef int64_t n = length(entries), size
    with nogil:
        size = encode_chunks_(<const uint8_t*>rows, first, ring, chunk_bytes, compressor, level, target, where, n)
    return size


def workspace_bytes(int64_t chunk_bytes):
    """Return how large an array `recode_chunks` works with."""
    return workspace_bytes_(chunk_bytes)


def recode_chunks(
    uintptr_t shard, entries, int64_t chunk_bytes, const char* compressor, int level, int64_t item_bytes, distances, workspace, stored,
    out, moved
):
    """Compress the chunks at `entries` of a live shard again, one after the other into `out`; see `recoding.hpp`.

    Returns the bytes written, or -1 - i where chunk i cannot be decoded.
    """
    cdef Method method
    method.compressor, method.level, method.item_bytes = compressor, level, item_bytes
    method.pixel_line_frame[0], method.pixel_line_frame[1], method.pixel_line_frame[2] = distances
    cdef Entry* source = <Entry*>int64s(entries, 2)
    cdef Entry* target = <Entry*>int64s(moved, 2)
    cdef Workspace* work = <Workspace*>uint8s(workspace)
    cdef Stored* counts = <Stored*>int64s(stored)
    cdef uint8_t* to = uint8s(out)
    cdef int64_t n = length(entries), size
    with nogil:
        size = recode_chunks_(<const uint8_t*>shard, source, n, chunk_bytes, method, work[0], counts[0], to, target)
    return size


def decodes_to(uintptr_t chunk, int64_t size, uintptr_t rows, int64_t chunk_bytes):
    """Return whether liblz4 decodes a chunk of pictures to the rows at an address, behind which there is room for as many bytes."""
    return decodes_to_(<const uint8_t*>chunk, size, <uint8_t*>rows, chunk_bytes)


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


def decode_file(
    uintptr_t file, int64_t size, int64_t width, int64_t height, uintptr_t target, uintptr_t get_info, uintptr_t decode_into
):
    """Decode what a chunk has between its checksums, as `decode_picture` does."""
    cdef int wrong
    cdef WebP webp = diskbuffer_webp(get_info, decode_into)
    with nogil:
        wrong = decode_file_(<const uint8_t*>file, size, width, height, <uint8_t*>target, webp)
    return wrong


def copy_pictures(uintptr_t shard, entries, int64_t row_bytes, out, moved):
    """Copy the chunks at `entries` of a live shard, one after the other into `out`; `moved` become (offset in `out`, size).

    `row_bytes` are a row's, as it was recorded: no chunk is larger by more than its checksums. Returns the bytes written, or -1 - i
    where chunk i is damaged.
    """
    cdef Entry* source = <Entry*>int64s(entries, 2)
    cdef Entry* target = <Entry*>int64s(moved, 2)
    cdef uint8_t* to = uint8s(out)
    cdef int64_t n = length(entries), size
    with nogil:
        size = copy_pictures_(<const uint8_t*>shard, source, n, row_bytes, to, target)
    return size


def decode_lz4(uintptr_t block, int64_t size, uintptr_t target, int64_t n_bytes):
    """Decode the first `n_bytes` bytes of a block of LZ4; return how many there are, negative if it is malformed. For tests."""
    return decode_lz4_(<const uint8_t*>block, size, <uint8_t*>target, n_bytes)


def encode_lz4(uintptr_t rows, int64_t size, uintptr_t target, int64_t room, distances):
    """Compress pictures to a block of LZ4; return its size, 0 where it has no room. For tests."""
    return diskbuffer_encode_lz4(<const uint8_t*>rows, size, <uint8_t*>target, room, int64s(distances))
