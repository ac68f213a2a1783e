import numpy as np
import numpy.typing as npt

Bools = npt.NDArray[np.bool_]
Float64 = npt.NDArray[np.float64]

def advantages(
    rewards: Float64,
    values: Float64,
    next_values: Float64,
    terminated: Bools,
    ended: Bools,
    gamma: float,
    gae_lambda: float,
    carry: float,
) -> tuple[Float64, float]: ...
def returns_to_go(
    rewards: Float64, next_values: Float64, terminated: Bools, ended: Bools, gamma: float, carry: float
) -> tuple[Float64, float]: ...
