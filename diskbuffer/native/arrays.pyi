from typing import Any

import numpy.typing as npt

def address_of(array: npt.NDArray[Any]) -> int: ...
