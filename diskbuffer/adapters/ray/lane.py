"""A client's way to a shard: blocks of steps are sent, and kept until the shard has acknowledged them.

A shard that dies takes nothing with it that it had acknowledged, as its store keeps that. The rest the client sends again.
Each block tells how many steps its stream has before it, so whatever part of it was added already is not added twice.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from diskbuffer.adapters.ray.shard import Written
from diskbuffer.adapters.ray.shards import Known, own_error
from diskbuffer.errors import NOT_OF_ARGUMENTS, InputError, UnreachableError

_HOME_AGAIN = 5.0  # seconds between two attempts to go back to the shard near by


@dataclass
class Block:
    """Steps of one environment that were sent, and not acknowledged yet."""

    env: int
    start: int  # steps that its stream has ever had before it
    count: int
    values: dict[str, Any]
    new_episode: Any
    ref: Any = None


class Lane:
    """Send blocks of steps to one shard, or to another where that one is gone for long.

    Parameters
    ----------
    client : str
        A name that nobody else has.
    envs : int
        Environments of this client, each of which gets a stream of its own.
    nearest : callable
        Returns shards in the order in which they are to be tried.
    in_flight : int
        Blocks that may be sent and not acknowledged: more are waited for.
    patience : float
        Seconds to wait for a shard before another is tried.
    note : callable
        Called with a shard after it has acknowledged a block.

    Attributes
    ----------
    acknowledged, resent, lost, moves : int
        Steps that a shard has for sure; steps that were sent again; acknowledged steps that a power loss took from a shard; how
        often another shard was gone to.
    waited : float
        Seconds that the caller was held up by shards that were slow.
    """

    def __init__(
        self,
        client: str,
        envs: int,
        nearest: Callable[[], list[Known]],
        in_flight: int,
        patience: float,
        note: Callable[[Known], None],
    ) -> None:
        self._client, self._envs, self._nearest = client, envs, nearest
        self._in_flight, self._patience = in_flight, patience
        self._note = note
        self._shard: Known | None = None
        self._streams: list[int] = []
        self._next = [0] * envs  # of each environment, where its next block starts
        self._pending: deque[Block] = deque()
        self._lock = threading.RLock()
        self._home_asked = 0.0
        self.acknowledged = self.resent = self.lost = self.moves = 0
        self.waited = 0.0

    @property
    def shard(self) -> int | None:
        """The number of the shard that steps go to."""
        return None if self._shard is None else self._shard.number

    @property
    def outstanding(self) -> int:
        """How many steps are not acknowledged."""
        return sum(block.count for block in list(self._pending))

    def look(self) -> None:
        """Take the answers that are there already."""
        with self._lock:
            while self._pending and self._pending[0].ref is not None and ray.wait([self._pending[0].ref], timeout=0)[0]:
                self._settle()

    def send(self, env: int, count: int, values: dict[str, Any], new_episode: Any) -> None:
        """Send a block of steps; wait where too many are under way.

        Raises
        ------
        UnreachableError
            No shard answers. The block is kept, and sent again with the next.
        InputError
            What an earlier block, or this one, has does not fit. That block is dropped.
        """
        with self._lock:
            block = Block(env, self._next[env], count, values, new_episode)
            self._next[env] += count
            self._pending.append(block)  # first: whatever is raised below, it is kept
            if self._shard is None:
                self._resume()
            else:
                self._start(block)
            while len(self._pending) > self._in_flight:
                self._settle()
            self._go_home()

    def wait(self) -> None:
        """Wait until everything that was sent is acknowledged."""
        with self._lock:
            while self._pending:
                self._settle()

    def leave(self) -> None:
        """Give the streams back."""
        if self._shard is not None:
            self._shard.handle.leave.remote(self._client)

    def _start(self, block: Block) -> None:
        assert self._shard is not None
        block.ref = self._shard.handle.write.remote(
            self._client, self._streams[block.env], block.start, block.count, block.values, block.new_episode
        )

    def _settle(self) -> None:
        """Wait for the answer to the oldest block."""
        begin = time.perf_counter()
        try:
            if not self._is_taken(self._pending[0], self._patience):
                self._resume()
        finally:
            self.waited += time.perf_counter() - begin

    def _is_taken(self, block: Block, patience: float) -> bool:
        """Return whether the oldest block was acknowledged; forget it then."""
        assert self._shard is not None
        if block.ref is None:  # no shard was there to send it to
            return False
        try:
            answer: Written = ray.get(block.ref, timeout=patience)
        except RayTaskError as error:
            self._drop(block)
            raise own_error(error) from None
        except RayError as error:
            self._shard.missed(error)
            return False
        self._shard.heard(answer.state)
        if answer.taken:
            self._pending.popleft()
            self.acknowledged += block.count
            self._note(self._shard)
        return answer.taken

    def _drop(self, block: Block) -> None:
        """Forget a block that cannot be added, as its values do not fit; what comes after it goes on without."""
        self._pending.remove(block)
        for later in self._pending:
            later.start -= block.count if later.env == block.env else 0
        self._next[block.env] -= block.count
        if self._pending:
            self._resume()

    # After a shard died, or was slow

    def _resume(self) -> None:
        """Join the shard again, or another, and send again what is not acknowledged."""
        until = time.monotonic() + self._patience
        while True:
            for shard in self._candidates(until):
                if self._join(shard) and self._send_again():
                    return
            if time.monotonic() > until + self._patience:
                raise UnreachableError(
                    f"no shard takes steps: waited {2 * self._patience:g} s. {sum(b.count for b in self._pending)} steps are "
                    "kept, and are sent again with the next call"
                )
            time.sleep(0.05)

    def _candidates(self, until: float) -> list[Known]:
        """Return whom to try: the shard itself as long as it may come back, and then others, too."""
        if self._shard is None or time.monotonic() > until:
            return self._nearest()
        return [self._shard]

    def _join(self, shard: Known) -> bool:
        same = shard is self._shard
        requested = tuple(self._streams) if same else ()
        try:
            streams, ever = ray.get(shard.handle.join.remote(self._client, self._envs, requested), timeout=self._patience)
        except RayTaskError as error:
            cause = own_error(error)
            if isinstance(cause, InputError) and not isinstance(cause, NOT_OF_ARGUMENTS) and len(self._nearest()) > 1:
                return False  # it has no room, and another may
            raise cause from None
        except RayError as error:
            shard.missed(error)
            return False
        if same and streams == self._streams:
            self._shift_after_loss(ever)
        else:
            self.moves += self._shard is not None
            self._shard, self._streams = shard, streams
            self._begin_at(ever)
        return True

    def _shift_after_loss(self, ever: list[int]) -> None:
        """Go on where streams are, if a power loss took steps from them that had been acknowledged."""
        for env, count in enumerate(ever):
            first = next((block.start for block in self._pending if block.env == env), self._next[env])
            if count < first:
                self.lost += first - count
                self._shift(env, count - first)

    def _begin_at(self, ever: list[int]) -> None:
        """Give blocks new numbers, for streams that have had so many steps."""
        for env, count in enumerate(ever):
            mine = [block for block in self._pending if block.env == env]
            self._shift(env, count - (mine[0].start if mine else self._next[env]))

    def _shift(self, env: int, by: int) -> None:
        for block in self._pending:
            block.start += by if block.env == env else 0
        self._next[env] += by

    def _send_again(self) -> bool:
        """Send what is not acknowledged, one block after the other; return whether all was taken."""
        while self._pending:
            self.resent += self._pending[0].count if self._pending[0].ref is not None else 0
            self._start(self._pending[0])
            if not self._is_taken(self._pending[0], self._patience):
                return False
        return True

    def _go_home(self) -> None:
        """Go back to the nearest shard, where it is there again."""
        now = time.monotonic()
        home = self._nearest()[0]
        if home is self._shard or not home.answers or now - self._home_asked < _HOME_AGAIN:
            return
        self._home_asked = now
        self.wait()
        self._join(home)
