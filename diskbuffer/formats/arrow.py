"""Arrays of Arrow as numpy's."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt


def as_numpy(array: Any) -> npt.NDArray[Any]:
    """Return an array of numbers or booleans, (n,), none of which is missing; numbers are not copied.

    Not with pyarrow's `to_numpy`, which imports pandas: 35 MB of memory.
    """
    import pyarrow as pa

    flags = pa.types.is_boolean(array.type)
    values: npt.NDArray[Any] = np.from_dlpack(array.cast(pa.uint8()) if flags else array)
    return values.view(np.bool_) if flags else values
