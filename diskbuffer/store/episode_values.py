"""Values of episodes, by name: one file of lines that is only appended to, and the table of what it says in RAM.

    _segments/length/episode_values.N    a line for each episode that was given some, such as

        9f3b2c1d {"episode": 1234, "values": {"success": true, "instruction": "fold the towel"}}

A line begins with the CRC32C of its JSON, which starts from the store's number, and has all values of its episode: of
several lines the last counts. A flush notes in ``state.json`` which file it is, and how many bytes of it are on the disk: to
these a power loss goes back. A kill leaves all whole lines, and one at most, the last, that is cut short. Once half of a file
is of episodes that were evicted, or has later lines, a flush writes the others to file N + 1, which lines are appended to from
then on: of several files the one with the highest number counts.
"""

from __future__ import annotations

import contextlib
import json
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import google_crc32c
import numpy as np
import numpy.typing as npt

from diskbuffer.errors import CorruptionError
from diskbuffer.index.growing_array import GrowingArray
from diskbuffer.index.named_values import Named, NamedValues, Value
from diskbuffer.runtime.signals import Uninterrupted
from diskbuffer.store.format.layout import SEGMENTS
from diskbuffer.store.system.files import Files
from diskbuffer.store.system.json_files import parse_json

Int64 = npt.NDArray[np.int64]

_DIRECTORY = f"{SEGMENTS}/length"  # an array's directory, in which no Zarr tool lists files
_NAME = re.compile(r"episode_values\.(0|[1-9][0-9]{0,17})")
_MOST_BYTES = 32 * 1024**2  # of a line: 64 texts of 64 KiB, of which each character takes six
_SMALL = 64 * 1024  # bytes of a file that need not be written anew
_TRIES = 20
_NO_LOCK = nullcontext()


class ValuesNote(NamedTuple):
    """A file's number, and how many bytes of it count."""

    number: int
    bytes: int

    @property
    def name(self) -> str:
        """The file."""
        return f"{_DIRECTORY}/episode_values.{self.number}"


def numbers(files: Files) -> list[int]:
    """Return the numbers of a store's files of values, which are one but for moments, or none."""
    found = (_NAME.fullmatch(name) for name in files.names(_DIRECTORY))
    return sorted(int(match[1]) for match in found if match)


def stamp(files: Files) -> tuple[int, int] | None:
    """Return what is another one whenever episodes were given values: the newest file and its size; None where there is none."""
    with contextlib.suppress(FileNotFoundError):  # it is written anew at this moment
        for number in numbers(files)[-1:]:
            return number, files.stat(ValuesNote(number, 0).name).st_size
    return None


def remove_others(files: Files, note: ValuesNote | None, *, older: bool = False) -> bool:
    """Remove all files of values but one, or all `older` ones than that; return whether there was any."""
    known = numbers(files)
    others = [number for number in known if note is None or (number < note.number if older else number != note.number)]
    for number in others:
        files.remove(ValuesNote(number, 0).name)
    return bool(others)


def copy_values(source: Files, note: ValuesNote, files: Files) -> None:
    """Copy what counts of a store's file of values to another store. It is not synced."""
    files.copy(source, note.name, note.name, reserve=False)
    files.truncate(note.name, note.bytes)


def what_counts(files: Files, noted: ValuesNote | None, *, unflushed: bool) -> ValuesNote | None:
    """Return which file of values counts, and how far.

    Parameters
    ----------
    files : Files
        The store's directory.
    noted : ValuesNote, optional
        What the last flush noted.
    unflushed : bool
        Whether whole lines count that came after that: beside a writer, and after a kill.

    Raises
    ------
    CorruptionError
        What was noted is not there.
    FileNotFoundError
        A writer has just written it anew.
    """
    known = numbers(files)
    if noted is not None and not (unflushed and known and known[-1] > noted.number):
        size = files.stat(noted.name).st_size if files.exists(noted.name) else -1
        if size < noted.bytes:
            found = f"has {size:,}" if size >= 0 else "is missing"
            raise CorruptionError(
                f"{files.root / noted.name}, the values of episodes, should have {noted.bytes:,} bytes, and {found}. "
                "`diskbuffer check --repair` saves what can be saved"
            )
    if not unflushed or not known:
        return noted
    name = ValuesNote(known[-1], 0).name
    end = files.stat(name).st_size
    while end > 0:
        begin = max(0, end - _SMALL)
        if whole := b"".join(files.read_from(name, begin, end)).rfind(b"\n") + 1:
            return ValuesNote(known[-1], begin + whole)
        end = begin
    return ValuesNote(known[-1], 0)


