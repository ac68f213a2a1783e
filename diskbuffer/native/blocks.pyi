import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]

def scatter(rows: int, row_bytes: int, targets: Int64) -> None: ...
def note_changes(watched: Int64, groups: Int64, changed: npt.NDArray[np.bool_]) -> None: ...
