"""Objects of a bucket: which there are, and parts of them, many requests at once.

Every request names the version of the object that was there when the store was opened, by its ETag. So what is read is of one
version, or it is an error.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

from diskbuffer.bucket import Bucket
from diskbuffer.errors import BucketError, CorruptionError, InputError
from diskbuffer.runtime import forks
from diskbuffer.runtime.packages import require

T = TypeVar("T")
_TRIES = 4  # of a request whose answer is cut short: obstore makes others again itself
_SECONDS = 60  # for which it does so
_PATIENCE: dict[str, Any] = {"connect_timeout": "5s", "timeout": "30s"}


@dataclass(frozen=True)
class Object:
    """What is known of one.

    Attributes
    ----------
    size : int
    version : str
        The ETag; where the server tells none, when it was written.
    tagged : bool
        Whether that is an ETag.
    """

    size: int
    version: str
    tagged: bool


class Objects:
    """Requests to a bucket, in threads of their own; any number of callers at once.

    Attributes
    ----------
    requests, received : int
        How many parts were asked for, and their bytes.
    """

    def __init__(self, bucket: Bucket) -> None:
        self._bucket, self._process = bucket, os.getpid()
        self._obstore = require("obstore", "obstore", "s3", "a store in a bucket")
        self._errors = require("obstore.exceptions", "obstore", "s3")
        self._client = self._connect()
        self._pool = ThreadPoolExecutor(bucket.requests, "diskbuffer-bucket")
        self._counting = forks.new_lock()
        self.requests = self.received = 0

    def _connect(self) -> Any:
        options = dict(self._bucket.options)
        self.endpoint = str(options.get("endpoint") or os.environ.get("AWS_ENDPOINT_URL") or "")
        allow_http = {"allow_http": True} if self.endpoint.startswith("http://") else {}
        options["client_options"] = _PATIENCE | allow_http | dict(options.get("client_options") or {})
        options.setdefault("retry_config", {"max_retries": 8, "retry_timeout": timedelta(seconds=_SECONDS)})
        store = require("obstore.store", "obstore", "s3").S3Store
        try:
            return store(self._bucket.bucket, prefix=self._bucket.prefix or None, **options)
        except (self._errors.BaseError, TypeError, ValueError) as error:
            raise InputError(f"{self._bucket}: obstore does not take these options: {_first_line(error)}") from None

    def list_all(self) -> dict[str, Object]:
        """Return all objects of the store, by name; nothing where there are none."""

        def ask() -> dict[str, Object]:
            found: dict[str, Object] = {}
            for some in self._obstore.list(self._client, chunk_size=1000):
                for one in some:
                    tag = one["e_tag"]
                    found[one["path"]] = Object(one["size"], tag or str(one["last_modified"]), bool(tag))
            return found

        return self._asked("", ask)

    def get(self, name: str, known: Object, begin: int, end: int) -> Any:
        """Return bytes `begin` to `end` of an object, in something that is a buffer."""
        options: dict[str, Any] = {"range": (begin, end)} | ({"if_match": known.version} if known.tagged else {})

        def ask() -> Any:
            answer = self._obstore.get(self._client, name, options=options)
            data = answer.bytes()
            if answer.meta["size"] != known.size:
                raise self._changed(name)
            if len(data) != end - begin:
                raise _CutShortError(f"{end - begin} bytes were asked for, {len(data)} came")
            return data

        data = self._asked(name, ask)
        with self._counting:
            self.requests, self.received = self.requests + 1, self.received + end - begin
        return data

    def each(self, call: Callable[[T], Any], tasks: Sequence[T]) -> list[Any]:
        """Return what a call that makes requests returns for each task, some at the same time."""
        if len(tasks) < 2:
            return [call(task) for task in tasks]
        self._refuse_forks()
        try:
            waiting = [self._pool.submit(call, task) for task in tasks]
        except RuntimeError:  # the threads have ended, as does the interpreter, perhaps
            return [call(task) for task in tasks]
        try:
            return [one.result() for one in waiting]
        finally:
            for one in waiting:  # after an error, or a Ctrl-C
                one.cancel()

    def close(self) -> None:
        """End the threads; what is still asked for is asked for in the caller's."""
        self._pool.shutdown(wait=False)

    def _refuse_forks(self) -> None:
        if os.getpid() != self._process:
            raise BucketError(
                f"{self._bucket} was opened by process {self._process}, of which this one is a fork, where no requests can be "
                "made; open it here, or have worker processes started by 'spawn' or 'forkserver'"
            )

    def _asked(self, name: str, ask: Callable[[], T]) -> T:
        """Return what a request returns; what it raises as an error that says what to do."""
        self._refuse_forks()
        try:
            return self._whole(ask)
        except FileNotFoundError:
            if not name:
                raise self._no_bucket() from None
            raise self._changed(name) from None
        except self._errors.PreconditionError:
            raise self._changed(name) from None
        except (self._errors.BaseError, _CutShortError) as error:
            what, refused = _first_line(error), (self._errors.PermissionDeniedError, self._errors.UnauthenticatedError)
            if isinstance(error, refused) or "403 Forbidden" in what or "401 Unauthorized" in what:
                raise BucketError(
                    f"{self._bucket / name}: access was denied ({what}). Give credentials that may list and get objects, in the "
                    "environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, ...), or as options= of the Bucket"
                ) from None
            if not name and "404 Not Found" in what:
                raise self._no_bucket() from None
            raise BucketError(
                f"{self._bucket / name} could not be read: {what}. Once the server can be reached, call again; what was read "
                "before can still be read"
            ) from None

    def _whole(self, ask: Callable[[], T]) -> T:
        """Return what a request returns, made again where its answer was cut short."""
        for _ in range(_TRIES - 1):
            try:
                return ask()
            except (self._errors.GenericError, _CutShortError) as error:
                if isinstance(error, self._errors.GenericError) and "body" not in str(error):
                    raise
        return ask()

    def _no_bucket(self) -> BucketError:
        return BucketError(f"there is no bucket {self._bucket.bucket!r} here, or it is elsewhere; check endpoint and region")

    def _changed(self, name: str) -> CorruptionError:
        return CorruptionError(
            f"{self._bucket / name} was replaced or removed since the store was opened; a store in a bucket must not change "
            "while it is read. Open it again once its upload is complete"
        )


class _CutShortError(Exception):
    """An answer has fewer bytes than were asked for, though all that it promised."""


def _first_line(error: BaseException) -> str:
    return str(error).strip().split("\n")[0][:500]
