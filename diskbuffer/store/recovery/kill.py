"""What counts of a store that was closed, or whose writer was killed: everything that the table says is there.

What is not as it was written is damage, then, and an error.
"""

from __future__ import annotations

import numpy as np

from diskbuffer.errors import CorruptionError
from diskbuffer.store.format.checksums import OBS, STEP
from diskbuffer.store.recovery.inspection import Inspected, is_mixed, missing_rows
from diskbuffer.store.store import Store


def make_sure(store: Store, synced: tuple[int, ...]) -> None:
    """Raise a CorruptionError where rows that are not sealed yet, which have no other checksums, are damaged.

    `synced` are the positions up to which rows must be there.
    """
    for stream, (head, expected) in enumerate(zip(store.heads().tolist(), synced, strict=True)):
        if head < expected:
            raise CorruptionError(missing_rows(store, f"{head + 1} to {expected}", stream))
    decode = is_mixed(store.layout)
    for slots in store.table.by_stream():
        for slot in slots.tolist():
            if store.verification.is_sealed(slot):
                continue
            segment = Inspected(store, slot, store.table.length(slot), decode=decode)
            for what in segment.damage.values():
                raise CorruptionError(what)
            newest = slot == slots[-1]
            for word in (OBS, STEP):
                good = segment.verified(word, newest=newest)
                if not good.all():
                    raise CorruptionError(segment.damaged_row(word, int(np.flatnonzero(~good)[0])))
