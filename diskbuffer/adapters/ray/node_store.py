"""The store of one node: what its actors wrote to the node's disk, for learners anywhere in the cluster.

Actors on the node open stores of their own below the node's directory, so none of their steps passes through here. Everything
here may be called twice with the same arguments, as Ray repeats calls that the death of a process has interrupted.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import pickle
import threading
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import ray
from torch.utils._pytree import tree_map

from diskbuffer import Prioritized, ReplayBuffer, Sampler
from diskbuffer.errors import EmptyBufferError, InputError, LockedError, NotFoundError
from diskbuffer.plugin import writers_of

Int64 = npt.NDArray[np.int64]
_LEARNING_WAIT = 5.0  # seconds for a process that dies to release the columns
_SAMPLERS = 64  # that are kept
_IDENTITY, _INBOXES = "_shared/identity", "_shared/inboxes.json"


class Sent(NamedTuple):
    """A sampler as it goes to nodes, each of which draws with one of its own: pickled once, and what may change later."""

    pickled: bytes
    beta: float | None


def number_of(identity: str) -> int:
    """Return what batches name a directory by: the same wherever its disk is, and in every process."""
    return int(identity[:15], 16)


class Answer(NamedTuple):
    """What a node tells of itself with every answer.

    Two places with one identity are copies. `mass` and `least` are of the sampler by priority that was asked about: the sum of
    what is drawn by, and the least of it.
    """

    identity: str
    place: tuple[int, int]
    steps: int
    added: int
    mass: float = 0.0
    least: float = 0.0


def local_directory(path: str) -> Path:
    """Return a node's directory: environment variables and "~" are those of the node."""
    return Path(os.path.expandvars(path)).expanduser().absolute()


def identity_of(directory: Path) -> str:
    """Return a directory's identity, which it gets when it is first used, and keeps wherever its disk goes."""
    file = directory / _IDENTITY
    while True:
        with contextlib.suppress(FileNotFoundError):
            return file.read_text()
        file.parent.mkdir(parents=True, exist_ok=True)
        draft = file.with_suffix(f".{uuid.uuid4().hex}.tmp")
        draft.write_text(uuid.uuid4().hex)
        with contextlib.suppress(FileExistsError):  # another process was faster
            os.link(draft, file)
        draft.unlink()


