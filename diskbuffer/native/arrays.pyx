"""Where arrays lie."""

cimport numpy as cnp
from libc.stdint cimport intptr_t

cnp.import_array()


def address_of(cnp.ndarray array not None):
    """Return the address of an array's first element; many times as fast as ``array.ctypes.data``."""
    return <intptr_t>cnp.PyArray_DATA(array)
