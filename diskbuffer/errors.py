"""Every exception that diskbuffer raises on purpose, in five groups by what a caller would do.

DiskBufferError
├── TryAgainError                         the same call may succeed later
│   ├── DiskFullError (OSError)           the disk, or a quota, has no room: what was added before is kept
│   ├── EmptyBufferError (LookupError)    there is nothing to sample yet
│   ├── EvictedError (LookupError)        a writer elsewhere evicts steps faster than this reader can read them
│   ├── LimiterTimeoutError (TimeoutError) one side waited too long for the other, as limiter= has it
│   └── UnreachableError (TimeoutError)   no machine of a cluster answers in time, or a bucket does not
├── InputError (ValueError)               wrong use, such as an argument that does not fit; nothing was changed
│   ├── SchemaError                       the store holds other columns, or the columns cannot be stored
│   ├── StackError                        observations that are not the rolling stack they seem to be
│   ├── LossError                         what is to be exported or imported cannot all be held by the other side
│   ├── ClosedError                       the buffer was closed
│   ├── ReadOnlyError (OSError)           writing to a buffer opened with mode="r"
│   ├── MissingPackageError (ImportError) a call needs a package that only an extra brings along
│   └── FormatError (OSError)             the store is of a format that this version does not read
├── CorruptionError (OSError)             bytes on disk that cannot be what was written
│   └── SourceError                       a file of another format is damaged, or is not what it should be
├── NotFoundError                         what was named is not there
│   └── NotAStoreError (OSError)          the path holds something else, or nothing where a store must be
└── LockedError (OSError)                 another process writes to this store
"""

from typing import Any, Self

__all__ = [
    "ClosedError",
    "CorruptionError",
    "DiskBufferError",
    "DiskFullError",
    "EmptyBufferError",
    "EvictedError",
    "FormatError",
    "InputError",
    "LimiterTimeoutError",
    "LockedError",
    "LossError",
    "MissingPackageError",
    "NotAStoreError",
    "NotFoundError",
    "ReadOnlyError",
    "SchemaError",
    "SourceError",
    "StackError",
    "TryAgainError",
    "UnreachableError",
]


class DiskBufferError(Exception):
    """Base of all errors that diskbuffer raises on purpose.

    Attributes
    ----------
    option : str
        The argument that does not fit, as the message names it first; "" where it is none. A command line says "--chunk-rows".
    advice : str
        The end of the message, where that says what to do in Python; "" where it does not. An adapter advises something else.
    """

    option = advice = ""  # of a MissingPackageError, too, which ImportError makes

    def __init__(self, *args: Any, option: str = "", advice: str = "") -> None:
        self.option, self.advice = option, advice
        self._what = str(args[0]) if args else ""
        super().__init__(f"{self._what}{_between(self._what)}{advice}" if advice else self._what)

    def advising(self, advice: str) -> Self:
        """Return the same error with other advice."""
        return type(self)(self._what, option=self.option, advice=advice)


def _between(what: str) -> str:
    return "\n" if "\n" in what else " " if what.endswith("?") else ". "


class TryAgainError(DiskBufferError):
    """The same call may succeed later."""


class DiskFullError(TryAgainError, OSError):
    """The disk has no room, or the quota is used up. What was added before is kept, and sampling goes on; `errno` tells which."""


class EmptyBufferError(TryAgainError, LookupError):
    """There is no complete step to sample."""


class EvictedError(TryAgainError, LookupError):
    """A writer in another process evicts steps faster than this reader can read them."""


class LimiterTimeoutError(TryAgainError, TimeoutError):
    """An actor or a learner waited too long for the other side; the message says for what. Nothing was added, or sampled."""


class UnreachableError(TryAgainError, TimeoutError):
    """No node of a cluster answers in time; those that come back are used again. Or a bucket does not answer, or allow it."""


class InputError(DiskBufferError, ValueError):
    """Wrong use, such as an argument that does not fit; the buffer is as it was."""


class LookupInputError(InputError, IndexError, KeyError):
    """An InputError of what is indexed as a sequence or a mapping, and caught as Python has it."""

    __str__ = Exception.__str__  # a KeyError shows its message in quotes


class SchemaError(InputError):
    """Columns that cannot be stored, or that differ from those of the store."""


class StackError(InputError):
    """Stacked observations that are not a rolling stack of the frames before."""


class LossError(InputError):
    """The other side cannot hold all that is to be exported or imported; the message names what, and how to go on without."""


class ClosedError(InputError):
    """The buffer was used after `close`."""


class ReadOnlyError(InputError, OSError):
    """A buffer opened with ``mode="r"`` was asked to write."""


class MissingPackageError(ImportError, InputError):  # ImportError first, which sets msg
    """A package that is not part of every installation is needed; the message says how to install it."""


class FormatError(InputError, OSError):
    """The store was written in a newer format."""


class CorruptionError(DiskBufferError, OSError):
    """What was read from the store cannot be what was written to it."""


class SourceError(CorruptionError):
    """A file that is to be imported is damaged, or is not what its format says."""


class NotFoundError(DiskBufferError):
    """What was named is not there."""


class NotAStoreError(NotFoundError, OSError):
    """The path is no diskbuffer store, or there is none where one must be."""


class LockedError(DiskBufferError, OSError):
    """Another writer, living, holds the store."""


# The InputErrors that tell of a buffer, a store or an installation, and not of an argument.
NOT_OF_ARGUMENTS = (ClosedError, FormatError, MissingPackageError, ReadOnlyError)
