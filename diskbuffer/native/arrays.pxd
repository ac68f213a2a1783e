"""Arrays as pointers: each checks that it is given a contiguous numpy array of its dtype and dimensions, or raises TypeError."""

cimport numpy as cnp
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t


cdef inline void* _data(object array, int kind, int dimensions) except NULL:
    if not cnp.PyArray_Check(array):
        raise TypeError(f"expected a numpy array, found {type(array).__name__}")
    cdef cnp.ndarray checked = <cnp.ndarray>array
    if cnp.PyArray_TYPE(checked) != kind or cnp.PyArray_NDIM(checked) != dimensions or not cnp.PyArray_IS_C_CONTIGUOUS(checked):
        raise TypeError(
            f"expected a contiguous array of {dimensions} dimensions and type number {kind}, found {array.dtype} {array.shape}"
            f"{'' if array.flags.c_contiguous else ', not contiguous'}"
        )
    return cnp.PyArray_DATA(checked)


cdef inline int64_t* int64s(object array, int dimensions=1) except NULL:
    return <int64_t*>_data(array, cnp.NPY_INT64, dimensions)


cdef inline uint32_t* uint32s(object array, int dimensions=1) except NULL:
    return <uint32_t*>_data(array, cnp.NPY_UINT32, dimensions)


cdef inline uint64_t* uint64s(object array, int dimensions=1) except NULL:
    return <uint64_t*>_data(array, cnp.NPY_UINT64, dimensions)


cdef inline uint8_t* uint8s(object array, int dimensions=1) except NULL:
    return <uint8_t*>_data(array, cnp.NPY_UINT8, dimensions)


cdef inline uint8_t* bools(object array, int dimensions=1) except NULL:
    return <uint8_t*>_data(array, cnp.NPY_BOOL, dimensions)


cdef inline double* float64s(object array, int dimensions=1) except NULL:
    return <double*>_data(array, cnp.NPY_FLOAT64, dimensions)


cdef inline float* float32s(object array, int dimensions=1) except NULL:
    return <float*>_data(array, cnp.NPY_FLOAT32, dimensions)


cdef inline int64_t length(object array, int axis=0):
    """Return the length of an axis of an array that was checked."""
    return cnp.PyArray_DIM(<cnp.ndarray>array, axis)


cdef inline cnp.ndarray as_int64s(object array):
    """Return an array of one dimension as contiguous int64: itself, if it is that."""
    return <cnp.ndarray>cnp.PyArray_FROMANY(array, cnp.NPY_INT64, 1, 1, cnp.NPY_ARRAY_C_CONTIGUOUS | cnp.NPY_ARRAY_ALIGNED)
