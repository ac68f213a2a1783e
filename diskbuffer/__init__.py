"""Replay buffers on disk: single frames, compressed, in a Zarr store, sampled faster than from RAM."""

from diskbuffer.buffer import ReplayBuffer
from diskbuffer.errors import (
    ClosedError,
    CorruptionError,
    DiskBufferError,
    EmptyBufferError,
    FormatError,
    InputError,
    LockedError,
    NotAStoreError,
    ReadOnlyError,
    SchemaError,
    StackError,
)
from diskbuffer.samplers import Uniform
from diskbuffer.schema import Column
from diskbuffer.version import __version__

__all__ = [
    "ClosedError",
    "Column",
    "CorruptionError",
    "DiskBufferError",
    "EmptyBufferError",
    "FormatError",
    "InputError",
    "LockedError",
    "NotAStoreError",
    "ReadOnlyError",
    "ReplayBuffer",
    "SchemaError",
    "StackError",
    "Uniform",
    "__version__",
]
