"""Adding steps: collected into blocks, held up where the limiter has it so, and sent until a shard has acknowledged them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from diskbuffer.adapters.ray.blocks import Blocks, count_steps
from diskbuffer.adapters.ray.lane import Lane
from diskbuffer.adapters.ray.limiting.limiter import ClusterLimiter
from diskbuffer.adapters.ray.metrics import ClientMetrics
from diskbuffer.adapters.ray.shards import Known
from diskbuffer.errors import DiskBufferError

NAMES = ("obs", "action", "reward", "next_obs", "terminated", "truncated")  # of what `extend` takes, in its order


class Adding:
    """Add the steps of one process.

    Parameters
    ----------
    client : str
    envs, block, in_flight, patience
        As of `RayReplayBuffer`.
    nearest : callable
        Returns shards in the order in which they are to be tried.
    limiter : ClusterLimiter or None
    metrics : ClientMetrics

    Attributes
    ----------
    lane : Lane
        On which blocks are sent.
    """

    def __init__(
        self,
        client: str,
        envs: int,
        block: int,
        in_flight: int,
        patience: float,
        nearest: Callable[[], list[Known]],
        limiter: ClusterLimiter | None,
        metrics: ClientMetrics,
    ) -> None:
        self._envs, self._limiter, self._metrics = envs, limiter, metrics
        self._blocks = Blocks(envs, block)
        self._added: dict[int, int] = {}  # what shards told that they have, with what they acknowledged
        self.lane = Lane(client, envs, nearest, in_flight, patience, self._note)

    def add(self, values: dict[str, Any], new_episode: Any) -> None:
        """Take a step of each environment."""
        late = self._wait()
        for block in self._blocks.add(values, new_episode):
            self._send(*block)
        if late is not None:
            raise late

    def extend(self, values: dict[str, Any], env: int, new_episode: Any) -> int:
        """Take steps of one environment; return how many."""
        count = count_steps(values)
        late = self._wait()
        for held in self._blocks.take(env):
            self._send(*held)
        self._send(env, count, values, new_episode)
        if late is not None:
            raise late
        return count

    def push(self) -> None:
        """Send what is held back, and wait until all is acknowledged."""
        for env in range(self._envs):
            for held in self._blocks.take(env):
                self._send(*held)
        self.lane.wait()

    def look(self) -> None:
        """Tell the limiter of what was acknowledged meanwhile."""
        if self._limiter is not None:
            self.lane.look()

    def _wait(self) -> DiskBufferError | None:
        """Wait as the limiter has it; return what was wrong with earlier steps, to be raised once this call's are taken."""
        late: list[DiskBufferError] = []

        def push() -> None:
            try:
                self.push()
            except DiskBufferError as error:
                late.append(error)

        if self._limiter is not None:
            self._limiter.wait_to_add(self._outstanding, push)
        return late[0] if late else None

    def _outstanding(self) -> int:
        return self._blocks.held + self.lane.outstanding

    def _send(self, env: int, count: int, values: dict[str, Any], new_episode: Any) -> None:
        before = self.lane.waited
        try:
            self.lane.send(env, count, values, new_episode)
        finally:
            if self.lane.waited > before:
                self._metrics.waited(self.lane.waited - before)

    def _note(self, shard: Known) -> None:
        if self._limiter is not None and shard.state is not None:
            self._added[shard.number] = shard.state.added
            self._limiter.note_added(self.lane.acknowledged, self._added)
