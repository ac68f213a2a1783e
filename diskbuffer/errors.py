"""Every exception that diskbuffer raises on purpose.

DiskBufferError
├── InputError (ValueError)           what was given to a call does not fit; nothing was changed
│   ├── SchemaError                   the store holds other columns, or the columns cannot be stored
│   ├── StackError                    observations that are not the rolling stack they seem to be
│   └── LossError                     what is to be exported or imported cannot all be held by the other side
├── EmptyBufferError (LookupError)    there is nothing to sample yet
├── EvictedError (LookupError)        a writer elsewhere evicts steps faster than this reader can read them
├── ClosedError (ValueError)          the buffer was closed
├── LimiterTimeoutError (TimeoutError) one side waited too long for the other, as limiter= has it
├── ReadOnlyError (OSError)           writing to a buffer opened with mode="r"
├── LockedError (OSError)             another process writes to this store
├── UnreachableError (TimeoutError)   none of the shards on other machines answers in time
├── MissingPackageError (ImportError) a call needs a package that only an extra brings along
├── NotAStoreError (OSError)          the path holds something else, or nothing where a store must be
├── FormatError (OSError)             the store is of another format than this version reads
├── BucketError (OSError)             a bucket cannot be read now, or what was read cannot be kept in the cache
├── SourceError (OSError)             a file of another format is damaged, or is not what it should be
└── CorruptionError (OSError)         bytes on disk that cannot be what was written
"""

__all__ = [
    "BucketError",
    "ClosedError",
    "CorruptionError",
    "DiskBufferError",
    "EmptyBufferError",
    "EvictedError",
    "FormatError",
    "InputError",
    "LimiterTimeoutError",
    "LockedError",
    "LossError",
    "MissingPackageError",
    "NotAStoreError",
    "ReadOnlyError",
    "SchemaError",
    "SourceError",
    "StackError",
    "UnreachableError",
]


class DiskBufferError(Exception):
    """Base of all errors that diskbuffer raises on purpose."""


class InputError(DiskBufferError, ValueError):
    """An argument does not fit; the buffer is as it was."""


class SchemaError(InputError):
    """Columns that cannot be stored, or that differ from those of the store."""


class StackError(InputError):
    """Stacked observations that are not a rolling stack of the frames before."""


class LossError(InputError):
    """The other side cannot hold all that is to be exported or imported; the message names what, and how to go on without."""


class EmptyBufferError(DiskBufferError, LookupError):
    """There is no complete step to sample."""


class EvictedError(DiskBufferError, LookupError):
    """A writer in another process evicts steps faster than this reader can read them."""


class ClosedError(DiskBufferError, ValueError):
    """The buffer was used after `close`."""


class LimiterTimeoutError(DiskBufferError, TimeoutError):
    """An actor or a learner waited too long for the other side; the message says for what. Nothing was added, or sampled."""


class ReadOnlyError(DiskBufferError, OSError):
    """A buffer opened with ``mode="r"`` was asked to write."""


class LockedError(DiskBufferError, OSError):
    """Another writer, living, holds the store."""


class UnreachableError(DiskBufferError, TimeoutError):
    """No shard answers in time; those that come back are used again."""


class MissingPackageError(DiskBufferError, ImportError):
    """A package that is not part of every installation is needed; the message says how to install it."""


class NotAStoreError(DiskBufferError, OSError):
    """The path is no diskbuffer store, or there is none where one must be."""


class FormatError(DiskBufferError, OSError):
    """The store was written in a format that this version does not read; the message says what to do."""


class BucketError(DiskBufferError, OSError):
    """A bucket could not be reached, or did not allow it, or the disk of its cache is full; the buffer stays open."""


class SourceError(DiskBufferError, OSError):
    """A file that is to be imported is damaged, or is not what its format says."""


class CorruptionError(DiskBufferError, OSError):
    """What was read from the store cannot be what was written to it."""
