"""The store of one node: what its actors wrote to the node's disk, for learners anywhere in the cluster.

Actors on the node open stores of their own below the node's directory, so none of their steps passes through here. All methods
may be called twice with the same arguments, as Ray repeats calls that the death of a process has interrupted.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import platform
import re
import threading
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import google_crc32c
import numpy as np
import numpy.typing as npt

from diskbuffer import Prioritized, ReplayBuffer, Sampler
from diskbuffer.adapters.ray.packing import Packed, pack
from diskbuffer.errors import (
    CorruptionError,
    DiskBufferError,
    EmptyBufferError,
    InputError,
    LockedError,
    NotAStoreError,
)
from diskbuffer.plugin import boot_id, writers_of

Int64 = npt.NDArray[np.int64]
Update = tuple[bytes, int, Int64, npt.NDArray[Any]]  # a pickled sampler, the node's number in the batch, steps, priorities
_LEARNING_WAIT = 5.0  # seconds for a process that dies to release the columns
SAMPLERS = 64  # that are kept
_IDENTITY = "_shared/identity"
_DIGITS = 32  # of an identity
_BOOT = 20  # bits of a node's number that tell when its machine was started


class Answer(NamedTuple):
    """What a node tells of itself with every answer: its number, the steps in its directory, and those it has ever had.

    Two places with one identity are copies. `mass` and `least` are of the sampler by priority that was asked about: the sum of
    what is drawn by, and the least of it. `problem` is why the directory cannot be read, if it cannot.
    """

    number: int = 0
    place: tuple[int, int] = (0, 0)
    steps: int = 0
    added: int = 0
    mass: float = 0.0
    least: float = 0.0
    problem: str = ""

    @property
    def identity(self) -> int:
        """The directory's; 0 where nothing was told."""
        return identity_in(self.number)


def identity_in(number: int) -> int:
    """Return whose directory's a node's number is."""
    return number >> _BOOT


class Directory:
    """A node's directory, and a reader of what actors have written below it.

    Environment variables and "~" in the path are those of the node. `identity` is drawn when the directory is first used, and
    stays wherever its disk goes. `number` is the identity and when the machine was started: a power loss takes steps, and others
    get their ids, so what a learner elsewhere writes to steps that it got before must not reach them.
    """

    def __init__(self, path: str, refresh_every: float, seed: int | None = None) -> None:
        expanded = os.path.expandvars(path)
        if missing := re.search(r"\$(\w+|{[^}]*})", expanded):
            raise InputError(f"path: the processes of Ray on {platform.node()} do not have the variable {missing[0]} of {path}")
        self.path = Path(expanded).expanduser().absolute()
        self.identity = int(_identity_of(self.path)[:10], 16)
        self.number = self.identity << _BOOT | google_crc32c.value(boot_id().encode()) & ((1 << _BOOT) - 1)
        status = self.path.stat()
        self.place = status.st_dev, status.st_ino
        self.reader: ReplayBuffer | None = None
        self._refresh_every, self._seed, self._refreshed, self._lock = refresh_every, seed, 0.0, threading.Lock()

    def read(self, *, now: bool = False) -> ReplayBuffer:
        """Return the reader, as of `refresh_every` ago at most; an EmptyBufferError where there is no store yet."""
        with self._lock:
            if self.reader is not None and (now or time.monotonic() - self._refreshed >= self._refresh_every):
                self._refreshed = time.monotonic()
                try:
                    self.reader.refresh()
                except (CorruptionError, NotAStoreError):  # as where a store went back to a mark
                    self.reader.close()
                    self.reader = None
            if self.reader is None:
                if not writers_of(self.path):
                    raise EmptyBufferError(f"{self.path} has no steps yet; add some before sampling")
                self.reader = ReplayBuffer(self.path, mode="r", seed=self._seed)
                self._refreshed = time.monotonic()
            return self.reader


def _identity_of(directory: Path) -> str:
    file = directory / _IDENTITY
    while True:
        with contextlib.suppress(FileNotFoundError):
            with file.open("rb") as there:
                digits = there.read(_DIGITS + 1)
            if not re.fullmatch(b"[0-9a-f]{%d}" % _DIGITS, digits):
                raise CorruptionError(f"{file} has {digits!r} in place of {_DIGITS} hexadecimal digits; remove it, for a new one")
            return digits.decode()
        file.parent.mkdir(parents=True, exist_ok=True)
        draft = file.with_suffix(f".{uuid.uuid4().hex}.tmp")
        with draft.open("w") as written:
            written.write(uuid.uuid4().hex)
            written.flush()
            os.fsync(written.fileno())  # or the file might be empty after a power loss
        with contextlib.suppress(FileExistsError):  # another process was faster
            os.link(draft, file)
        draft.unlink()
        for above in (file.parent, directory):  # or a power loss might take its name
            fd = os.open(above, os.O_RDONLY)
            os.fsync(fd)
            os.close(fd)


