"""What the native code was built from."""

cdef extern from *:
    """
    #ifndef DISKBUFFER_SOURCES
    #define DISKBUFFER_SOURCES ""
    #endif
    static const char* const diskbuffer_sources = DISKBUFFER_SOURCES;
    """
    const char* diskbuffer_sources

SOURCES = diskbuffer_sources.decode()
