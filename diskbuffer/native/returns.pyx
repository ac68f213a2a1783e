"""Returns and advantages, backwards over the steps of one stream, block by block: an episode may be of any length.

Blocks come from the newest to the oldest; a carry, 0.0 at first, goes from one to the next.
"""

import numpy as np

cimport numpy as cnp
from libc.stdint cimport int64_t, uint8_t

from diskbuffer.native.arrays cimport bools, float64s, length

cnp.import_array()

cdef extern from "returns.hpp" namespace "diskbuffer" nogil:
    struct StepEnds:
        const uint8_t* terminated
        const uint8_t* ended

    double advantages_ "diskbuffer::advantages"(
        const double* rewards, const double* values, const double* next_values, StepEnds ends, int64_t n, double gamma,
        double gae_lambda, double carry, double* advantages
    )
    double returns_to_go_ "diskbuffer::returns_to_go"(
        const double* rewards, const double* next_values, StepEnds ends, int64_t n, double gamma, double carry, double* returns
    )


cdef int64_t common_length(tuple arrays) except -1:
    cdef int64_t n = length(arrays[0])
    for array in arrays:
        if length(array) != n:
            raise ValueError(f"expected arrays of one length, found {n} and {length(array)}")
    return n


def advantages(rewards, values, next_values, terminated, ended, double gamma, double gae_lambda, double carry):
    """Estimate the advantages of consecutive steps, (n,) in ascending order, by generalized advantage estimation.

    Schulman et al., 2016, "High-dimensional continuous control using generalized advantage estimation".

    Parameters
    ----------
    rewards, values, next_values : (n,) float64
        `next_values` are those of the observations that the steps led to.
    terminated : (n,) bool
        Whether nothing comes after a step, so that its next value counts as zero.
    ended : (n,) bool
        Whether the episode ends with a step, or is not known to continue.
    gamma, gae_lambda : float
    carry : float
        What this returned for the block after this one.

    Returns
    -------
    advantages : (n,) float64
    carry : float
    """
    cdef double* each_reward = float64s(rewards)
    cdef double* each_value = float64s(values)
    cdef double* each_next = float64s(next_values)
    cdef StepEnds ends = StepEnds(bools(terminated), bools(ended))
    cdef int64_t n = common_length((rewards, values, next_values, terminated, ended))
    results = np.empty(n)
    cdef double* out = float64s(results)
    with nogil:
        carry = advantages_(each_reward, each_value, each_next, ends, n, gamma, gae_lambda, carry, out)
    return results, carry


def returns_to_go(rewards, next_values, terminated, ended, double gamma, double carry):
    """Sum up the discounted rewards to come; after an end that did not terminate comes its next value. See `advantages`."""
    cdef double* each_reward = float64s(rewards)
    cdef double* each_next = float64s(next_values)
    cdef StepEnds ends = StepEnds(bools(terminated), bools(ended))
    cdef int64_t n = common_length((rewards, next_values, terminated, ended))
    results = np.empty(n)
    cdef double* out = float64s(results)
    with nogil:
        carry = returns_to_go_(each_reward, each_next, ends, n, gamma, carry, out)
    return results, carry
