"""The table of an `Index`: what it has of each stream, one row of int64; see `native/kernels/table.hpp`."""

from diskbuffer.native.index import ENDED, EPISODES, FIELDS, FLOOR, HEAD, LOW, OWN, SEGMENTS, STORE

__all__ = ["ENDED", "EPISODES", "FIELDS", "FLOOR", "HEAD", "LOW", "OWN", "SEGMENTS", "STORE"]
