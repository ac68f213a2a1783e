"""A buffer that other libraries hold: opened late, for reading until something is written, and pickled as its path."""

from __future__ import annotations

import atexit
import gc
import os
import secrets
import sys
import weakref
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from diskbuffer.arguments.integers import integer_or_none
from diskbuffer.arguments.paths import local_path
from diskbuffer.buffer import ReplayBuffer
from diskbuffer.errors import InputError, LockedError
from diskbuffer.runtime import forks
from diskbuffer.runtime.dropped import close_dropped
from diskbuffer.schema.environment import as_json
from diskbuffer.schema.schema import Column, is_observation
from diskbuffer.store.format.sizes import PACKED_ROW_BYTES
from diskbuffer.writers.description import is_readable

_writers: weakref.WeakValueDictionary[str, SharedStore] = weakref.WeakValueDictionary()
_open_at_exit: weakref.WeakSet[SharedStore] = weakref.WeakSet()


class SharedStore:
    """A store that is opened read-only where it is there, and for writing by the first write.

    A model that is loaded to be evaluated, while it is trained elsewhere, needs no lock. What was pickled, and is loaded in the
    same process, takes the lock over.

    Parameters
    ----------
    path : path-like
    codec : str, or mapping of str to str, optional
        As of `Column`, for a store that is made: of all observations whose rows are compressed, or of columns by their path.
    **options
        Of `ReplayBuffer`, in every mode.

    Attributes
    ----------
    lock : threading.RLock
        Held while it is opened, and while a subclass changes what it knows of the store.
    """

    def __init__(self, path: str | os.PathLike[str], *, codec: str | Mapping[str, str] | None = None, **options: Any) -> None:
        for name in ("threads", "segment_rows"):  # or what is wrong with them shows at the first write only
            if name in options:
                options[name] = integer_or_none(name, options[name])
        if "metadata" in options:
            options["metadata"] = as_json("metadata", options["metadata"])
        for each in codec.values() if isinstance(codec, Mapping) else [codec]:
            Column((64, 64, 3), "uint8", codec=each)
        self.path, self._codec, self._options = local_path(path), codec, options
        self._identity = secrets.token_hex(8)
        self.lock = forks.new_lock(reentrant=True)
        self._buffer: ReplayBuffer | None = None
        self._closing: weakref.finalize[Any, Any]
        self._writes = False

    @property
    def writes(self) -> bool:
        """Whether it is open for writing."""
        return self._writes

    @property
    def buffer(self) -> ReplayBuffer | None:
        """The store, if there is one yet."""
        return self._buffer

    @property
    def opened(self) -> ReplayBuffer:
        """The store, opened for reading if it was not open; there must be one."""
        buffer = self.open_to_read()
        assert buffer is not None
        return buffer

    def accept(self, opened: ReplayBuffer) -> None:
        """Load what the store is; a SchemaError where it cannot be used."""

    def open_to_read(self) -> ReplayBuffer | None:
        """Open it where it is there and not open yet."""
        buffer = self._buffer
        if buffer is not None:
            return buffer
        with self.lock:
            if self._buffer is None and is_readable(self.path):
                opened = ReplayBuffer(self.path, **self._options, mode="r")
                opened._access.to_write = "open_to_write() opens it to write"
                self._take(opened, writes=False)
            return self._buffer

    def reload(self) -> None:
        """Load again what the store is: a write failed, or was interrupted, or others wrote."""
        with self.lock:
            if self._buffer is None:
                self.open_to_read()
            else:
                self.accept(self._buffer)

    def open_to_write(self, **how: Any) -> ReplayBuffer:
        """Open it for writing; `how` is for a new one, and must fit one that is there.

        Threads that read go on with what they have, which is open until they have done; but not those of another that this one
        was pickled from, and whose lock it takes over.
        """
        with self.lock:
            if not self._writes:
                self._take(self._locked(how), writes=True)
                _writers[self._identity] = self
                self._close_at_exit()
            assert self._buffer is not None
            return self._buffer

    def _close_at_exit(self) -> None:
        """Be closed where the interpreter ends, before what it needs is gone: what was registered last runs first."""
        _open_at_exit.add(self)
        atexit.unregister(_close_all)
        atexit.register(_close_all)

    def _locked(self, how: Mapping[str, Any]) -> ReplayBuffer:
        before = _writers.pop(self._identity, None)
        if before is not None and before is not self:  # that this one was pickled from: it is the same buffer
            before.close()
        options = self._options | dict(how)
        if self._codec is not None and "columns" in options and not is_readable(self.path):
            options["columns"] = _with_codec(options["columns"], self._codec)
        try:
            return ReplayBuffer(self.path, **options)
        except LockedError:  # perhaps by something that nobody has any more: libraries' callbacks keep models alive for a while
            gc.collect()
            return ReplayBuffer(self.path, **options)

    def _take(self, opened: ReplayBuffer, *, writes: bool) -> None:
        try:
            self.accept(opened)
        except BaseException:
            opened.close()
            raise
        if self._buffer is not None:
            self._closing.detach()
        self._buffer, self._writes = opened, writes
        self._closing = weakref.finalize(self, _close, opened)
        self._closing.atexit = False

    def close(self) -> None:
        """Close the store; the next use opens it again."""
        with self.lock:
            if self._buffer is not None:
                self._closing.detach()
                self._buffer.close()
            self._buffer, self._writes = None, False

    def flush(self) -> None:
        """Sync everything to the disk, if anything was written here."""
        if self._buffer is not None and self._writes:
            self._buffer.flush()

    def __getstate__(self) -> dict[str, Any]:
        """Return what it takes to open it again elsewhere: no data."""
        self.flush()
        state = self.__dict__ | {"_buffer": None, "_writes": False}
        del state["lock"]
        state.pop("_closing", None)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state | {"lock": forks.new_lock(reentrant=True)})
        self.open_to_read()


def _with_codec(columns: Mapping[str, Column], codec: str | Mapping[str, str]) -> dict[str, Column]:
    """Return columns with the codecs that were asked for; an InputError where there is none of a path."""
    if isinstance(codec, str):
        codec = {path: codec for path, each in columns.items() if is_observation(path) and each.row_bytes >= PACKED_ROW_BYTES}
    if unknown := sorted(codec.keys() - columns.keys()):
        raise InputError(f"codec= names {unknown[0]!r}, and there is no such column; there are {', '.join(columns)}")
    return {path: replace(each, codec=codec.get(path, each.codec)) for path, each in columns.items()}


def _close_all() -> None:
    for late in list(_open_at_exit):
        close_or_tell(late.close, late.path)


def close_or_tell(close: Callable[[], None], path: Path) -> None:
    """Close a store where nobody could catch an error: it is told in a line, such as that the directory is gone."""
    try:
        close()
    except Exception as error:  # noqa: BLE001  others are still to be closed
        print(f"diskbuffer: {path} could not be closed: {error}", file=sys.stderr)


def _close(opened: ReplayBuffer) -> None:
    """Close a buffer that nobody has any more."""
    close_dropped(lambda: close_or_tell(opened.close, opened.path), is_busy=opened._store.holds_lock())
