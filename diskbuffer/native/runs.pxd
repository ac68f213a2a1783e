"""Structs of `runs.hpp` that several modules take."""

cimport numpy as cnp
from libc.stdint cimport int64_t, uint8_t

from diskbuffer.native.arrays cimport int64s, length

cdef extern from "runs.hpp" namespace "diskbuffer" nogil:
    struct Layout:
        int64_t segment_rows, lanes

    struct Run:
        int64_t file, lane, store

    struct Source:
        pass

    struct Target:
        int64_t column, checksums

    struct MappedFiles:
        const Source* sources
        int64_t columns, files


cdef inline MappedFiles mapped_files(object mapped) except *:
    """Return an array, (columns, files, 2) int64, as the addresses and sizes of files; TypeError where it is another."""
    cdef MappedFiles files
    files.sources = <const Source*>int64s(mapped, 3)
    files.columns, files.files = length(mapped), length(mapped, 1)
    if length(mapped, 2) != 2:
        raise TypeError(f"expected addresses and sizes of files, found {mapped.shape}")
    return files
