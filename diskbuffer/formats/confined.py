"""Sources whose files are read by a process of their own, with limits: whatever a file does to it is an error here.

That process is as untrusted as the files. What it answers is checked, and made of numbers and texts alone: see `wire`.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from diskbuffer import errors
from diskbuffer.errors import DiskBufferError, InputError, SourceError
from diskbuffer.formats.blocks import Block, Wanted
from diskbuffer.formats.described import described
from diskbuffer.formats.forks import Process, fork
from diskbuffer.formats.rows import BLOCK
from diskbuffer.formats.wire import Array, Wire, WireError, described_array
from diskbuffer.plugin import Contents, either, human_size

MEMORY = 4 * 1024**3  # bytes of its own that the process may have
_PATIENCE = 600.0  # seconds in which it must answer: some decoders never end
_LARGEST_ROW = 256 * 1024**2  # bytes of a step, in all columns
# What is told with each kind of blocks, beside the stream
_FACTS: dict[str, dict[str, type]] = {"episode": {"tag": str, "values": dict, "present": int}, "derived": {"first": int}}
_FACTS |= {"stack": {}, "steps": {}, "end": {}}
_SMALL = 256 * 1024**2  # bytes that a source may give, however small its files are
_MOST_ARRAYS = 64 * 1024**2  # bytes of arrays that come with a source
_LARGEST_MESSAGE = 2 * _LARGEST_ROW + 2 * BLOCK  # bytes of arrays


class ConfinedSource:
    """What a `Source` of a format has, read by a process with limits.

    Parameters
    ----------
    format : str
        Its name.
    path : pathlib.Path
    options : mapping of str to Any
        Of the format's `read`: what JSON holds.
    memory : int
        Bytes of its own that the process may have. On macOS, which keeps no such limit, nothing bounds them.
    size, ratio : int
        Bytes of its files, and how many times as many a source may give.

    Raises
    ------
    SourceError
        What reads the files takes too much memory or time, or is ended by what is in them.
    InputError, SourceError, MissingPackageError
        As the format's `read` raises them.
    """

    def __init__(self, format: str, path: Path, options: Mapping[str, Any], memory: int, size: int, ratio: int) -> None:
        self._path, self._memory, self._size = path, memory, size
        self._most = max(_SMALL, ratio * size)  # bytes
        self._connection, process = fork(format)
        self._process: Process | None = process
        self._wire = Wire(self._connection, _PATIENCE, _LARGEST_MESSAGE)
        try:
            opening = {"format": format, "path": str(path), "options": _plain(options), "memory": memory}
            self._send({**opening, "is_command_line": bool(either("", "it is"))})
            message = self._receive()
            with self._answers():
                self.losses: Mapping[str, str] = {str(name): str(why) for name, why in message["losses"].items()}
                episodes, steps = (None if message[name] is None else int(message[name]) for name in ("episodes", "steps"))
                self.contents: Contents = replace(
                    described(message, path),
                    episodes=episodes,
                    steps=steps,
                    final=bool(message["final"]),
                    tags=bool(message["tags"]),
                    values=tuple(map(str, message["values"])),
                    derived=frozenset(map(str, message["derived"])),
                    arrays=self._arrays(message["arrays"]),
                )
                row_bytes = sum(column.row_bytes for column in self.contents.columns.values())
                if row_bytes > _LARGEST_ROW:
                    raise SourceError(f"{path}: a step has {human_size(row_bytes)}, of at most {human_size(_LARGEST_ROW)}")
                self._refuse_more(row_bytes * (self.contents.steps or 0))
        except BaseException:
            self.close()
            raise

    def blocks(self, wanted: Wanted) -> Iterator[Block]:
        """Yield all that is wanted of the source, as `blocks.blocks` does."""
        columns, derived = ({path: [column.np_dtype.str, *column.shape] for path, column in each.items()} for each in wanted[:2])
        begun = set[int]()
        more = {"present": list(wanted.present), "frame_stack": wanted.frame_stack}
        self._send({"columns": columns, "derived": derived, **more})
        while told := self._receive():
            with self._answers():
                # All of it, so that the other process reads on while these are written.
                found = [self._block(one, wanted, begun) for one in told["blocks"]]
            if not found:
                return
            yield from found

    def _block(self, told: Any, wanted: Wanted, begun: set[int]) -> Block:
        """Return one block of a message, whose arrays are what is next there."""
        kind, facts, lengths = told
        known = wanted.derived if kind == "derived" else wanted.columns
        rows = {str(path): int(n) for path, n in lengths.items()}
        fits = rows.keys() == wanted.derived.keys() if kind == "derived" else bool(rows) == (kind in ("stack", "steps"))
        if not fits or min(rows.values(), default=1) < 1:
            raise WireError(f"{kind} of {rows} rows")
        arrays = {path: self._wire.array((n, *known[path].shape), known[path].np_dtype) for path, n in rows.items()}
        if {name: type(fact) for name, fact in facts.items()} != {"stream": int, **_FACTS[kind]}:
            raise WireError(f"{kind} with {facts}")
        stream = facts["stream"]
        begun |= {stream} if kind == "episode" else set()
        if not 0 <= stream < self.contents.n_envs or stream not in begun or facts.get("present", 0) < 0:
            raise WireError(f"{kind} with {facts}")
        return Block(kind, facts, arrays)

    def _refuse_more(self, given: int) -> None:
        """Raise a SourceError where files give more than they can hold."""
        if given > self._most:
            needed = -(-given // max(1, self._size))
            allow = either(f"max_ratio={needed}", f"--max-ratio {needed}")
            raise SourceError(
                f"{self._path} has {self._size:,} bytes, and {given:,} come out of it: it may be a bomb. If not, allow it: "
                f"{allow}"
            )

    def _send(self, request: Mapping[str, Any]) -> None:
        with self._answers():
            self._wire.send(request)

    def _receive(self) -> dict[str, Any]:
        """Return the next message; raise the error that it is, or what became of the process."""
        with self._answers():
            message = self._wire.receive()
            self._refuse_more(self._wire.received)
            for text in list(message["warnings"])[:10]:
                warnings.warn(str(text), UserWarning, stacklevel=3)
            if "error" in message:
                raise self._error(str(message["error"]), str(message["what"]), message)
            return message

    def _error(self, kind: str, what: str, message: Mapping[str, Any]) -> DiskBufferError:
        if kind == "MemoryError":
            return SourceError(f"{self._path}: {self._too_much()}")
        known = getattr(errors, kind, None) if kind in errors.__all__ else None
        if known is None:
            unknown = SourceError(f"{self._path} is damaged, or cannot be read: {what}")
            unknown.add_note(str(message.get("trace")))
            return unknown
        error: DiskBufferError = known(what, option=str(message["option"])) if message["option"] else known(what)
        return error

    def _too_much(self) -> str:
        limit = either(f"max_memory={2 * self._memory}", f"--max-memory {2 * self._memory}")
        return f"reading it takes more than {human_size(self._memory)} of memory; if you trust it, allow more: {limit}"

    @contextlib.contextmanager
    def _answers(self) -> Iterator[None]:
        """Turn what comes of answers that are none into SourceErrors, after which nothing is read any more."""
        try:
            yield
        except DiskBufferError:
            raise
        except ConnectionError:
            status = self._end()
            how = f"signal {_signal(status)}" if os.WIFSIGNALED(status) else f"exit code {os.waitstatus_to_exitcode(status)}"
            raise SourceError(
                f"{self._path} is damaged, or made to do harm: the process that reads it was ended ({how}). Or {self._too_much()}"
            ) from None
        except TimeoutError:
            self._end()
            raise SourceError(
                f"{self._path} is damaged, or made to do harm: reading some of it takes more than {_PATIENCE:g} s"
            ) from None
        except (WireError, KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            self._end()
            raise SourceError(
                f"{self._path} is damaged, or made to do harm: what reads it answers something else ({error!r:.200})"
            ) from error

    def _arrays(self, described: Mapping[str, Any]) -> dict[str, Array]:
        rows = {str(name): described_array(each) for name, each in described.items()}
        if sum(math.prod(shape) * dtype.itemsize for dtype, shape in rows.values()) > _MOST_ARRAYS:
            raise WireError("arrays of more than 67 MB")
        return {name: self._wire.array(shape, dtype) for name, (dtype, shape) in rows.items()}

    def _end(self) -> int:
        """End the process; return how it ended, as `os.waitpid` has it."""
        process, self._process = self._process, None
        status = 0 if process is None else process.end()  # a thread that waits for an answer finds that there is none
        self._connection.close()
        return status

    def close(self) -> None:
        """End the process."""
        self._end()


def _plain(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options as JSON holds them; an InputError where it does not."""
    plain = {name: os.fspath(value) if isinstance(value, os.PathLike) else value for name, value in options.items()}
    plain = {name: list(value) if isinstance(value, tuple | set | frozenset) else value for name, value in plain.items()}
    for name, value in plain.items():
        one = value if isinstance(value, list) else [value]
        if not all(isinstance(each, str | int | float | bool | None) for each in one):
            raise InputError(f"{name} must be a text, a number, True, False or None, or a list of these, found {value!r:.100}")
    return plain


def _signal(status: int) -> str:
    return signal.Signals(os.WTERMSIG(status)).name