class EpisodeValues:
    """The values of a store's episodes. The store's lock must be held wherever nothing else is said.

    A writer knows how far its file goes; others, and forks of a writer, `look` each time. What it says is read when it is first
    asked for.
    """

    def __init__(self, files: Files, salt: int) -> None:
        self._files, self._seed = files, salt & 0xFFFFFFFF
        self._note: ValuesNote | None = None  # what counts
        self._table, self._ends = NamedValues(), GrowingArray()  # what was read of it: rows, and where each ends
        self._session: object = None  # in which it was read
        self._seen: object = ()  # in that session, the file's stamp of the last look
        self._is_torn = False  # whether there is, or was, something in it that failed to be written
        self._counted = 0  # bytes that counted when it was last looked how many do

    @property
    def note(self) -> ValuesNote | None:
        """What counts by now, as far as is known; None where nothing was ever given."""
        return self._note

    # What the last writer left

    def recover(self, noted: ValuesNote | None, *, killed: bool) -> None:
        """Have the file be what the last writer left, to write to; a CorruptionError where it is not there."""
        note = what_counts(self._files, noted, unflushed=killed)
        if not killed and remove_others(self._files, note):  # those with a higher number would count from here on
            self._files.sync(_DIRECTORY)
        if note is not None:
            self._cut(note)
        self._note = note

    def drop_lost(self, heads: Int64) -> None:
        """Leave out episodes that begin behind the newest rows of streams, `heads`, (streams,): their ids will be given again.

        After a power loss that took all that was flushed of a ring, as it was evicted since.
        """
        self._read_on()
        ids = self._table.ids
        if self._note is not None and (ids // len(heads) > heads[ids % len(heads)]).any():
            self.repair(self._note, heads)

    def _cut(self, noted: ValuesNote) -> None:
        if self._files.stat(noted.name).st_size > noted.bytes:
            self._files.truncate(noted.name, noted.bytes)

    # To read

    def look(self, left: Callable[[], tuple[ValuesNote | None, bool]], session: object) -> None:
        """See what a writer elsewhere has written since.

        ``left()`` returns what `what_counts` takes. `session` is another one where a file may not be what it was.
        """
        before, seen = None, (session, stamp(self._files))
        if seen == self._seen:
            return
        for _ in range(_TRIES):
            noted, unflushed = now = left()
            try:
                note = what_counts(self._files, noted, unflushed=unflushed)
                is_longer = note is not None and self._note is not None and note[0] == self._note[0] and note >= self._note
                if session != self._session or not is_longer:
                    self._forget()
                self._note, self._session = note, session
                self._read_on()
                self._seen = seen
                return
            except FileNotFoundError:
                continue
            except CorruptionError:
                if now == before:
                    raise
                before = now
        raise CorruptionError(f"{self._files.root}: the values of episodes are written anew all the time; read them again")

    def _forget(self) -> None:
        self._table, self._ends = NamedValues(), GrowingArray()

    @property
    def _read(self) -> int:
        """How many bytes were read."""
        return int(self._ends.values[-1]) if len(self._ends) else 0

    def of(self, ids: Int64) -> dict[str, Named]:
        """Return the values of episodes by name, (n,) each; see `NamedValues.of`. A CorruptionError where lines are damaged."""
        self._read_on()
        return self._table.of(ids)

    def _read_on(self) -> None:
        """Read what there is and was not read yet."""
        note = self._note
        if note is None or self._read == note.bytes:
            return
        for begin, lines in _lines(self._files, note, self._read):
            try:
                parsed = self._parsed(lines)
                if self._table.append([id_ for id_, _ in parsed], [row for _, row in parsed]):
                    raise ValueError
            except ValueError:
                raise self._damaged(begin) from None
            self._ends.extend(begin + np.cumsum([len(line) + 1 for line in lines]))
        if self._read < note.bytes:
            raise self._damaged(self._read)

    def _parsed(self, lines: Sequence[bytes]) -> list[tuple[int, dict[str, Value]]]:
        """Return of lines the episodes and their values; a ValueError where one is no line of this store."""
        for line in lines:
            if line[8:9] != b" " or int(line[:8], 16) != google_crc32c.extend(self._seed, line[9:]):
                raise ValueError
        try:
            found = parse_json(b"[%s]" % b",".join([line[9:] for line in lines]))
            ids, rows = [each["episode"] for each in found], [each["values"] for each in found]
            are_ids = set(map(type, ids)) <= {int} and min(ids, default=0) >= 0 and max(ids, default=0) < 2**63
            if len(found) == len(lines) and are_ids and _are_values(rows):
                return list(zip(ids, rows, strict=True))
        except (KeyError, TypeError):
            pass
        raise ValueError

    def _damaged(self, at: int) -> CorruptionError:
        assert self._note is not None
        return CorruptionError(
            f"{self._files.root / self._note.name}, the values of episodes, is damaged at byte {at:,} or after it. "
            "`diskbuffer check --repair` keeps its other lines"
        )

    # To write

    def kinds(self) -> dict[str, str]:
        """Return of what kind the values of each name are, or were."""
        self._read_on()
        return self._table.kinds()

    def largest(self, name: str) -> int:
        """Return how large integers of a name are at most, without their sign."""
        return self._table.largest(name)

    def rows(self, ids: Int64) -> list[dict[str, Value]]:
        """Return of each episode its values by name."""
        self._read_on()
        return self._table.of_rows(self._table.newest(ids))

    def append(self, ids: Sequence[int], rows: Sequence[Mapping[str, Value]]) -> None:
        """Give each of some episodes all the values that it is to have, of the kinds that their names have.

        A kill does not lose them from then on. Where that fails, none of them is given any.
        """
        self._read_on()
        lines = self._lines_of(ids, rows)
        sizes = np.array([len(line) for line in lines], np.int64)
        with Uninterrupted():
            if self._is_torn and self._note is not None:  # what failed may have been read, and be taken for what comes now
                self._write_anew(self._ends.values, np.ones(len(self._table), np.bool_))
            note = self._note or ValuesNote(max(numbers(self._files), default=-1) + 1, 0)
            self._write(note, b"".join(lines))
            self._table.append(ids, rows)
            self._ends.extend(note.bytes + np.cumsum(sizes))
            self._note = ValuesNote(note.number, self._read)

    def _lines_of(self, ids: Sequence[int], rows: Sequence[Mapping[str, Value]]) -> list[bytes]:
        """Return the lines of episodes: made of one list, which takes a third of the time."""
        every = [{"episode": id_, "values": row} for id_, row in zip(ids, rows, strict=True)]
        text = json.dumps(every, separators=(",\n", ": ")).encode()  # a text has no newline, but "\\n"
        data = [part.replace(b",\n", b", ") for part in text[2:-2].split(b"},\n{")]
        return [b"%08x {%s}\n" % (google_crc32c.extend(self._seed, b"{%s}" % part), part) for part in data if part]

    def _write(self, note: ValuesNote, data: bytes) -> None:
        """Append to the file, which is made if there is none."""
        fd = self._files.create(note.name, 0, reserve=False) if self._note is None else self._files.open(note.name)
        try:
            self._is_torn = True
            self._files.pwrite(fd, data, note.bytes)
            self._is_torn = False
        finally:
            self._files.close(fd)
            if self._is_torn:
                with contextlib.suppress(OSError):
                    if self._note is None:
                        self._files.remove(note.name)
                    else:
                        self._cut(note)

    def compact(self, lock: threading.RLock, episodes: Callable[[], Int64], *, at_once: bool = False) -> None:
        """Write the file anew, without lines that do not count any more, where these are half of it, or `at_once`.

        ``episodes()`` returns the ids of all that are there. Looks at a file once it is twice what it was at the last look. The
        store's `lock` need not be held, and is not, but for moments.
        """
        with lock:
            note, ends, table = self._note, self._ends.values.copy(), self._table
            if note is None or self._read != note.bytes or not (at_once or note.bytes >= _SMALL + 2 * self._counted):
                return
            newest = table.newest(episodes())
        counts = np.zeros(len(ends), np.bool_)
        counts[newest[newest >= 0]] = True
        counts &= table.has_values(len(ends))
        self._counted = int(np.diff(ends, prepend=0)[counts].sum())
        if at_once or 2 * self._counted <= note.bytes:
            self._write_anew(ends, counts, lock)

    def _write_anew(self, ends: Int64, counts: npt.NDArray[np.bool_], lock: AbstractContextManager[Any] = _NO_LOCK) -> None:
        """Write some of the first lines, of which these are the ends, and all later ones to the next file, which counts then."""
        note = self._note
        assert note is not None
        table, sizes, end, at = self._table, np.diff(ends, prepend=0), int(ends.max(initial=0)), 0
        kept, new = table.some(np.flatnonzero(counts)), ValuesNote(note.number + 1, 0)
        temporary = f"{new.name}.new.tmp"
        fd = self._files.create(temporary, 0, reserve=False)
        try:
            for begin, lines in _lines(self._files, ValuesNote(note.number, end), 0):
                first = int(np.searchsorted(ends, begin, side="right"))
                data = b"".join(line + b"\n" for line, is_kept in zip(lines, counts[first:], strict=False) if is_kept)
                self._files.pwrite(fd, data, at)
                at += len(data)
            with lock:
                if self._table is not table:  # another thread has done that meanwhile
                    return
                added = np.arange(len(ends), len(table))  # since
                for data in self._files.read_from(note.name, end, self._read):
                    self._files.pwrite(fd, data, at)
                    at += len(data)
                kept.append(table.ids[added].tolist(), table.of_rows(added))
                every = np.append(sizes[counts], np.diff(self._ends.values, prepend=0)[len(ends) :])
                with Uninterrupted():
                    self._files.rename(temporary, new.name)
                    self._table, self._ends, self._is_torn = kept, GrowingArray(np.cumsum(every)), False
                    self._note = ValuesNote(new.number, at)
        except BaseException:
            with contextlib.suppress(OSError):
                self._files.remove(temporary)
            raise
        finally:
            self._files.close(fd)

    # Checking

    def damage(self, noted: ValuesNote | None, *, unflushed: bool) -> tuple[ValuesNote | None, str | None]:
        """Return which file counts, as `what_counts` says it, and what is wrong with it, if anything."""
        try:
            note = what_counts(self._files, noted, unflushed=unflushed)
        except CorruptionError:
            return noted, "is missing, or shorter than the last flush left it; repair keeps the values of episodes that are there"
        wrong = 0 if note is None else sum(line is None for _, line in self._salvaged(note))
        return note, f"{wrong:,} of its lines are damaged; repair keeps the others" if wrong else None

    def repair(self, noted: ValuesNote | None, heads: Int64) -> None:
        """Write what is whole of a file anew, of episodes that begin at rows of streams up to `heads`, (streams,)."""
        known = [*numbers(self._files), *([] if noted is None else [noted.number])]
        if not known:
            return
        lines = list[bytes]()
        if noted is not None and self._files.exists(noted.name):
            whole = [(id_, line) for id_, line in self._salvaged(noted) if line is not None]
            lines = [line for id_, line in whole if id_ // len(heads) <= heads[id_ % len(heads)]]
        data = b"".join(line + b"\n" for line in lines)
        self._forget()
        self._note = ValuesNote(max(known) + 1, len(data))
        self._files.replace_contents(self._note.name, data)

    def _salvaged(self, note: ValuesNote) -> Iterator[tuple[int, bytes | None]]:
        """Yield the lines of a file, each with its episode: None for one that is damaged."""
        at = 0
        for begin, lines in _lines(self._files, note, 0):
            at = begin + sum(map(len, lines)) + len(lines)
            for line in lines:
                try:
                    yield self._parsed([line])[0][0], line
                except ValueError:
                    yield -1, None
        if at < note.bytes:
            yield -1, None


def _are_values(rows: Sequence[Any]) -> bool:
    """Return whether what was read are values by name."""
    if not set(map(type, rows)) <= {dict}:
        return False
    kinds = {type(value) for row in rows for value in row.values()}
    integers = [value for row in rows for value in row.values() if type(value) is int] if int in kinds else []
    return kinds <= {bool, float, str, int} and min(integers, default=0) >= -(2**63) and max(integers, default=0) < 2**63


def _lines(files: Files, note: ValuesNote, begin: int) -> Iterator[tuple[int, list[bytes]]]:
    """Yield the lines from an offset on, without their ends: blocks of them, each with its offset.

    What is longer than a line may be counts as one, which is damaged; what is cut short at the end is left out.
    """
    rest, end = b"", begin
    for block in files.read_from(note.name, begin, note.bytes):
        end += len(block)
        *lines, rest = (rest + block).split(b"\n")
        if len(rest) > _MOST_BYTES:
            lines, rest = [*lines, rest], b""
        if lines:
            yield begin, lines
            begin = end - len(rest)
