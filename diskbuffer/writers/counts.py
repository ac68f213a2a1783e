"""How many steps each writer keeps, for all to see: a file of integers that is mapped, one for each writer.

It is a hint: what a kill or a power loss makes of it is put right when the writer, or somebody in its place, opens its store.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from diskbuffer.store.system.files import Files
from diskbuffer.writers.description import SHARED, STREAMS, alone

Int64 = npt.NDArray[np.int64]
_FILE = f"{SHARED}/steps"
_BYTES = 8 * STREAMS


class Counts:
    """The numbers of steps that writers keep.

    Attributes
    ----------
    steps : (writers,) int64
        By the number of the writer; whoever has a writer's lock writes its own.
    """

    def __init__(self, files: Files) -> None:
        with alone(files):  # or writers that start together would count in files of their own
            if not files.exists(_FILE) or files.stat(_FILE).st_size != _BYTES:  # of which a power loss took the size
                files.replace_contents(_FILE, bytes(_BYTES), sync=False)
        self._map = files.map(_FILE, _BYTES, writable=True)
        self.steps: Int64 = self._map.array(np.int64, (STREAMS,))
