"""A store to an S3-compatible bucket and back, file by file.

Where to find the bucket, and by which credentials, is told by the environment: ``AWS_ENDPOINT_URL``, ``AWS_REGION``,
``AWS_ACCESS_KEY_ID`` and others that obstore's ``S3Store`` reads.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import timedelta
from pathlib import Path, PurePosixPath
from typing import Any

from diskbuffer.errors import CorruptionError, InputError, LockedError, NotAStoreError, UnreachableError
from diskbuffer.formats.unfinished import Unfinished
from diskbuffer.formats.untrusted import refuse_links
from diskbuffer.plugin import Reader, do_all, is_store, local_path, progress_bar, require, writers_of

_SCHEME = "s3://"
_GROUP = "zarr.json"  # that of the topmost directory makes a store of it
_AT_ONCE = 8  # files
_PATIENCE = {"max_retries": 8, "retry_timeout": timedelta(seconds=60)}


def is_url(path: Any) -> bool:
    """Return whether a path is the URL of a place in a bucket."""
    return isinstance(path, str) and path.startswith(_SCHEME)


class _BucketDirectory:
    """A place in a bucket."""

    def __init__(self, url: str) -> None:
        bucket, _, prefix = url.removeprefix(_SCHEME).partition("/")
        if not bucket or not prefix.strip("/"):
            raise InputError(f"a place in a bucket is s3://BUCKET/PATH, found {url!r}")
        self.url = url.rstrip("/")
        self._obstore = require("obstore", "obstore", "s3", "a store in a bucket")
        self._errors = require("obstore.exceptions", "obstore", "s3")
        http = {"allow_http": True} if os.environ.get("AWS_ENDPOINT_URL", "").startswith("http://") else {}
        with self._requesting("reach", ""):
            self._client = require("obstore.store", "obstore", "s3").S3Store(
                bucket, prefix=prefix.strip("/"), client_options=http, retry_config=_PATIENCE
            )

    @contextlib.contextmanager
    def _requesting(self, what: str, name: str) -> Iterator[None]:
        """Raise what obstore raises as an error that says what was tried."""
        try:
            yield
        except (self._errors.BaseError, FileNotFoundError) as error:
            why = str(error).strip().split("\n")[0][:500]
            if "invalid path" in why:
                raise CorruptionError(
                    f"{self.url} has names that cannot be files of a store; nothing was copied: {why}"
                ) from None
            raise UnreachableError(
                f"could not {what} {self.url}{'/' if name else ''}{name}: {why}. There is no new store. The "
                "same call begins anew; AWS_ENDPOINT_URL, AWS_REGION, AWS_ACCESS_KEY_ID and others say where, and as whom"
            ) from None

    def files(self) -> dict[str, tuple[int, str]]:
        """Return the size and the version of each file, by name; a CorruptionError where a name is none within a directory."""
        with self._requesting("list", ""):
            listed = [one for some in self._obstore.list(self._client) for one in some]
        objects = {str(one["path"]): (int(one["size"]), str(one["e_tag"] or one["last_modified"])) for one in listed}
        above = {"", *(str(path) for name in objects for path in PurePosixPath(name).parents)}
        # Without marks of directories
        objects = {name: known for name, known in objects.items() if name not in above or known[0]}
        for name in objects:
            if name in above or "\0" in name or {"", ".", ".."} & set(name.split("/")):
                raise CorruptionError(f"{self.url} has an object {name!r}, which cannot be a file of a store; nothing was copied")
        return objects

    def get(self, name: str, path: Path) -> None:
        """Write a file that is not there yet."""
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "xb") as file, self._requesting("read", name):
            for data in self._obstore.get(self._client, name).stream():
                file.write(data)

    def put(self, name: str, path: Path) -> None:
        """Send a file."""
        with open(path, "rb") as file, self._requesting("write", name):
            self._obstore.put(self._client, name, file, max_concurrency=2)


def download(url: str, new: str | os.PathLike[str], *, restart: bool, progress: bool) -> Path:
    """Copy a store from a bucket to a directory; see `diskbuffer.editing.copy`."""
    target, directory = local_path(new), _BucketDirectory(url)
    remote = directory.files()
    if _GROUP not in remote:
        raise NotAStoreError(f"there is no store at {url}, or one whose copy was cut short: it has no {_GROUP}")
    sizes = {name: size for name, (size, _) in remote.items()}
    with Unfinished(target, restart=restart) as unfinished:  # no run goes on: the store there may be another by then
        with progress_bar(sum(sizes.values()), 0, progress, "B") as shown:
            for wave in _waves(sizes):
                _copy_all(lambda name: directory.get(name, unfinished.place / name), wave, sizes, shown.update)
        if _sizes(_statuses(unfinished.place)) != sizes or directory.files() != remote:
            raise CorruptionError(f"{url} was replaced or removed while it was copied; copy it again once its upload is complete")
        unfinished.finish()
        return unfinished.target


def upload(store: str | os.PathLike[str], url: str, *, progress: bool) -> str:
    """Copy a store that nobody has open for writing to a bucket; see `diskbuffer.editing.copy`."""
    path = local_path(store)
    _refuse_open(path)
    refuse_links(path)
    directory, before = _BucketDirectory(url), _statuses(path)
    sizes = _sizes(before)
    remote = directory.files()
    if _GROUP in remote or remote.keys() - sizes.keys():
        strange = _GROUP if _GROUP in remote else min(remote.keys() - sizes.keys())
        raise InputError(f"there is something at {url} already, such as {strange}; give a path at which there is nothing")
    with progress_bar(sum(sizes.values()), 0, progress, "B") as shown:
        for wave in _waves(sizes):
            if wave == [_GROUP]:
                _refuse_open(path)
                if _statuses(path) != before:
                    raise LockedError(f"{path} was written to while it was copied; copy it again once it is closed")
                arrived = {name: size for name, (size, _) in directory.files().items()}
                if arrived != {name: size for name, size in sizes.items() if name != _GROUP}:
                    raise CorruptionError(f"what is at {url} is not what was copied there; is somebody else copying there, too?")
            _copy_all(lambda name: directory.put(name, path / name), wave, sizes, shown.update)
    return directory.url


def _waves(names: Iterable[str]) -> list[list[str]]:
    """Return names in the order in which they are copied: that which makes a store of a directory after all that is in it."""
    groups = [name for name in names if name.rsplit("/", 1)[-1] == _GROUP and name != _GROUP]
    return [[name for name in names if name not in {*groups, _GROUP}], groups, [_GROUP]]


def _copy_all(copy: Callable[[str], None], names: Iterable[str], sizes: Mapping[str, int], report: Callable[[int], Any]) -> None:
    """Copy files, some at the same time; after an error none is begun any more."""
    do_all(copy, names, _AT_ONCE, "diskbuffer-copy", lambda name: report(sizes[name]))


def _refuse_open(path: Path) -> None:
    """Raise an error where there is no store, or somebody writes to it, or the last who did has not closed it."""
    if not is_store(path):
        raise NotAStoreError(f"there is no store at {path}")
    writer, names = Reader(path).writer, writers_of(path)
    if writer is not None:
        who = f"process {writer['pid']}" if writer["pid"] else "another process"
        raise LockedError(f"{path} is being written to by {who}; close it there, or copy a snapshot")
    for one in [path] if names is None else [path / name for name in names if is_store(path / name)]:
        if Reader(one).usage().last_shutdown != "clean":
            raise InputError(f"{one} was not closed by its last writer; open it with mode='r+' and close it, or copy a snapshot")


def _statuses(path: Path) -> dict[str, tuple[int, int, int]]:
    """Return what changes when a file below a directory does, by name."""
    files = [(file, file.lstat()) for file in path.rglob("*") if not file.is_dir()]
    return {file.relative_to(path).as_posix(): (status.st_ino, status.st_size, status.st_mtime_ns) for file, status in files}


def _sizes(statuses: Mapping[str, tuple[int, int, int]]) -> dict[str, int]:
    return {name: size for name, (_, size, _) in statuses.items()}
