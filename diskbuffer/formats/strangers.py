"""Files of strangers: what decoders raise of damaged ones, and how much larger than a file what it holds may be."""

from __future__ import annotations

import contextlib
import lzma
import struct
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path

from diskbuffer.errors import InputError, SourceError

RATIO = 200  # by default: pictures have 2 to 50 times the size of their files
_SMALL = 256 * 1024**2  # bytes that data may have in any case


def refuse_bombs(path: Path, size: int, total: int, ratio: int) -> None:
    """Raise a SourceError where files of `size` bytes claim to hold `total` bytes of arrays, and that is too much."""
    if not isinstance(ratio, int) or ratio < 1:
        raise InputError(f"max_ratio must be a whole number of at least 1, found {ratio!r}")
    if total > max(_SMALL, ratio * size):
        raise SourceError(
            f"{path} has {size:,} bytes, and its arrays {total:,}: it may be a zip bomb. If it is not, allow it: "
            f"--option max_ratio={-(-total // max(size, 1))} (in Python, max_ratio=)"
        )


@contextlib.contextmanager
def damaged(path: Path, what: str) -> Iterator[None]:
    """Turn what zipfile, numpy and decoders raise of damaged files into SourceErrors.

    Parameters
    ----------
    path : pathlib.Path
        Of the file.
    what : str
        It should be, such as "an .npz file".
    """
    try:
        yield
    except (SourceError, FileNotFoundError, PermissionError, IsADirectoryError):
        raise
    except (zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error, EOFError, ValueError, RuntimeError, OSError) as error:
        raise SourceError(f"{path} is damaged, or is not {what}: {error}") from error
