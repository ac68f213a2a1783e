"""Names of Dreamer's files, which tell when each was made, and which one goes on where it ends.

DreamerV3 writes chunks of a stream, ``TIME-UUID-SUCCESSOR-LENGTH.npz``; DreamerV2, and those who follow it, write episodes,
``TIME-UUID-LENGTH.npz``.
"""

from __future__ import annotations

import re
import string
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from diskbuffer.errors import InputError, SourceError
from diskbuffer.plugin import format_option

_CHUNK = re.compile(r"(\w+)-([0-9A-Za-z]+)-([0-9A-Za-z]+)-(\d{1,9})\.npz", re.ASCII)
_EPISODE = re.compile(r"(\w+)-([0-9A-Za-z]+)-(\d{1,9})\.npz", re.ASCII)
_BASE62 = string.digits + string.ascii_letters


@dataclass(frozen=True)
class Chunk:
    """A file of DreamerV3's, by its name."""

    path: Path
    time: str
    uuid: str
    successor: str
    length: int


def version_of(files: Sequence[Path], chosen: object) -> int:
    """Return 3 for chunks of streams, 2 for episodes."""
    if chosen not in (None, 2, 3):
        raise InputError(f"version must be 2 (a file an episode; also DreamerV1's) or 3 (chunks), found {chosen!r}")
    if chosen is not None:
        return 2 if chosen == 2 else 3
    for version, pattern in ((3, _CHUNK), (2, _EPISODE)):
        if all(pattern.fullmatch(file.name) for file in files):
            return version
    raise InputError(
        f"names of files such as {files[0].name} do not tell which Dreamer wrote them. If each is an episode, in the order of "
        f"their names: {format_option('version', 2)}"
    )


def chains(files: Sequence[Path]) -> list[list[Chunk]]:
    """Return chunks one after the other, those of a stream as its chain; a chain that is older comes first."""
    chunks: dict[str, Chunk] = {}
    for file in files:
        named = _CHUNK.fullmatch(file.name)
        if named is None:
            raise SourceError(f"{file}: names of DreamerV3's files are TIME-UUID-SUCCESSOR-LENGTH.npz")
        chunk = Chunk(file, named[1], named[2], named[3], int(named[4]))
        if chunk.uuid in chunks:
            raise SourceError(f"{file} and {chunks[chunk.uuid].path.name} have the same identifier")
        chunks[chunk.uuid] = chunk
    before: dict[str, Chunk] = {}
    for chunk in chunks.values():
        if chunk.successor in before:
            raise SourceError(f"{chunk.path} and {before[chunk.successor].path.name} go on in the same file")
        if chunk.successor in chunks:
            before[chunk.successor] = chunk
    ordered = []
    for head in sorted((c for c in chunks.values() if c.uuid not in before), key=lambda c: (c.time, c.uuid)):
        chain = [head]
        while (following := chunks.get(chain[-1].successor)) is not None:
            chain.append(following)
        ordered.append(chain)
    if sum(map(len, ordered)) != len(chunks):
        raise SourceError(f"{files[0].parent}: there are files that go on in one another, in a circle")
    return ordered


def base62(number: int) -> str:
    """Return an identifier of 128 bits as DreamerV3 writes it."""
    digits = []
    while number:
        number, digit = divmod(number, 62)
        digits.append(_BASE62[digit])
    return "".join(reversed(digits)).rjust(22, "0")


def number_of(identifier: str) -> int:
    """Return the number of 128 bits that DreamerV3 wrote as `identifier`."""
    number = 0
    for character in identifier[:22]:
        number = number * 62 + _BASE62.index(character)
    return number


def moment(since: str, n: int) -> str:
    """Return a time as DreamerV3 writes it, `n` microseconds after the ISO time `since`: names of files ascend by it."""
    return (datetime.fromisoformat(since) + timedelta(microseconds=n)).strftime("%Y%m%dT%H%M%SF%f")
