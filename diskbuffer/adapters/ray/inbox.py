"""How actors add steps whose node has no disk: to a store of their own on another node's.

A step is in a file when `add` returns, and survives a kill of every process.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Mapping
from typing import Any, Self

import ray

from diskbuffer.adapters.ray.node_store import Call, Client
from diskbuffer.adapters.ray.nodes import Nodes
from diskbuffer.adapters.ray.rate import ClusterLimiter
from diskbuffer.errors import ClosedError, DiskBufferError, InputError, UnreachableError
from diskbuffer.plugin import as_array, integer, seconds_of


class Inbox:
    """A store on another node's disk, with the methods of a `ReplayBuffer` that add.

    Attributes
    ----------
    limiter : ClusterLimiter or None
    name : str
        Of the store, which no other in the cluster has.
    """

    def __init__(self, nodes: Nodes, options: Mapping[str, Any], timeout: float) -> None:
        if "env" in options:
            raise InputError("this node has no disk, and an environment stays here: give n_envs= and autoreset= in place of env=")
        self._nodes, self._timeout = nodes, seconds_of("timeout", timeout)
        mode = options.get("autoreset") or ("disabled" if options.get("n_envs") in (None, 1) else "next_step")
        self._has_resets, options = mode == "next_step", {**options, "autoreset": mode}
        self.limiter: ClusterLimiter | None = None
        self._client = Client(uuid.uuid4().hex, ray.get_runtime_context().get_node_id(), ray.put(options))
        self._calls, self._closed, self._is_sure, self._lock = 0, False, True, threading.Lock()
        numbers = [node.last.number for node in nodes if node.answers]
        if not numbers:
            raise UnreachableError("no node with a disk answers; the buffer's stats() tells why")
        self._number = numbers[int(self._client.id, 16) % len(numbers)]
        self._ever: list[int]
        store, self._ever = self._ask("open_inbox", self._client)
        self._client, self.name = self._client._replace(store=store), f"{self._number}/{store}"

    @property
    def n_envs(self) -> int:
        """Environments of this writer."""
        return len(self._ever)

    @property
    def added(self) -> int:
        """Steps that the store has ever had."""
        return sum(self._ever)

    def add(self, obs: Any, action: Any, reward: Any, next_obs: Any, terminated: Any, truncated: Any, **others: Any) -> int:
        """Add one step of every environment, as `ReplayBuffer.add`. A call takes a millisecond or two: `extend` adds blocks.

        Raises
        ------
        UnreachableError, KeyboardInterrupt
            The node does not answer, or this was interrupted. Whether this call's steps are stored is not known, and the writer
            takes no others: make another one.
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
        given = {name: value for name, value in values.items() if value is not None}
        given |= {name: _arrays(name, value) for name, value in given.items() if name not in ("info", "infos")}
        with self._lock:
            if self._closed or not self._is_sure:
                raise ClosedError("this writer was closed, or a call was not answered; make another one")
            if self.limiter is not None:
                self.limiter.wait_to_add()
            before, call, self._calls, self._is_sure = self.added, self._calls, self._calls + 1, False
            try:
                self._ever = self._ask("add", self._client, Call(call, self._ever, env, given))
            except UnreachableError:
                raise
            except DiskBufferError:
                _, self._ever = self._ask("open_inbox", self._client)  # as a disk may be full half-way
                self._is_sure = True
                raise
            self._is_sure = True
            if self.limiter is not None:
                self.limiter.note_added(self.added)
            return self.added - before

    def _ask(self, method: str, *arguments: Any) -> Any:
        """Return what the store's node answers, wherever its disk is by now."""
        until = time.monotonic() + self._timeout
        while True:
            node = self._nodes.of(self._number)
            calls = [] if node is None else [(node, getattr(node.handle, method).remote(*arguments))]
            for _, answer in self._nodes.collect(calls):
                return answer
            if time.monotonic() > until:
                raise UnreachableError(f"the node that has this writer's store did not answer for {self._timeout:g} s")
            time.sleep(0.1)
            self._nodes.look()

    def flush(self) -> None:
        """Sync to the disk."""
        self._ask("flush", self._client)

    def close(self) -> None:
        """Let another writer continue the store. Twice is fine."""
        if not self._closed:
            self._closed = True
            self._ask("release", self._client)
            if self.limiter is not None:
                self.limiter.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _arrays(name: str, value: Any) -> Any:
    """Return arrays for what `add` takes."""
    if isinstance(value, Mapping):
        return {key: _arrays(f"{name}/{key}", part) for key, part in value.items()}
    return as_array(name, value)
