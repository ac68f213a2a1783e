"""One batch of several shards: each gives its part, in proportion to what it has, and nobody waits long for one that is slow."""

from __future__ import annotations

import pickle
import time
import uuid
import weakref
from typing import Any

import numpy as np
import numpy.typing as npt

from diskbuffer import Prioritized, Sampler, Uniform
from diskbuffer.adapters.ray.local_shards import LocalShards
from diskbuffer.adapters.ray.names import SHARDS
from diskbuffer.adapters.ray.packing import joined, unpack
from diskbuffer.adapters.ray.shard import Sent, replaced_error
from diskbuffer.adapters.ray.shards import Known, Shards, receive
from diskbuffer.errors import EmptyBufferError, UnreachableError
from diskbuffer.plugin import Batch, power

_UPDATES = 8  # of priorities that may be on their way to a shard


class Drawing:
    """Draw batches over shards.

    Parameters
    ----------
    shards : Shards
    local : LocalShards or None
        Reads the shards on this machine, but for draws by priority, which are made where the priorities are.
    compress : bool
        Whether shards compress what they send.
    seed : int or None
    """

    def __init__(self, shards: Shards, local: LocalShards | None, *, compress: bool, seed: int | None) -> None:
        self._shards, self._local, self._compress = shards, local, compress
        self._random = np.random.default_rng(seed)
        self._uniform = Uniform(seed)
        self._sent: weakref.WeakKeyDictionary[Sampler, Sent] = weakref.WeakKeyDictionary()
        self._updates: dict[int, list[Any]] = {}
        self.dropped_updates = 0

    @property
    def _usable_local(self) -> LocalShards | None:
        """What reads shards here; None once columns were written to their stores, which shards alone see."""
        for one in self._shards.known:
            if one.state is not None and one.state.written:
                return None
        return self._local

    def is_all_local(self, sampler: Sampler | None) -> bool:
        """Return whether a batch takes no shard's help."""
        local = self._usable_local
        return local is not None and not isinstance(sampler, Prioritized) and len(local.shards) >= len(self._shards.known)

    def sample(self, size: int, sampler: Sampler | None) -> Batch:
        """Draw a batch.

        Raises
        ------
        EmptyBufferError
            No shard has a step.
        UnreachableError
            No shard that has steps answers.
        """
        if isinstance(sampler, Prioritized):
            self._shards.watch(sampler, self.describe(sampler))
        else:
            self._shards.watch()
        if self.is_all_local(sampler):
            assert self._local is not None
            return self._local.sample(size, sampler)
        sent = self.describe(sampler or self._uniform)
        parts: list[Batch] = []
        until = time.monotonic() + 2 * self._shards.patience
        while size:
            drawn = self._draw(size, sampler, sent)
            size -= sum(len(part["steps"]) for part in drawn)
            parts += drawn
            if size and time.monotonic() > until:
                raise UnreachableError(f"no shard gave steps for {2 * self._shards.patience:g} s; stats() tells why")
        return joined(parts)

    def _draw(self, size: int, sampler: Sampler | None, sent: Sent) -> list[Batch]:
        """Return parts of a batch: all of it, or less where a shard did not give its part in time."""
        by_priority = isinstance(sampler, Prioritized)
        if isinstance(sampler, Prioritized) and any(one.state and sent.token in one.state.replaced for one in self._shards.known):
            raise replaced_error(sampler.column)
        local = None if by_priority else self._usable_local
        known = [one for one in self._shards.known if local is None or one.number not in local.shards]
        answering = [one for one in known if one.answers]
        for one in known:
            one.skipped += not one.answers
        weights = [_weight(one, sent, by_priority) for one in answering] + ([len(local)] if local is not None else [])
        total = float(sum(weights))
        if total <= 0:
            return self._nothing(known)
        shares = self._random.multinomial(size, np.array(weights, np.float64) / total).tolist()
        calls = [
            (one, one.handle.sample.remote(share, sent, self._compress))
            for one, share in zip(answering, shares, strict=False)
            if share
        ]
        parts = [local.sample(shares[-1], sampler)] if local is not None and shares[-1] else []
        until = time.monotonic() + self._shards.patience
        leasts = [_least(one, sent) for one in answering]
        for one, ref in calls:
            answer = receive(one, ref, until)
            if answer is None:
                one.skipped += 1
            elif answer[0] is not None:
                batch = unpack(answer[0])
                if by_priority:
                    _weigh(batch, sent, _least(one, sent), min(leasts))
                parts.append(batch)
        return parts

    def _nothing(self, known: list[Known]) -> list[Batch]:
        if all(one.answers for one in known):
            self._shards.ask_all()  # what was known may be old
            if not any(one.state is not None and one.state.steps for one in known):
                raise EmptyBufferError("the shards hold no complete step yet; add some before sampling")
        time.sleep(0.01)
        return []

    def describe(self, sampler: Sampler) -> Sent:
        """Return a sampler as it goes to shards, each of which makes one of its own of it."""
        description = self._sent.get(sampler)
        if description is None:
            description = Sent(uuid.uuid4().hex, pickle.dumps(sampler), None)
            self._sent[sampler] = description
        return description._replace(beta=sampler.beta) if isinstance(sampler, Prioritized) else description

    def update(self, sampler: Prioritized, steps: npt.NDArray[np.int64], priorities: npt.NDArray[Any]) -> None:
        """Send priorities to the shards that have the steps; wait where a shard has too many to do."""
        sent = self.describe(sampler)
        first = steps if steps.ndim == 1 else steps.max(axis=1)  # padded with -1
        for number in np.unique(first % SHARDS).tolist():
            mine, known = first % SHARDS == number, self._shards.known[number]
            if not known.answers:
                self.dropped_updates += int(mine.sum())
                continue
            own = np.where(steps[mine] < 0, -1, steps[mine] // SHARDS)
            waiting = self._updates.setdefault(number, [])
            waiting.append(known.handle.update.remote(sent, own, priorities[mine]))
            if len(waiting) > _UPDATES:
                self._settle(known, waiting.pop(0))

    def settle(self) -> None:
        """Wait until shards have taken all priorities."""
        for number, waiting in self._updates.items():
            while waiting:
                self._settle(self._shards.known[number], waiting.pop(0))

    def _settle(self, known: Known, ref: Any) -> None:
        if receive(known, ref, time.monotonic() + self._shards.patience) is None:
            self.dropped_updates += 1


def _weight(one: Known, sent: Sent, by_priority: bool) -> float:
    assert one.state is not None
    return one.state.priorities.get(sent.token, (0.0, 0.0))[0] if by_priority else float(one.state.steps)


def _least(one: Known, sent: Sent) -> float:
    assert one.state is not None
    return one.state.priorities.get(sent.token, (0.0, 0.0))[1] or np.inf


def _weigh(batch: Batch, sent: Sent, least: float, least_of_all: float) -> None:
    """Make a shard's weights those of one buffer: relative to the least likely step of all shards."""
    assert sent.beta is not None
    if np.isfinite(least) and least > 0:
        batch["weights"] *= float(power(np.array([min(least_of_all, least) / least]), sent.beta)[0])