@ray.remote(max_concurrency=8)
class NodeStore:
    """Read what a node's actors have written, keep learners' columns and priorities, and take steps of actors without a disk.

    Parameters
    ----------
    path : str
        The node's directory, as `local_directory` takes it.
    refresh_every : float
        Seconds until steps that were added are seen.
    """

    def __init__(self, path: str, refresh_every: float) -> None:
        self._directory, self._refresh_every = local_directory(path), refresh_every
        self._identity = identity_of(self._directory)
        status = self._directory.stat()
        self._place = status.st_dev, status.st_ino
        self._reader: ReplayBuffer | None = None
        self._refreshed = -refresh_every
        self._samplers: dict[bytes, Sampler] = {}
        self._keepers: dict[str, Prioritized] = {}  # by column of priorities
        self._wrote = False
        self._inboxes: dict[str, ReplayBuffer] = {}
        self._last_calls: dict[str, tuple[int, list[int]]] = {}
        self._lock = threading.RLock()  # of samplers, and while the reader is opened and refreshed

    def _read(self) -> ReplayBuffer:
        """Return the reader of all actors' stores; an EmptyBufferError where there are none."""
        with self._lock:
            if self._reader is None:
                if not writers_of(self._directory):
                    raise EmptyBufferError(f"{self._directory} has no steps yet; add some before sampling")
                self._reader = ReplayBuffer(self._directory, mode="r")
                self._refreshed = time.monotonic()
            elif time.monotonic() - self._refreshed >= self._refresh_every:
                self._reader.refresh()
                self._refreshed = time.monotonic()
            return self._reader

    def answer(self, sent: Sent | None = None) -> Answer:
        """Return what there is."""
        try:
            buffer = self._read()
        except EmptyBufferError:
            return Answer(self._identity, self._place, 0, 0)
        masses = (0.0, 0.0)
        if sent is not None:
            with self._lock:
                sampler = self._sampler(buffer, sent)
                if isinstance(sampler, Prioritized):
                    masses = sampler.masses()
        return Answer(self._identity, self._place, len(buffer), int(buffer.counts()[1].sum()), *masses)

    # Reading

    def sample(self, size: int, sent: Sent) -> tuple[Any, Answer]:
        """Return a batch as arrays, None where there is nothing to draw."""
        try:
            buffer = self._read()
            with self._lock:
                sampler = self._sampler(buffer, sent)
            batch: Any = tree_map(lambda tensor: tensor.numpy(), buffer.sample(size, sampler))
        except EmptyBufferError:
            batch = None
        return batch, self.answer(sent)

    def _sampler(self, buffer: ReplayBuffer, sent: Sent) -> Sampler:
        """Return this node's own sampler of those settings; the newest by priority has its column."""
        sampler = self._samplers.pop(sent.pickled, None)
        if sampler is None:
            sampler = pickle.loads(sent.pickled)  # from a learner's process, over Ray
            sampler.seed_again(int.from_bytes(os.urandom(8)))  # as other nodes draw with one of the same seed
            if isinstance(sampler, Prioritized):
                sampler = self._keeper(buffer, sampler)
        self._samplers[sent.pickled] = sampler  # those that were not used for longest come first
        while len(self._samplers) > _SAMPLERS:
            del self._samplers[next(iter(self._samplers))]
        if isinstance(sampler, Prioritized) and sent.beta is not None:
            sampler.beta = sent.beta
        return sampler

    def _keeper(self, buffer: ReplayBuffer, sampler: Prioritized) -> Prioritized:
        """Return what draws by a column: what does so already, or, where it draws otherwise, a new sampler in its place."""
        keeper = self._keepers.get(sampler.column)
        if keeper is not None and (keeper.alpha, keeper.form) == (sampler.alpha, sampler.form):
            return keeper
        self._keepers.pop(sampler.column, None)
        self._samplers = {pickled: one for pickled, one in self._samplers.items() if one is not keeper}
        until = time.monotonic() + _LEARNING_WAIT
        while True:
            keeper = None
            gc.collect()
            try:
                buffer.loader(1, sampler, rank=0, world_size=1)  # draws nothing
                break
            except (LockedError, InputError):  # by a process that dies, or a thread that draws with the one before
                if time.monotonic() > until:
                    raise
                time.sleep(0.01)
        self._keepers[sampler.column], self._wrote = sampler, True
        return sampler

    # Learners' columns

    def update(self, sent: Sent, steps: Int64, priorities: npt.NDArray[Any]) -> tuple[int, Answer]:
        """Set priorities of steps; return of how many, as those evicted since are left out."""
        buffer = self._read()
        with self._lock:
            sampler = self._sampler(buffer, sent)
        assert isinstance(sampler, Prioritized)
        return sampler.update(steps, priorities), self.answer(sent)

    def write(self, name: str, steps: Int64, values: npt.NDArray[Any]) -> int:
        """Write a column's values of steps; return of how many, as those evicted since are left out."""
        self._wrote = True
        return self._read().columns.write(name, steps, values)

    # Steps of actors without a disk: each has a store of its own, and how long that is tells which steps have come

    def open_inbox(self, client: str, node: str, options: Mapping[str, Any]) -> list[int]:
        """Give a client a store of its own, which is its own until it releases it; return its environments' steps ever.

        Parameters
        ----------
        client : str
            Which no other ever has.
        node : str
            Where it runs: it is gone when the node is.
        options : mapping
            For `ReplayBuffer`.
        """
        with self._lock:
            if client not in self._inboxes:
                self._inboxes[client] = ReplayBuffer(self._directory, writer=self._inbox_name(client, node, options), **options)
                self._inboxes[client].cut_off()
        return self._ever(client)

    def _inbox_name(self, client: str, node: str, options: Mapping[str, Any]) -> str:
        """Return the name of a client's store: the one that it has, else one that was released, else a new one."""
        envs, inboxes = options.get("n_envs") or 1, self._read_inboxes()
        alive = {one["NodeID"] for one in ray.nodes() if one["Alive"]}
        for name, (owner, _, _) in inboxes.items():
            if owner == client:
                return name
        free = [name for name, (owner, at, n) in inboxes.items() if n == envs and (owner == "" or at not in alive)]
        name = free[0] if free else f"inbox-{len(inboxes)}"
        self._write_inboxes({**inboxes, name: (client, node, envs)})
        return name

    def _read_inboxes(self) -> dict[str, tuple[str, str, int]]:
        with contextlib.suppress(FileNotFoundError):
            return {name: (owner, at, n) for name, (owner, at, n) in json.loads((self._directory / _INBOXES).read_text()).items()}
        return {}

    def _write_inboxes(self, inboxes: Mapping[str, tuple[str, str, int]]) -> None:
        draft = (self._directory / _INBOXES).with_suffix(".tmp")
        with draft.open("w") as file:
            json.dump(dict(inboxes), file)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(self._directory / _INBOXES)

    def _ever(self, client: str) -> list[int]:
        ever: list[int] = self._inboxes[client].counts()[1].tolist()
        return ever

    def add(self, client: str, call: int, ever: list[int], env: int | None, values: Mapping[str, Any]) -> list[int]:
        """Add what a client's `add`, or `extend` of one environment, was given; return its environments' steps ever.

        Parameters
        ----------
        call : int
            The number of the client's call: one that was answered before is not carried out again.
        ever : list of int
            The environments' steps before this call. Where the store has more, the process died after it had stored them.
        """
        if client not in self._inboxes:
            raise NotFoundError("this inbox is not open here")
        last, answer = self._last_calls.get(client, (-1, []))
        if call == last:
            return answer
        buffer, stored = self._inboxes[client], self._ever(client)
        if env is not None:
            buffer.extend(**_after(values, stored[env] - ever[env]), env=env)
        elif stored == ever:
            buffer.add(**values)
        else:  # the process died within the call, after some environments' steps were stored
            for n in np.flatnonzero(np.equal(stored, ever)).tolist():
                buffer.extend(**_step_of(values, n), env=n)
        self._last_calls[client] = call, self._ever(client)
        return self._last_calls[client][1]

    def release(self, client: str) -> None:
        """Close a client's store; another one may continue it."""
        with self._lock:
            self._last_calls.pop(client, None)
            if (buffer := self._inboxes.pop(client, None)) is not None:
                buffer.close()
            inboxes = self._read_inboxes().items()
            self._write_inboxes({name: ("" if owner == client else owner, at, n) for name, (owner, at, n) in inboxes})

    # Keeping

    def flush(self) -> None:
        """Sync everything that was written here to the disk."""
        for buffer in [*self._inboxes.values(), *([self._read()] if self._wrote else [])]:
            buffer.flush()

    def close(self) -> None:
        """Close everything."""
        for buffer in [*self._inboxes.values(), *([] if self._reader is None else [self._reader])]:
            buffer.close()


