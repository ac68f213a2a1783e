"""Looking for signals, such as Ctrl-C, between the blocks of a call that may take long.

Only what writes to memory that is the call's own stops halfway: what its caller gets is then an exception in place of a result.
"""

from cpython.exc cimport PyErr_CheckSignals

cdef enum:
    BLOCK_BYTES = 16 << 20  # that are read or written between two looks: some 10 ms, or 50 from a slow disk


cdef inline int handle_signals() except -1 nogil:
    """Call the handlers of signals that came; raise what they raise. In other threads than the main one, do nothing."""
    with gil:
        PyErr_CheckSignals()
    return 0
