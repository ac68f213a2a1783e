"""What a client knows of the shards: how many steps each has, and which of them do not answer."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayError, RayTaskError

from diskbuffer import Sampler
from diskbuffer.adapters.ray.shard import Sent, State
from diskbuffer.errors import DiskBufferError

_AGAIN = 0.5  # seconds until a shard that failed is asked again


@dataclass
class Known:
    """What is known of one shard.

    Attributes
    ----------
    away_since : float or None
        When it was found not to answer, in seconds of the monotonic clock; None while it does.
    skipped : int
        Batches that went without it.
    """

    number: int
    handle: Any
    state: State | None = None
    away_since: float | None = None
    skipped: int = 0
    rejoined: int = 0
    pending: Any = None  # a call that is not answered yet ...
    asked_at: float = 0.0
    why: str = ""
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def answers(self) -> bool:
        """Whether it does, as far as is known."""
        return self.away_since is None and self.state is not None

    def heard(self, state: State) -> None:
        """Take what it told of itself."""
        with self.lock:
            self.state = state
            if self.away_since is not None:
                self.away_since, self.rejoined, self.why = None, self.rejoined + 1, ""

    def missed(self, error: BaseException) -> None:
        """Note that it did not answer."""
        with self.lock:
            if self.away_since is None:
                self.away_since = time.monotonic()
            self.why = str(error).splitlines()[0][:200] if str(error) else type(error).__name__


class Shards:
    """Know the shards, and ask them in the background how they are, so that nobody waits for one that is gone.

    Parameters
    ----------
    handles : sequence of ray actors
    patience : float
        Seconds after which a shard that does not answer is away.
    every : float
        Seconds between two questions.
    """

    def __init__(self, handles: Sequence[Any], patience: float, every: float) -> None:
        self.known = [Known(number, handle) for number, handle in enumerate(handles)]
        self.patience, self._every = patience, every
        self._samplers: dict[str, tuple[Sent, weakref.ref[Sampler]]] = {}
        self._reading = False
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def watch_away(self) -> None:
        """Keep asking those that do not answer. Who only adds asks nobody else: there may be many who add."""
        if self._thread is None and any(known.away_since is not None for known in self.known):
            self._start()

    def _start(self) -> None:
        self._thread = threading.Thread(target=self._watch, name="diskbuffer-shards", daemon=True)
        self._thread.start()

    def watch(self, sampler: Sampler | None = None, sent: Sent | None = None) -> None:
        """Keep asking all from now on; about a sampler by priority, too, as long as it lives.

        The first time, wait for the first answers.
        """
        if self._reading and sampler is None:
            return  # as most calls: batches by themselves are made in tens of microseconds
        is_new = sent is not None and sent.token not in self._samplers
        if sampler is not None and sent is not None:
            self._samplers[sent.token] = sent, weakref.ref(sampler)
        self._reading = True
        if self._thread is None:
            self._start()
        if is_new or all(known.state is None for known in self.known):
            self.ask_all()

    def ask_all(self) -> None:
        """Ask every shard now that is not away, and wait for those that answer in time."""
        samplers = self._watched()
        calls = [(known, known.handle.state.remote(samplers)) for known in self.known if known.away_since is None]
        until = time.monotonic() + self.patience
        for known, ref in calls:
            receive(known, ref, until)

    def _watched(self) -> tuple[Sent, ...]:
        for token, (_, sampler) in list(self._samplers.items()):
            if sampler() is None:
                self._samplers.pop(token, None)
        return tuple(sent for sent, _ in list(self._samplers.values()))

    def _watch(self) -> None:
        while not self._stopped.wait(self._every):
            for known in self.known:
                if self._reading or known.pending is not None or known.away_since is not None:
                    self._look(known)

    def _look(self, known: Known) -> None:
        now = time.monotonic()
        if known.pending is None:
            if known.away_since is not None and now - known.asked_at < _AGAIN:
                return
            known.pending, known.asked_at = known.handle.state.remote(self._watched()), now
        done, _ = ray.wait([known.pending], timeout=0, fetch_local=False)
        if done:
            ref, known.pending = known.pending, None
            try:
                receive(known, ref, now + self.patience)
            except (DiskBufferError, OSError) as error:  # its store cannot be read
                known.missed(error)
        elif now - known.asked_at > self.patience:
            known.missed(TimeoutError(f"no answer for {self.patience:g} s"))

    def stop(self) -> None:
        """Ask no more."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()


def receive(known: Known, ref: Any, until: float) -> Any:
    """Return a shard's answer, and note what it tells of itself; None where there is none in time.

    An answer is a `State`, or a tuple that ends with one. What our own code raised there is raised here.
    """
    try:
        answer = ray.get(ref, timeout=max(until - time.monotonic(), 0.001))
    except (GetTimeoutError, RayActorError) as error:
        known.missed(error)
        return None
    except RayTaskError as error:
        raise own_error(error) from None
    except RayError as error:  # an object that was lost with its node
        known.missed(error)
        return None
    known.heard(answer if isinstance(answer, State) else answer[-1])
    return answer


def own_error(error: RayTaskError) -> BaseException:
    """Return what was raised in an actor."""
    cause = error.cause
    return cause if isinstance(cause, BaseException) else error