def _after(values: Mapping[str, Any], count: int) -> dict[str, Any]:
    """Return what `extend` was given, without the first steps, which are stored."""
    if not count:
        return dict(values)
    rest = {name: tree_map(lambda value: value[count:], value) for name, value in values.items() if name != "new_episode"}
    begins = values.get("new_episode")
    if isinstance(begins, np.ndarray) and begins.ndim:
        rest["new_episode"] = begins[count:]
    elif begins is not None:  # which was about the first step
        rest["new_episode"] = False
    return rest


def _step_of(values: Mapping[str, Any], env: int) -> dict[str, Any]:
    """Return one environment's part of what `add` was given, as arrays of one step."""
    given = {name: value for name, value in values.items() if name not in ("info", "new_episode")}
    step = {name: tree_map(lambda value: value[env][None], value) for name, value in given.items()}
    info, begins = values.get("info"), values.get("new_episode")
    if info is not None and (step["terminated"] | step["truncated"]).any():  # next_obs is the next episode's first
        final = info["final_obs"][env] if isinstance(info, Mapping) else info[env]["terminal_observation"]
        step["next_obs"] = tree_map(lambda value: np.asarray(value)[None], final)
    if begins is not None:
        step["new_episode"] = bool(np.broadcast_to(begins, len(given["reward"]))[env])
    return step
