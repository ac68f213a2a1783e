"""A process's part in a limiter over a cluster: it waits here, and a thread of its own tells the counter what it did."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError

from diskbuffer import SampleToInsertRatio
from diskbuffer.adapters.ray.limiting.counter import Answer, Word
from diskbuffer.errors import ClosedError, LimiterTimeoutError

_BEAT = 5.0  # seconds between words of a process that does nothing
_POLL = 1.0  # seconds that the counter keeps the word of one who waits
_GATHERED = 0.002  # seconds between two words, so that many calls are told of at once
_AGAIN = 0.2  # seconds after which a counter that failed is asked again
_LOOK = 0.02  # seconds until a word follows another that is not answered yet, as something was done meanwhile
_WITHOUT = 30.0  # seconds that everybody waits for a counter at least, before going on without one
_GRACE = 300.0  # seconds that one waits although nobody is alive who could end it
_GRACE_OF_BOTH = 30.0  # the same of a thread that does both itself, and so most likely waits for itself
_ADD, _SAMPLE = "add", "sample"
_BY = {_ADD: "learner", _SAMPLE: "actor"}  # who ends the waits


class ClusterLimiter:
    """Hold a ratio of samples to inserts over a cluster, for one process. Made by `RayReplayBuffer`, as its attribute `limiter`.

    What the counter allows is for some steps, and some samples, so `add` and `sample` ask nobody as long as these last. A counter
    that died is waited for, half a minute or `patience`, until Ray has started it again: who went on would drift away. Then
    nobody waits for it any more: the counts go on, and the side that got ahead waits later.

    Parameters
    ----------
    counter : ray actor
    settings : SampleToInsertRatio
    client : str
        The process's name.
    where : str
        What messages call the buffer.
    patience : float
        Seconds.
    """

    def __init__(self, counter: Any, settings: SampleToInsertRatio, client: str, where: str, patience: float) -> None:
        self.settings, self._counter, self._client = settings, counter, client
        self._where, self._patience = where, patience
        self._acknowledged = self._taken = 0  # steps that shards acknowledged to us, samples that we took
        self._added: dict[int, int] = {}  # what shards told that they have
        self._allowed = (0, 0)  # how far the two may go
        self._answer, self._answered = Answer(0, 0, actors=False, learners=False), -1.0
        self._away_since: float | None = None
        self._waits: dict[str, int] = {_ADD: 0, _SAMPLE: 0}  # threads
        self._threads: dict[str, set[int]] = {_ADD: set(), _SAMPLE: set()}
        self._changed, self._wake = threading.Condition(), threading.Event()
        self._closed = False
        self._thread: threading.Thread | None = None
        self.waited = 0.0

    # What users ask

    @property
    def may_add(self) -> bool:
        """Whether `add` would not wait now."""
        return self._may(_ADD) or (self._ask() and self._may(_ADD))

    @property
    def may_sample(self) -> bool:
        """Whether `sample` would not wait now: in a loop that both adds and samples, learn while this holds."""
        return self._may(_SAMPLE) or (self._ask() and self._may(_SAMPLE))

    def state(self) -> dict[str, Any]:
        """Return where things stand; see `RayReplayBuffer.stats`."""
        self._ask()
        state: dict[str, Any] = {"answers": False, "waited": self.waited}
        with contextlib.suppress(RayError):
            state |= ray.get(self._counter.state.remote(self._client), timeout=self._patience) | {"answers": True}
        return state

    # What the buffer does

    def note_added(self, acknowledged: int, added: Mapping[int, int]) -> None:
        """Return how many steps of this process shards have acknowledged, and what they had then."""
        self._added |= added
        self._acknowledged = acknowledged
        self._wake.set()

    def note_sampled(self, samples: int) -> None:
        """Tell of samples that were delivered."""
        with self._changed:
            self._taken += samples
        self._wake.set()

    def wait_to_add(self, outstanding: Callable[[], int], push: Callable[[], None]) -> None:
        """Block while too few samples were drawn for what was added.

        Parameters
        ----------
        outstanding : callable
            Returns how many steps were given and are not acknowledged.
        push : callable
            Has all of these acknowledged: what is held back here is counted nowhere else.

        Raises
        ------
        LimiterTimeoutError
            It took too long.
        ClosedError
            The buffer was closed meanwhile.
        """
        self._begin(_ADD)
        if not self._may(_ADD, outstanding()):
            push()
            self._wait(_ADD)

    def wait_to_sample(self) -> bool:
        """Block while too little was added for what was sampled, as `wait_to_add`; return whether it had to."""
        self._begin(_SAMPLE)
        waits = not self._may(_SAMPLE)
        if waits:
            self._wait(_SAMPLE)
        return waits

    def _begin(self, what: str) -> None:
        if self._closed:
            raise ClosedError(f"{self._where} was closed")
        self._threads[what].add(threading.get_ident())
        if self._thread is None:
            with self._changed:
                if self._thread is None:
                    self._thread = threading.Thread(target=self._exchange, name="diskbuffer-limiter", daemon=True)
                    self._thread.start()

    def _may(self, what: str, outstanding: int = 0) -> bool:
        done = self._acknowledged + outstanding if what == _ADD else self._taken
        return done < self._allowed[what == _SAMPLE] or self._is_away

    @property
    def _is_away(self) -> bool:
        since = self._away_since
        return since is not None and time.monotonic() - since > max(self._patience, _WITHOUT)

    def _wait(self, what: str) -> None:
        begun = seen = time.monotonic()
        both, timeout = threading.get_ident() in self._threads[_SAMPLE if what == _ADD else _ADD], self.settings.timeout
        patience = timeout if timeout is not None else _GRACE_OF_BOTH if both else _GRACE
        if timeout is not None:
            self._ask()  # with 0 there is no second look
        with self._waiting(what), self._changed:
            while not self._may(what):
                if self._closed:
                    raise ClosedError(f"{self._where} was closed")
                now = time.monotonic()
                seen = now if timeout is None and self._is_alive(what) else seen
                if now - (seen if timeout is None else begun) >= patience:
                    raise LimiterTimeoutError(self._why(what, now - begun))
                self._changed.wait(min(patience, 0.1))

    @contextlib.contextmanager
    def _waiting(self, what: str) -> Iterator[None]:
        begun = time.monotonic()
        with self._changed:
            self._waits[what] += 1
        self._wake.set()
        try:
            yield
        finally:
            with self._changed:
                self._waits[what] -= 1
                self.waited += time.monotonic() - begun
            self._wake.set()

    def _is_alive(self, what: str) -> bool:
        """Return whether anybody but this thread is alive who could end its wait."""
        here = {thread.ident for thread in threading.enumerate()} - {threading.get_ident()}
        others = self._answer.learners if what == _ADD else self._answer.actors
        return others or bool(here & self._threads[_SAMPLE if what == _ADD else _ADD])

    def _why(self, what: str, seconds: float) -> str:
        state, by = self.state(), _BY[what]
        counts = (
            f"{state['inserts']:,} inserts and {state['samples']:,} samples count so far, at a ratio of {state['asked']:g}, with "
            f"{state['added']:,} steps in all and min_size={state['min_size']:,}"
            if state["answers"]
            else "the counter does not answer"
        )
        alive = "another one is alive" if self._is_alive(what) else f"no other process is alive as {by}"
        return (
            f"waited {seconds:.0f} s to {what} over {self._where}: {counts}. The {by} is behind, and {alive}. Start one, give a "
            "longer timeout=, or ask limiter.may_sample and may_add before each call where one thread does both"
        )

    # Words and answers

    def _word(self) -> Word:
        waits = tuple(what for what, threads in self._waits.items() if threads)
        samples = self._taken if self._threads[_SAMPLE] else None
        return Word(self._client, dict(self._added), samples, bool(self._threads[_ADD]), waits)

    def _ask(self) -> bool:
        """Ask now; return whether there was an answer."""
        acknowledged, word = self._acknowledged, self._word()._replace(waits=())
        try:
            self._take(acknowledged, word, ray.get(self._counter.ask.remote(word, 0.0), timeout=self._patience))
        except RayError:
            return False
        return True

    def _take(self, acknowledged: int, word: Word, answer: Answer) -> None:
        with self._changed:
            taken = self._taken if word.samples is None else word.samples
            self._allowed = acknowledged + answer.may_give, taken + answer.may_take
            self._answer, self._away_since = answer, None
            self._changed.notify_all()

    def _exchange(self) -> None:
        while not self._closed:
            try:
                self._talk()
            except RayError:
                with self._changed:
                    self._away_since = time.monotonic() if self._away_since is None else self._away_since
                    self._changed.notify_all()
                time.sleep(_AGAIN)
            if not ray.is_initialized():  # and a call would start it anew
                return
            if not any(self._waits.values()):
                self._wake.wait(_BEAT)
                time.sleep(_GATHERED)
        if ray.is_initialized():
            self._ask()
            self._counter.leave.remote(self._client)

    def _talk(self) -> None:
        """Give a word, and take the answer; what is done until it comes is told in words of its own."""
        self._wake.clear()
        acknowledged = self._acknowledged  # first: what is acknowledged later is beyond what this word tells
        word = self._word()
        ref = self._counter.ask.remote(word, _POLL if word.waits else 0.0)
        until = time.monotonic() + _POLL + self._patience
        while not ray.wait([ref], timeout=_LOOK)[0]:
            if time.monotonic() > until:
                raise GetTimeoutError("the counter does not answer")
            if self._wake.is_set():
                self._wake.clear()
                self._counter.ask.remote(self._word()._replace(waits=word.waits), 0.0)
        self._take(acknowledged, word, ray.get(ref))

    def close(self, *, wait: bool = True) -> None:
        """Wake whoever waits here, send the last numbers, and leave the limiter; twice is fine."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._wake.set()
        if wait and self._thread is not None:
            self._thread.join()
