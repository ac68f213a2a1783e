"""How many steps each writer keeps, for all to see: a file of integers that is mapped, one for each writer.

It is a hint: what a kill or a power loss makes of it is put right when the writer, or somebody in its place, opens its store.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from diskbuffer.gathering.description import SHARED, STREAMS
from diskbuffer.store.system.files import Files

Int64 = npt.NDArray[np.int64]
_FILE = f"{SHARED}/steps"


class Counts:
    """The numbers of steps that writers keep.

    Attributes
    ----------
    steps : (writers,) int64
        By the number of the writer; whoever has a writer's lock writes its own.
    """

    def __init__(self, files: Files) -> None:
        if not files.exists(_FILE):
            files.replace_contents(_FILE, bytes(8 * STREAMS), sync=False)
        self._map = files.map(_FILE, 8 * STREAMS, writable=True)
        self.steps: Int64 = self._map.array(np.int64, (STREAMS,))