class NodeStore:
    """Read what a node's actors have written, and keep learners' columns and priorities. `Nodes` makes actors of this class."""

    def __init__(self, path: str, refresh_every: float) -> None:
        try:
            self._found: Directory | Exception = Directory(path, refresh_every)
        except (DiskBufferError, OSError) as error:
            self._found = error
        self._buffer: ReplayBuffer | None = None  # that the samplers belong to
        self._samplers: dict[bytes, Sampler] = {}
        self._keepers: dict[str, Prioritized] = {}  # by column of priorities
        self._wrote = False
        self._newest: dict[str, int] = {}  # by learner, the number of its newest updates
        self._lock, self._updating = threading.RLock(), threading.Lock()

    @property
    def _directory(self) -> Directory:
        if isinstance(self._found, Exception):  # of which whoever asks is told
            raise self._found.with_traceback(None)  # which would grow
        return self._found

    def answer(self, sent: bytes | None = None, *, now: bool = False) -> Answer:
        """Return what there is: `now`, or when it was last looked."""
        try:
            directory = self._directory
            buffer = directory.read(now=now)
        except EmptyBufferError:
            return Answer(directory.number, directory.place)
        except (DiskBufferError, OSError) as error:
            return Answer(problem=f"{type(error).__name__}: {error}")
        return self._told(directory, buffer, None if sent is None else self._sampler(buffer, sent))

    @staticmethod
    def _told(directory: Directory, buffer: ReplayBuffer, sampler: Sampler | None) -> Answer:
        masses = sampler.masses() if isinstance(sampler, Prioritized) else ()
        return Answer(directory.number, directory.place, len(buffer), int(buffer.counts()[1].sum()), *masses)

    # Reading, with samplers of its own: those of learners come pickled

    def sample(self, size: int, sent: bytes) -> tuple[Packed | str, Answer]:
        """Return a batch, or why there is nothing to draw. Weights are as of ``beta=1``, as learners have their own."""
        try:
            buffer = self._directory.read()
            sampler = self._sampler(buffer, sent)
            return pack(buffer.sample(size, sampler)), self._told(self._directory, buffer, sampler)
        except EmptyBufferError as error:
            return str(error), self.answer(sent)

    def _sampler(self, buffer: ReplayBuffer, sent: bytes) -> Sampler:
        """Return this node's own sampler of those settings."""
        with self._lock:
            if buffer is not self._buffer:
                self._buffer, self._samplers, self._keepers = buffer, {}, {}
            sampler = self._samplers.pop(sent, None)
            if sampler is None:
                sampler = pickle.loads(sent)  # from a learner's process, over Ray
                sampler.seed_again(int.from_bytes(os.urandom(8)))  # as other nodes draw with one of the same seed
                if isinstance(sampler, Prioritized):
                    sampler = self._keeper(buffer, sampler)
            self._samplers[sent] = sampler  # those that were not used for longest come first
            while len(self._samplers) > SAMPLERS:
                del self._samplers[next(iter(self._samplers))]
            return sampler

    def _keeper(self, buffer: ReplayBuffer, sampler: Prioritized) -> Prioritized:
        """Return what draws by a column, of which there is one; an InputError where that draws otherwise."""
        keeper, until = self._keepers.get(sampler.column), time.monotonic() + _LEARNING_WAIT
        while keeper is None:
            try:
                sampler.beta = 1.0
                buffer.loader(1, sampler, rank=0, world_size=1)  # draws nothing
                keeper = self._keepers[sampler.column] = sampler
            except LockedError:  # by a process that dies
                if time.monotonic() > until:
                    raise
                time.sleep(0.01)
        if keeper.settings != sampler.settings:
            raise InputError(
                f"the priorities in {sampler.column!r} are those of a sampler with {keeper.settings}, found {sampler.settings}: "
                "give this one a column= of its own, or destroy() the buffer first"
            )
        self._wrote = True
        return keeper

    # Learners' columns

    def update(self, learner: str, number: int, updates: Sequence[Update]) -> int:
        """Set priorities of steps, one update after the other, unless newer ones of the learner came before.

        Return of how many steps they were left out, as the machine was started again since these were drawn.

        A learner numbers what it sends, and sends the next once it knows that this was taken, or has given it up.
        """
        with self._updating:
            if number <= self._newest.get(learner, 0):
                return 0
            dropped = 0
            for sent, node, steps, priorities in updates:
                if node != self._directory.number:
                    dropped += len(steps)
                    continue
                sampler = self._sampler(self._directory.read(), sent)
                assert isinstance(sampler, Prioritized)
                sampler.update(steps, priorities)
            self._newest[learner] = number
            return dropped

    def write(self, name: str, node: int, steps: Int64, values: npt.NDArray[Any]) -> int:
        """Write a column's values of steps; return of how many, as those evicted since are left out.

        All are left out where the machine was started again since they were drawn: others may have their ids.
        """
        if node != self._directory.number:
            return 0
        self._wrote = True
        return self._directory.read().columns.write(name, steps, values)

    # Keeping

    def flush(self) -> None:
        """Sync the columns that learners wrote to the disk."""
        if self._wrote:
            self._directory.read().flush()

    def close(self) -> None:
        """Close everything."""
        if self._directory.reader is not None:
            self._directory.reader.close()
