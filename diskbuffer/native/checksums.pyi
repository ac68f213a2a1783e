import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]

ADDRESSES: dict[str, int]

def checksum_rows(
    salt: int, stream: int, first: int, apart: int, word: int, columns: Int64, checksums: npt.NDArray[np.uint32]
) -> None: ...
def replace_rows(rows: int, row_bytes: int, targets: Int64, ends: Int64, which: Int64, changes: Int64) -> None: ...
def crc32c(crc: int, address: int, size: int) -> int: ...
