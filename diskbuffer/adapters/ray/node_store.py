"""The store of one node: what its actors wrote to the node's disk, for learners anywhere in the cluster.

Actors on the node open stores of their own below the node's directory, so none of their steps passes through here. All but
`NodeStore.add` may be called twice with the same arguments, as Ray repeats calls that the death of a process has interrupted.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import platform
import re
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import ray

from diskbuffer import Prioritized, ReplayBuffer, Sampler
from diskbuffer.adapters.ray.packing import Packed, pack
from diskbuffer.errors import (
    ClosedError,
    CorruptionError,
    DiskBufferError,
    EmptyBufferError,
    InputError,
    LockedError,
    NotAStoreError,
)
from diskbuffer.plugin import rows_taken, writers_of

Int64 = npt.NDArray[np.int64]
_LEARNING_WAIT = 5.0  # seconds for a process that dies to release the columns
SAMPLERS = 64  # that are kept
_SILENT = 3600.0  # seconds after which another may continue the store of an actor that says nothing
_IDENTITY, _INBOXES = "_shared/identity", "_shared/inboxes.json"
_DIGITS = 32  # of an identity


class Client(NamedTuple):
    """An actor without a disk: an id that no other has, its node, and the name of its store."""

    id: str
    node_id: str
    store: str = ""


class Answer(NamedTuple):
    """What a node tells of itself with every answer: its directory's number, the steps in it, and those it has ever had.

    Two places with one number are copies. `mass` and `least` are of the sampler by priority that was asked about: the sum of what
    is drawn by, and the least of it. `problem` is why the directory cannot be read, if it cannot.
    """

    number: int = 0
    place: tuple[int, int] = (0, 0)
    steps: int = 0
    added: int = 0
    mass: float = 0.0
    least: float = 0.0
    problem: str = ""


class Directory:
    """A node's directory, and a reader of what actors have written below it.

    Environment variables and "~" in the path are those of the node. `number` identifies the directory: it is drawn when this is
    first used, and stays wherever its disk goes.
    """

    def __init__(self, path: str, refresh_every: float, seed: int | None = None) -> None:
        expanded = os.path.expandvars(path)
        if missing := re.search(r"\$(\w+|{[^}]*})", expanded):
            raise InputError(f"path: the processes of Ray on {platform.node()} do not have the variable {missing[0]} of {path}")
        self.path = Path(expanded).expanduser().absolute()
        self.number = int(_identity_of(self.path)[:15], 16)
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


def _write(draft: Path, text: str) -> None:
    """Write a file, and sync it, as what takes its name might be empty after a loss of power."""
    with draft.open("w") as written:
        written.write(text)
        written.flush()
        os.fsync(written.fileno())


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
        _write(draft, uuid.uuid4().hex)
        with contextlib.suppress(FileExistsError):  # another process was faster
            os.link(draft, file)
        draft.unlink()


def alive_nodes() -> set[str]:
    """Return the ids of all nodes that are alive."""
    return {node["NodeID"] for node in ray.nodes() if node["Alive"]}


class NodeStore:
    """Read what a node's actors have written, keep learners' columns and priorities, and take steps of actors without a disk.

    `Nodes` makes actors of this class. `alive` returns the ids of nodes whose clients may still call.
    """

    def __init__(self, path: str, refresh_every: float, alive: Callable[[], set[str]] = alive_nodes) -> None:
        self._alive = alive
        try:
            self._found: Directory | Exception = Directory(path, refresh_every)
        except (DiskBufferError, OSError) as error:
            self._found = error
        self._buffer: ReplayBuffer | None = None  # that the samplers belong to
        self._samplers: dict[bytes, Sampler] = {}
        self._keepers: dict[str, Prioritized] = {}  # by column of priorities
        self._wrote = False
        self._inboxes: dict[str, ReplayBuffer] = {}
        self._heard: dict[str, float] = {}  # when, by client
        self._lock, self._inbox_lock = threading.RLock(), threading.RLock()

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

    def update(self, sent: bytes, steps: Int64, priorities: npt.NDArray[Any]) -> int:
        """Set priorities of steps; return of how many, as those evicted since are left out."""
        sampler = self._sampler(self._directory.read(), sent)
        assert isinstance(sampler, Prioritized)
        return sampler.update(steps, priorities)

    def write(self, name: str, steps: Int64, values: npt.NDArray[Any]) -> int:
        """Write a column's values of steps; return of how many, as those evicted since are left out."""
        self._wrote = True
        return self._directory.read().columns.write(name, steps, values)

    # Steps of actors without a disk: each has a store of its own, and what that has taken tells which of its calls have come

    @ray.method(concurrency_group="inboxes")  # type: ignore[untyped-decorator]
    def open_inbox(self, client: Client, options: Mapping[str, Any]) -> tuple[str, list[int]]:
        """Return the name of a client's store, and how far its environments came, as `rows_taken` of it.

        It is the client's own until it releases it, its node is gone, or it has said nothing for an hour. `options` are for its
        `ReplayBuffer`.
        """
        with self._inbox_lock:
            now = self._heard[client.id] = time.monotonic()
            if client.id not in self._inboxes:
                owners = self._owners()
                envs = options.get("n_envs") or 1
                mine = [name for name, (owner, *_) in owners.items() if owner == client.id]
                if client.store and client.store not in mine:
                    raise ClosedError("another writer continues this one's store, as its node was gone; make another one")
                alive = self._alive()
                silent = {owner for owner, *_ in owners.values() if now - self._heard.setdefault(owner, now) > _SILENT}
                free = [name for name, (owner, at, n) in owners.items() if n == envs and (at not in alive or owner in silent)]
                name = [*mine, *free, f"inbox-{len(owners)}"][0]
                self._close_inbox(owners.get(name, ("",))[0])
                buffer = ReplayBuffer(self._directory.path, writer=name, **options)
                try:
                    if not client.store:  # the client has not added to it, but others may have
                        buffer.cut_off()
                    self._set_owners({**owners, name: (client.id, client.node_id, envs)})
                except BaseException:
                    buffer.close()
                    raise
                self._inboxes[client.id] = buffer
            buffer = self._inboxes[client.id]
            return buffer.path.name, rows_taken(buffer)

    @ray.method(concurrency_group="inboxes", max_task_retries=0)  # type: ignore[untyped-decorator]
    def add(self, client: str, taken: list[int], env: int | None, values: Mapping[str, Any]) -> list[int] | None:
        """Add what a client has, where its store has taken what came before, and nothing else; return how far it comes so.

        None, and nothing is added, where the store is not open, as this process is a new one.
        """
        with self._inbox_lock:
            if (buffer := self._inboxes.get(client)) is None:
                return None
            if rows_taken(buffer) != taken:
                raise ClosedError("this writer's store is not as it was told, as its node lost power, perhaps; make another one")
            self._heard[client] = time.monotonic()
            buffer.add(**values) if env is None else buffer.extend(**values, env=env)
            return rows_taken(buffer)

    @ray.method(concurrency_group="inboxes")  # type: ignore[untyped-decorator]
    def sync_inbox(self, client: Client, options: Mapping[str, Any]) -> None:
        """Sync what a client's store has to the disk."""
        self.open_inbox(client, options)
        with self._inbox_lock:
            if (buffer := self._inboxes.get(client.id)) is not None:  # None, where another thread has closed it
                buffer.flush()

    @ray.method(concurrency_group="inboxes")  # type: ignore[untyped-decorator]
    def release(self, client: Client) -> None:
        """Close a client's store; another one may continue it."""
        with self._inbox_lock:
            self._close_inbox(client.id)
            owners = self._owners().items()
            self._set_owners({name: ("", "", held[2]) if held[0] == client.id else held for name, held in owners})

    def _close_inbox(self, client_id: str) -> None:
        if (buffer := self._inboxes.pop(client_id, None)) is not None:
            buffer.close()

    def _owners(self) -> dict[str, tuple[str, str, int]]:
        """Return of each inbox its client, that one's node, and for how many environments it is."""
        file = self._directory.path / _INBOXES
        return {name: (owner, at, n) for name, (owner, at, n) in json.loads(file.read_text()).items()} if file.exists() else {}

    def _set_owners(self, owners: Mapping[str, tuple[str, str, int]]) -> None:
        file = self._directory.path / _INBOXES
        _write(file.with_suffix(".tmp"), json.dumps(dict(owners)))
        file.with_suffix(".tmp").replace(file)
        self._heard = {owner: self._heard[owner] for owner, *_ in owners.values() if owner in self._heard}

    # Keeping

    def flush(self) -> None:
        """Sync the columns that learners wrote to the disk."""
        if self._wrote:
            self._directory.read().flush()

    def close(self) -> None:
        """Close everything."""
        for buffer in [*self._inboxes.values(), self._directory.reader]:
            if buffer is not None:
                buffer.close()
