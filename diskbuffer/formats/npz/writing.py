"""Arrays to ``.npz`` files, block by block."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from diskbuffer.formats.rows import rows_at_a_time
from diskbuffer.plugin import Rows


def write_npz(path: Path, arrays: Mapping[str, Rows]) -> None:
    """Write what `numpy.savez_compressed` writes. At `path` there is a whole file or none.

    Parameters
    ----------
    path : pathlib.Path
        Of the file.
    arrays : mapping of str to Rows
        By name. They are read one after the other, a few MB at a time.
    """
    part = path.with_suffix(".part")
    with zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED, allowZip64=True) as file:
        for name, rows in arrays.items():
            with file.open(f"{name}.npy", "w", force_zip64=True) as stream:
                header = {"descr": np.lib.format.dtype_to_descr(rows.dtype), "fortran_order": False, "shape": tuple(rows.shape)}
                np.lib.format.write_array_header_1_0(stream, header)
                step = rows_at_a_time(rows)
                for first in range(0, rows.shape[0], step):
                    stream.write(np.ascontiguousarray(rows[first : first + step]).tobytes())
    os.replace(part, path)
