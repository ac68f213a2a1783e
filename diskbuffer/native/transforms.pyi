import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]

def transform_pictures(
    pictures: Bytes, results: Bytes, which: npt.NDArray[np.int64], known: Bytes, known_results: Bytes, grey: bool
) -> int: ...
def interleave(stacks: Bytes, turned: Bytes) -> None: ...
