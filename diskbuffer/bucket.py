"""Where a store is: a directory of this machine, or a bucket of objects."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from diskbuffer.errors import InputError
from diskbuffer.integers import integer
from diskbuffer.paths import local_path

_SCHEME = "s3://"
_SMALLEST_BLOCK, _LARGEST_BLOCK = 4096, 16 * 1024**2
_MOST_REQUESTS = 1024


class Bucket:
    """A store in an S3-compatible bucket, to be read in place: ``db.ReplayBuffer(db.Bucket("s3://runs/pong"), mode="r")``.

    What is read is kept in a directory of this machine, the cache, as far as there is room for it; so what is read again comes
    from the local disk. It stays there for other processes and later ones, until the store in the bucket is another. Several
    processes, and several stores, may use one directory at the same time: `cache_bytes` is what all of it may take. What was
    read longest ago makes room first. What batches are being made of is never taken away; its space is given back when they are
    done. The directory may be removed whenever nobody uses it.

    A bucket knows no writers: what is there is the copy of a store that was closed (or a snapshot), made by any tool, such as
    ``aws s3 cp --recursive``. The store must not change while it is read; that it did is an error, and never a mixture of both.

    Parameters
    ----------
    url : str
        ``s3://BUCKET/PATH`` of the store, the directory that has ``zarr.json``.
    cache : path-like, optional
        The directory; by default ``diskbuffer`` in ``$XDG_CACHE_HOME``, or in ``~/.cache``. It should be on a fast local disk.
    cache_bytes : int
        What the directory may take on the disk. Of what is being read at the moment, more may be there.
    requests : int
        How many requests are made at the same time, at most.
    block_bytes : int
        A power of two from 4 KiB to 16 MiB: what is asked for at once, at least. Larger blocks take fewer requests until all of a
        store is in the cache; smaller ones read less that nobody wants, where the store is larger than the cache.
    options : mapping, optional
        As ``obstore.store.S3Store`` takes them: ``endpoint``, ``region``, ``access_key_id``, ``secret_access_key``,
        ``skip_signature``, ``virtual_hosted_style_request``, ``client_options`` (such as ``{"timeout": "10s"}``),
        ``retry_config``, and others. What is left out comes from the environment (``AWS_ENDPOINT_URL``, ``AWS_REGION``,
        ``AWS_ACCESS_KEY_ID``, ...), or from the machine's role. Credentials are never written into the cache, nor shown.

    Raises
    ------
    InputError
        An argument does not fit.

    Notes
    -----
    Requests that fail for a moment, or are told to slow down, are made again by obstore, with longer and longer waits, for a
    minute at most.
    """

    def __init__(
        self,
        url: str,
        *,
        cache: str | os.PathLike[str] | None = None,
        cache_bytes: int = 10 * 1024**3,
        requests: int = 64,
        block_bytes: int = 64 * 1024,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        bucket, _, path = url.removeprefix(_SCHEME).partition("/") if is_url(url) else ("", "", "")
        if not bucket or "?" in url or "#" in url:
            raise InputError(f"a store in a bucket is named as in 's3://bucket/path', found {url!r}")
        block_bytes = integer("block_bytes", block_bytes, _SMALLEST_BLOCK, _LARGEST_BLOCK)
        if block_bytes & (block_bytes - 1):
            raise InputError(f"block_bytes must be a power of two from 4 KiB to 16 MiB, found {block_bytes}")
        cache_bytes = integer("cache_bytes, which hold a block at least,", cache_bytes, block_bytes)
        requests = integer("requests", requests, 1, _MOST_REQUESTS)
        self.bucket, self.prefix = bucket, "/".join(part for part in path.split("/") if part)
        self.url = f"{_SCHEME}{bucket}/{self.prefix}".rstrip("/")
        self.cache = local_path(cache if cache is not None else _default_cache())
        self.cache_bytes, self.requests, self.block_bytes = cache_bytes, requests, block_bytes
        self.options = dict(options or {})

    def __truediv__(self, name: str) -> str:
        return f"{self.url}/{name}"

    def __str__(self) -> str:
        return self.url

    def __repr__(self) -> str:  # and no options, which may be credentials
        return f"Bucket({self.url!r}, cache={str(self.cache)!r}, cache_bytes={self.cache_bytes})"


def is_url(path: Any) -> bool:
    """Tell whether a path is a URL of a bucket."""
    return isinstance(path, str) and path.startswith(_SCHEME)


def place_of(path: Any) -> Path | Bucket:
    """Return where a store is, as users say it: a directory, or a bucket or its URL."""
    if isinstance(path, Bucket):
        return path
    return Bucket(path) if is_url(path) else local_path(path)


def directory_of(place: Path | Bucket, but: str) -> Path:
    """Return where a store is on this machine; an InputError where it is in a bucket, that says what is not there."""
    if isinstance(place, Bucket):
        raise InputError(f"{place} is in a bucket, where {but}; copy it to a directory, as `aws s3 cp --recursive` does")
    return place


def _default_cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "diskbuffer"
