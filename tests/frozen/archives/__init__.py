"""Small stores that the first version of format 1 wrote, which every later version must read as it did.

They are never made again: a store that a new version wrote would show nothing of what users have. A new format gets archives of
its own. What each one holds is in the digests beside them.
"""

from __future__ import annotations

import tarfile
from pathlib import Path

HERE = Path(__file__).parent
ARCHIVES = ("cleared", "closed", "damaged", "killed", "killed-ring", "live", "ring", "stacks", "vectors")
BOOT = 1  # of the machine that wrote them, see `tests.support.workloads.boot`: in another, a power loss may have been


def unpack(name: str, to: Path) -> Path:
    """Unpack a store below a directory; return its path."""
    with tarfile.open(HERE / f"{name}.tar.xz") as packed:
        packed.extractall(to, filter="data")
    return to / "store"
