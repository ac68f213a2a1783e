"""How actors add steps whose node has no disk: to a store of their own on another node's.

A step is in a file when `add` returns, and survives a kill of every process.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Self

import ray
from torch.utils._pytree import tree_leaves

from diskbuffer.adapters.ray.node_store import Client
from diskbuffer.adapters.ray.nodes import Nodes
from diskbuffer.adapters.ray.rate import ClusterLimiter
from diskbuffer.errors import ClosedError, DiskBufferError, InputError, UnreachableError
from diskbuffer.plugin import as_array, integer, seconds_of

_LAST = 5.0  # seconds in which a node that did not answer before is told that a writer is closed


class Inbox:
    """A store on another node's disk, with the methods of a `ReplayBuffer` that add.

    Parameters
    ----------
    ask : callable
        Calls a method of the `NodeStore`, and waits for `timeout` seconds: None where its process died at an `add`.
    client : Client
    options : dict or ray.ObjectRef of one
        For the `ReplayBuffer`.
    directory : int
        The number of the node's directory.
    has_resets : bool
        Whether resets have rows of their own.
    timeout : float

    Attributes
    ----------
    limiter : ClusterLimiter or None
    name : str
        Of the store, which no other in the cluster has.
    n_envs : int
        Environments of this writer.
    added : int
        Steps that the store has ever had.
    """

    def __init__(
        self, ask: Callable[..., Any], client: Client, options: Any, *, directory: int, has_resets: bool, timeout: float
    ) -> None:
        self._ask_node, self._client, self._options = ask, client, options
        self._has_resets, self._timeout = has_resets, timeout
        self.limiter: ClusterLimiter | None = None
        self._closed, self._is_sure, self._lock = False, True, threading.Lock()
        self._taken: list[int] | None = None  # as of `rows_taken`; None where an error came since
        store, self._taken = self._open()
        self._client, self.name = client._replace(store=store), f"{directory}/{store}"
        self.n_envs, self.added = len(self._taken), _steps(self._taken)

    def _ask(self, method: str, *arguments: Any) -> Any:
        return self._ask_node(method, *arguments, timeout=self._timeout)

    def _open(self) -> tuple[str, list[int]]:
        """Return the name of the store, and how far its environments came; it is opened where the node's process is a new one."""
        opened: tuple[str, list[int]] = self._ask("open_inbox", self._client, self._options)
        return opened

    def add(self, obs: Any, action: Any, reward: Any, next_obs: Any, terminated: Any, truncated: Any, **others: Any) -> int:
        """Add one step of every environment, as `ReplayBuffer.add`. A call takes some milliseconds: `extend` adds blocks.

        Raises
        ------
        UnreachableError, KeyboardInterrupt
            The node does not answer, it died when it had stored a part of this call's steps, or this was interrupted. The writer
            takes no others: make another one. Steps of other calls are stored.
        ClosedError
            It was closed; or another writer continues its store, as this node seemed to be gone. Nothing was added.
        LimiterTimeoutError
            Too little is sampled. Nothing was added.
        InputError, StackError, DiskFullError
            As by `ReplayBuffer.add`.
        """
        step = {"obs": obs, "action": action, "reward": reward, "next_obs": next_obs}
        return self._add(None, {**step, "terminated": terminated, "truncated": truncated, **others})

    def extend(self, obs: Any, action: Any, reward: Any, *, env: int | None = None, **others: Any) -> int:
        """Add arrays of steps of one environment, as `ReplayBuffer.extend`; errors are those of `add`.

        An InputError in autoreset mode "next_step": how many of the rows are steps, and no resets, is known when they are stored.
        """
        if self._has_resets:
            raise InputError(
                "extend on a node without a disk takes no reset rows: leave them out, and make the writer with "
                "autoreset='disabled', or give add() a step of all environments"
            )
        if env is None and self.n_envs > 1:
            raise InputError(f"give env=, which of {self.n_envs} environments these steps are of")
        env = integer("env", env or 0, 0, self.n_envs - 1)
        return self._add(env, {"obs": obs, "action": action, "reward": reward, **others})

    def _add(self, env: int | None, values: Mapping[str, Any]) -> int:
        given = {name: value if name in ("info", "infos") else _arrays(name, value) for name, value in values.items()}
        with self._lock:
            if self._closed or not self._is_sure:
                raise ClosedError("this writer was closed, or a call was not answered; make another one")
            if self.limiter is not None:
                self.limiter.wait_to_add()
            taken = self._taken or self._open()[1]
            before, self._taken, self._is_sure = _steps(taken), None, False
            try:
                self._taken = self._send(taken, env, given)
            except (DiskBufferError, ray.exceptions.RayTaskError) as error:
                self._is_sure = not isinstance(error, UnreachableError)  # the store tells it, and may have taken a part
                raise
            self._is_sure, self.added = True, _steps(self._taken)
            if self.limiter is not None:
                self.limiter.note_added(self.added)
            return self.added - before

    def _send(self, before: list[int], env: int | None, values: Mapping[str, Any]) -> list[int]:
        """Have the store take what `add` or `extend` was given, once; return how far it comes so."""
        now: list[int] | None
        until, has_died = time.monotonic() + self._timeout, False
        try:
            while (now := self._ask("add", self._client.id, before, env, values)) is None:
                has_died = True
                _, now = self._open()
                if env is None:
                    is_done = all(b > a for a, b in zip(before, now, strict=True))
                else:
                    is_done = now[env] == before[env] + 2 * len(tree_leaves(values["reward"])[0])
                if is_done:
                    break
                if now != before or time.monotonic() > until:
                    raise UnreachableError("the node died when it had stored this call's steps, or a part; make another writer")
        except (DiskBufferError, ray.exceptions.RayTaskError) as error:
            if not has_died or isinstance(error, UnreachableError):
                raise
            message = f"the node died when it had this call's steps, and may have stored them ({error}); make another writer"
            raise UnreachableError(message) from error
        return now

    def flush(self) -> None:
        """Sync to the disk."""
        self._ask("sync_inbox", self._client, self._options)

    def close(self) -> None:
        """Let another writer continue the store. Twice is fine."""
        if not self._closed:
            self._closed = True
            try:
                self._timeout = self._timeout if self._is_sure else min(self._timeout, _LAST)
                self._ask("release", self._client)
            except UnreachableError:
                if self._is_sure:  # if not, that was told before
                    raise
            finally:
                if self.limiter is not None:
                    self.limiter.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open_inbox(nodes: Nodes, options: Mapping[str, Any], timeout: float) -> Inbox:
    """Open a store on a node that answers, for a client on this one; it continues one that nobody writes to, if there is one."""
    if "env" in options:
        raise InputError("this node has no disk, and an environment stays here: give n_envs= and autoreset= in place of env=")
    mode = options.get("autoreset") or ("disabled" if options.get("n_envs") in (None, 1) else "next_step")
    client, timeout = Client(uuid.uuid4().hex, ray.get_runtime_context().get_node_id()), seconds_of("timeout", timeout)
    numbers = [node.last.number for node in nodes if node.answers]
    if not numbers:
        raise UnreachableError("no node with a disk answers; the buffer's stats() tells why")
    number = numbers[int(client.id, 16) % len(numbers)]
    there = ray.put({**options, "autoreset": mode})  # as only opening needs them, and spaces may be large
    return Inbox(partial(nodes.ask, number), client, there, directory=number, has_resets=mode == "next_step", timeout=timeout)


def _steps(taken: list[int]) -> int:
    """Return how many steps there ever were."""
    return sum(each // 2 for each in taken)


def _arrays(name: str, value: Any) -> Any:
    """Return arrays for what `add` takes."""
    if value is None:
        return None
    if isinstance(value, Mapping):
        return {key: _arrays(f"{name}/{key}", part) for key, part in value.items()}
    return as_array(name, value)
