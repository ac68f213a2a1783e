"""Messages between an import and the process that reads a stranger's files for it: JSON, and the bytes of arrays.

A message is a header of 16 bytes (four letters, how long its JSON is, how many bytes of arrays come after it), and these. Neither
side believes what the other says of lengths: JSON is bounded, and arrays are as large as the one who asked for them expects.
"""

from __future__ import annotations

import json
import math
import re
import socket
import struct
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
_HEADER = struct.Struct("<4sIQ")
_NAME = b"dbuf"
_MOST_JSON = 16 * 1024**2
_DTYPE = re.compile(r"[<>|][biufc][1-9][0-9]?")


class WireError(Exception):
    """What arrived is no message, or not the one that was asked for."""


class Wire:
    """One end of a connection.

    Parameters
    ----------
    connection : socket.socket
    patience : float, optional
        Seconds in which a message must have come whole; a TimeoutError otherwise. For ever by default.
    most : int
        Bytes of arrays that may come with a message.
    """

    def __init__(self, connection: socket.socket, patience: float | None = None, most: int = 0) -> None:
        self._connection, self._patience, self._most = connection, patience, most
        self._until: float | None = None
        self._left = 0  # bytes of arrays of the message that came last
        self.received = 0  # bytes of all messages

    def send(self, message: Mapping[str, Any], arrays: Sequence[Array] = ()) -> None:
        """Send a message."""
        parts = [np.ascontiguousarray(array) for array in arrays]
        text = json.dumps(message).encode()
        self._connection.settimeout(self._patience)
        self._connection.sendall(_HEADER.pack(_NAME, len(text), sum(part.nbytes for part in parts)) + text)
        for part in parts:
            self._connection.sendall(part.reshape(-1).view(np.uint8).data)

    def receive(self) -> dict[str, Any]:
        """Return the JSON of the next message; a ConnectionError where the other end is closed."""
        self._until = None if self._patience is None else time.monotonic() + self._patience
        if self._left:
            raise WireError(f"{self._left} bytes of a message were not asked for")
        name, length, self._left = _HEADER.unpack(self._filled(bytearray(_HEADER.size)))
        if name != _NAME or length > _MOST_JSON or self._left > self._most:
            raise WireError("it is no message")
        self.received += length + self._left
        try:
            message = json.loads(self._filled(bytearray(length)))
        except (ValueError, RecursionError) as error:
            raise WireError(f"it is no message: {error}") from None
        if not isinstance(message, dict):
            raise WireError("it is no message")
        return message

    def array(self, shape: Sequence[int], dtype: np.dtype[Any]) -> Array:
        """Return an array that came with the last message."""
        size = math.prod(shape) * dtype.itemsize
        if size > self._left:
            raise WireError(f"{size} bytes of an array were expected, and {self._left} are there")
        values = np.empty(shape, dtype)
        self._filled(values.reshape(-1).view(np.uint8))
        self._left -= size
        return values

    def _filled(self, values: Any) -> Any:
        """Return a buffer, once bytes from the connection fill it."""
        rest = memoryview(values)
        while rest:
            if self._until is not None:
                self._connection.settimeout(max(0.001, self._until - time.monotonic()))
            n = self._connection.recv_into(rest)
            if n == 0:
                raise ConnectionResetError("the other end was closed")
            rest = rest[n:]
        return values


def described_array(described: Any) -> tuple[np.dtype[Any], tuple[int, ...]]:
    """Return the dtype and the shape of an array that JSON tells; a WireError where they are none of numbers."""
    try:
        text, *shape = described
        if not _DTYPE.fullmatch(text) or not all(type(n) is int and 0 <= n < 2**62 for n in shape):
            raise WireError(f"no dtype and shape: {described!r:.100}")
        return np.dtype(text), tuple(shape)
    except (TypeError, ValueError) as error:
        raise WireError(f"no dtype and shape: {error}") from None
