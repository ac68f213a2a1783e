"""Structs of `runs.hpp` that several modules take."""

cimport numpy as cnp
from libc.stdint cimport int64_t, uint8_t
from libcpp.vector cimport vector

from diskbuffer.native.arrays cimport int64s, length

cdef extern from "runs.hpp" namespace "diskbuffer" nogil:
    struct Run:
        pass

    struct Source:
        pass

    struct Target:
        int64_t row_bytes, rows

    struct StoreFiles:
        const Source* sources
        int64_t files, first, lanes

    struct MappedFiles:
        const StoreFiles* stores
        int64_t n, columns, segment_rows


cdef inline MappedFiles mapped_files(list tables, int64_t segment_rows, vector[StoreFiles]& stores) except *:
    """Return where files are mapped, which `stores` holds; TypeError where a table is another than it should be.

    `tables` has one for each store: addresses and sizes, (columns, files, 2) int64, the number of the first file, and how many lanes a file
    has. One alone may be that of all stores.
    """
    cdef MappedFiles files
    cdef StoreFiles store
    for sources, first, lanes in tables:
        store.sources, store.files, store.first, store.lanes = <const Source*>int64s(sources, 3), length(sources, 1), first, lanes
        if length(sources, 2) != 2 or (stores.size() and length(sources) != files.columns) or store.lanes < 1:
            raise TypeError(f"expected addresses and sizes of files of as many columns, and lanes, found {sources.shape} and {lanes}")
        files.columns = length(sources)
        stores.push_back(store)
    if stores.empty():
        raise TypeError("expected the files of a store at least")
    files.stores, files.n, files.segment_rows = stores.data(), stores.size(), segment_rows
    return files
