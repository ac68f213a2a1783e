"""The process that reads a stranger's files, which are opened nowhere else.

An import starts one of these, the first time, which has read nothing itself. For each source it forks a process with limits, that
opens the source and tells `confined.ConfinedSource` what there is; see `wire`. What a file makes of that process, it has no
other way to tell.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import os
import resource
import signal
import socket
import sys
import traceback
import warnings
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from diskbuffer import Column
from diskbuffer.errors import DiskBufferError
from diskbuffer.formats.blocks import Block, Wanted, blocks
from diskbuffer.formats.described import describe
from diskbuffer.formats.forks import LONGEST_NAME
from diskbuffer.formats.registry import OURS, find
from diskbuffer.formats.wire import Wire
from diskbuffer.plugin import Source, for_command_line

_DIES_WITH_ITS_PARENT = 1  # PR_SET_PDEATHSIG of Linux
_IDLE = 10.0  # seconds
# What a format needs to read any file of it, where that takes long to import
_LIBRARIES: dict[str, tuple[str, ...]] = {"lerobot": ("pyarrow.compute", "pyarrow.parquet")}
_LIBRARIES |= dict.fromkeys(("d4rl", "libero", "maniskill", "minari", "robomimic"), ("h5py",))
_MESSAGE = 1024**2  # bytes of arrays
_MOST_BLOCKS = 256


def main(control: int) -> None:
    """Fork a process for each connection that is sent, and tell how a process ended that is asked for.

    Until the parent ends, or sends nothing for a while, and all processes were asked for. With a connection comes the name of a
    format: what each of its processes would import is imported here, once.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it is for the import, which closes connections
    forked = 0
    with socket.socket(fileno=control) as parent:
        while True:
            parent.settimeout(None if forked else _IDLE)
            try:
                data, connections, _, _ = socket.recv_fds(parent, LONGEST_NAME, 1)
            except TimeoutError:
                return
            if not data:
                return
            if not connections:
                _, status = os.waitpid(int.from_bytes(data, "little"), 0)
                forked -= 1
                parent.sendall(status.to_bytes(8, "little"))
                continue
            _import_for(data.decode(errors="replace"))
            forked += 1
            with socket.socket(fileno=connections[0]) as connection:
                pid = os.fork()
                if pid == 0:
                    try:
                        parent.close()
                        _serve(connection)
                    finally:
                        os._exit(1)
            parent.sendall(pid.to_bytes(8, "little"))


def _import_for(format: str) -> None:
    if format in OURS:
        with contextlib.suppress(Exception):  # the process that reads says it
            find(format)
            for library in _LIBRARIES.get(format, ()):
                importlib.import_module(library)


def _limit(memory: int) -> None:
    """Limit what this process can do to the machine. Memory is that of its own, of which macOS keeps no limit."""
    for what, most in ((resource.RLIMIT_DATA, memory), (resource.RLIMIT_FSIZE, 0), (resource.RLIMIT_CORE, 0)):
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(what, (most, most))
    sys.dont_write_bytecode = True
    os.chdir("/")
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_DIES_WITH_ITS_PARENT, signal.SIGKILL)


def _serve(connection: socket.socket) -> None:
    """Open a source, tell what there is, and all that is wanted of it; each message has what there was to warn of."""
    wire = Wire(connection)
    with contextlib.suppress(ConnectionError), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")

        def send(message: Mapping[str, Any], arrays: Iterable[Any] = ()) -> None:
            texts = [str(each.message) for each in caught if issubclass(each.category, UserWarning)]
            caught.clear()
            wire.send({**message, "warnings": texts[:10]}, list(arrays))

        request = wire.receive()
        _limit(request["memory"])
        with for_command_line() if request["is_command_line"] else contextlib.nullcontext():
            try:
                read = find(request["format"]).read
                assert read is not None
                source = read(Path(request["path"]), **request["options"])
                send(*_contents(source))
                for some in _together(blocks(source.episodes(), _wanted(wire.receive()))):
                    told = [(kind, facts, {path: len(rows) for path, rows in arrays.items()}) for kind, facts, arrays in some]
                    send({"blocks": told}, (rows for block in some for rows in block.arrays.values()))
                send({"blocks": []})
            except ConnectionError:
                return
            except Exception as error:  # noqa: BLE001 - it is told
                send(_told(error))
        wire.receive()  # nothing but the end


def _together(found: Iterable[Block]) -> Iterator[list[Block]]:
    """Yield what makes up a message: episodes may be short, and a message takes as long as some 100 KB."""
    some, size = list[Block](), 0
    for block in found:
        some.append(block)
        size += sum(rows.nbytes for rows in block.arrays.values())
        if size >= _MESSAGE or len(some) == _MOST_BLOCKS:
            yield some
            some, size = [], 0
    if some:
        yield some


def _wanted(request: Mapping[str, Any]) -> Wanted:
    columns, derived = (
        {path: Column(tuple(shape), dtype) for path, (dtype, *shape) in request[name].items()} for name in ("columns", "derived")
    )
    return Wanted(columns, derived, request["present"], request["frame_stack"])


def _contents(source: Source) -> tuple[dict[str, Any], list[Any]]:
    """Return what there is, as a message."""
    found = source.contents
    arrays = {name: np.asarray(values) for name, values in sorted(found.arrays.items())}
    more: dict[str, Any] = {name: getattr(found, name) for name in ("episodes", "steps", "final", "tags")}
    more |= {"derived": sorted(found.derived), "values": list(found.values), "losses": dict(source.losses)}
    more["arrays"] = {name: [values.dtype.str, *values.shape] for name, values in arrays.items()}
    return describe(found, **more), list(arrays.values())


def _told(error: Exception) -> dict[str, Any]:
    """Return an error as JSON."""
    if isinstance(error, DiskBufferError):
        return {"error": type(error).__name__, "what": str(error)[:10_000], "option": error.option}
    what, trace = f"{type(error).__name__}: {error}", "".join(traceback.format_exception(error))
    return {"error": "MemoryError" if isinstance(error, MemoryError) else "", "what": what[:10_000], "trace": trace[-10_000:]}
