"""Setting the addresses in `libraries.hpp`: each module that calls these functions calls `attach_libraries` when it is imported."""

from libc.stdint cimport uintptr_t

cdef extern from *:
    """
    #include "libraries.hpp"
    template <typename Function>
    static void diskbuffer_set(Function& function, uintptr_t address) { function = reinterpret_cast<Function>(address); }
    static void diskbuffer_attach(uintptr_t crc32c, uintptr_t decompress, uintptr_t compress, uintptr_t lz4) {
        diskbuffer_set(diskbuffer::libraries.crc32c_extend, crc32c);
        diskbuffer_set(diskbuffer::libraries.blosc_decompress, decompress);
        diskbuffer_set(diskbuffer::libraries.blosc_compress, compress);
        diskbuffer_set(diskbuffer::libraries.lz4_decompress_partial, lz4);
    }
    """
    void diskbuffer_attach(uintptr_t, uintptr_t, uintptr_t, uintptr_t)


cdef inline int attach_libraries() except -1:
    from diskbuffer.native.c_functions import BLOSC, CRC, address

    diskbuffer_attach(
        address(CRC, "crc32c_extend"),
        address(BLOSC, "blosc_decompress_ctx"),
        address(BLOSC, "blosc_compress_ctx"),
        address(BLOSC, "LZ4_decompress_safe_partial"),
    )
    return 0
