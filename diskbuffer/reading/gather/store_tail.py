"""Where the newest rows of a store are, which are compressed only later."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from diskbuffer.store.store import Store


class StoreTail(NamedTuple):
    """One store's tail: the address of each compressed column's rows, how many there are, and what their checksums start from."""

    addresses: Mapping[str, int]
    rows: int
    salt: int

    @classmethod
    def of(cls, store: Store) -> StoreTail:
        """Return a store's own."""
        layout = store.layout
        return cls({path: tail.address for path, tail in store.tails.items()}, layout.tail_rows, layout.salt)
