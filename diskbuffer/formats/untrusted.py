"""Untrusted files: what decoders raise of damaged ones, and links, which are not followed."""

from __future__ import annotations

import contextlib
import errno
import lzma
import os
import stat
import struct
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from tokenize import TokenError

from diskbuffer.errors import DiskBufferError, SourceError

# What is raised of damage; TokenError by numpy, of the header of an array.
_DAMAGE = (zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error, EOFError, ValueError, RuntimeError, OSError, TokenError)


def refuse_links(path: Path) -> None:
    """Raise a SourceError where a directory holds, at any depth, anything that is neither a file nor a directory.

    Readers open what is in a data set by name, some of them in C. With a link a stranger's data set could have them read a file
    of the user's, and with a pipe wait for ever. `path` itself is the user's, and may be a link. Links of a Hugging Face cache
    are followed, from a snapshot to its files.
    """
    left = [str(path)]
    try:
        while left:
            with os.scandir(left.pop()) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        left.append(entry.path)
                    else:
                        _refuse_special(entry.path, entry.stat(follow_symlinks=False).st_mode)
    except OSError as error:
        if isinstance(error, SourceError):
            raise
        raise SourceError(f"{path} cannot be read: {error}") from error


def is_file_beside(directory: Path, *names: str) -> bool:
    """Return whether there is a file beside what a user named; a SourceError where one of these names is a link or a pipe.

    Parameters
    ----------
    directory : pathlib.Path
        Where what the user named is.
    *names : str
        Of the directories that the file is in there, and of the file.
    """
    path = directory
    for name in names:
        path = path / name
        try:
            mode = os.lstat(path).st_mode
        except (FileNotFoundError, NotADirectoryError):
            return False
        if not stat.S_ISDIR(mode):
            _refuse_special(str(path), mode)
    return not stat.S_ISDIR(mode)


def _refuse_special(path: str, mode: int) -> None:
    if stat.S_ISLNK(mode):
        if _is_of_a_cache(Path(path)):
            return
        raise SourceError(f"{path} is a link, and links in data sets are not followed; copy the data set with `cp -rL`")
    if not stat.S_ISREG(mode):
        raise SourceError(f"{path} is neither a file nor a directory, and a data set has nothing else; remove it")


def _is_of_a_cache(link: Path) -> bool:
    """Return whether a link is as a Hugging Face cache has them: from CACHE/snapshots/REVISION/... to a file in CACHE/blobs."""
    file, place = Path(os.path.realpath(link)), Path(os.path.realpath(link.parent))
    snapshots = file.parent.parent / "snapshots"
    return file.parent.name == "blobs" and file.is_file() and snapshots in place.parents


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
    except DiskBufferError:
        raise
    except _DAMAGE as error:
        if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL, errno.EISDIR):
            raise  # it tells of the disk, or of who may read
        raise SourceError(f"{path} is damaged, or is not {what}: {error}") from error
