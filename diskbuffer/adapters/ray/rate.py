"""One ratio of samples to inserts for a cluster: an actor that counts, and what has writers and learners wait for it.

Everybody tells whole counts: how many steps a store has ever had, how many steps a learner has ever sampled. A message that is
late, repeated or lost makes nothing wrong for longer than until the next. When the actor dies, Ray starts another, which counts
from what it is told first: the ratio holds before and after, and not across.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import threading
import time
from collections.abc import Callable
from typing import Any

import ray

from diskbuffer import SampleToInsertRatio
from diskbuffer.adapters.ray.nodes import ACTOR
from diskbuffer.errors import ClosedError, DiskBufferError, InputError, LimiterTimeoutError, UnreachableError

_MOST = 512  # steps that may be added, or sampled, before the actor is told
_TOLD_EVERY = 0.2  # seconds after which it is told in any case
_HELD, _LOOK_EVERY = 5.0, 0.05  # seconds that one who waits is held, and after which it looks for signals
_PATIENCE = 60.0  # seconds in which the actor answers, also where Ray has to start it again
_SILENT = 3600.0  # seconds after which one who samples has no entry any more, as there may be any number in a run


class Rate:
    """Count the steps that were added and sampled in a cluster, and tell who may go on, by the rule of `SampleToInsertRatio`.

    `start_rate` makes an actor of this class.
    """

    def __init__(self, settings: SampleToInsertRatio) -> None:
        self._settings = settings
        self._counts: dict[str, dict[str, tuple[int, float]]] = {"add": {}, "sample": {}}  # by whom: what was told last, when
        self._new = {"add": 0, "sample": 0}  # since each was first told
        self._told = asyncio.Event()  # set when something new is told

    def settings(self) -> SampleToInsertRatio:
        """Return what is held."""
        return self._settings

    def added(self) -> int:
        """Return how many steps there ever were, of stores that are gone, too."""
        return sum(count for count, _ in self._counts["add"].values())

    def tell(self, side: str, who: str, count: int, stored: int) -> tuple[int, dict[str, Any]]:
        """Take in what a store has ever had, or a learner sampled; return how much it may do until the next time, and the state.

        `side` is "add" or "sample", `stored` the steps that the caller sees in the cluster.
        """
        counts, now = self._counts[side], time.monotonic()
        if who not in counts or count != counts[who][0]:
            self._told.set()
        self._new[side] += count - counts.get(who, (count,))[0]
        counts[who] = count, now
        if side == "sample":
            for silent in [one for one, (_, at) in counts.items() if now - at > _SILENT]:
                del counts[silent]
        state = self._state(stored)
        if not state[f"may_{side}"]:
            return 0, state
        room = state["surplus"] + state["error_buffer"]
        if side == "add":
            room = (state["error_buffer"] - state["surplus"]) / state["asked"] + max(0, state["min_size"] - state["added"])
        active = sum(now - at < 5 * _TOLD_EVERY for _, at in counts.values())
        return min(_MOST, max(1, int(room / (2 * active)))), state  # so that all together pass the bound by a call each at most

    async def wait(self, side: str, who: str, count: int, stored: int, seconds: float) -> tuple[int, dict[str, Any]]:
        """Return what `tell` does, once the caller may go on, or after some seconds: who waits asks nothing meanwhile."""
        until = time.monotonic() + seconds
        while True:
            answer = self.tell(side, who, count, stored)
            if answer[1][f"may_{side}"] or (left := until - time.monotonic()) <= 0:
                return answer
            self._told.clear()  # others who wait were woken already
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._told.wait(), left)

    def _state(self, stored: int) -> dict[str, Any]:
        """Return where things stand, under the names of `Limiter.state`."""
        asked, added = self._settings, self.added()
        new, samples = self._new["add"], self._new["sample"]
        inserts = new - max(0, min(new, asked.min_size - (added - new)))  # the first min_size do not count
        surplus = asked.ratio * inserts - samples
        return {
            "asked": asked.ratio,
            "ratio": samples / inserts if inserts else None,
            "inserts": inserts,
            "samples": samples,
            "surplus": surplus,
            "error_buffer": asked.bound,
            "added": max(added, stored),
            "min_size": asked.min_size,
            "may_add": surplus <= asked.bound,
            "may_sample": surplus >= -asked.bound and max(added, stored) >= asked.min_size,
        }


_RateActor = ray.remote(Rate)


def held_ratio(path: str) -> SampleToInsertRatio | None:
    """Return what is held for a directory, if anything is."""
    try:
        rate = ray.get_actor(f"{path}:rate", namespace=ACTOR["namespace"])
    except ValueError:
        return None
    held: SampleToInsertRatio = answer_of(rate.settings.remote())
    return held


def start_rate(path: str, settings: SampleToInsertRatio) -> Any:
    """Start what counts for a directory, or find it; an InputError where it holds another ratio."""
    rate = _RateActor.options(name=f"{path}:rate", num_cpus=0, **ACTOR).remote(settings)
    held = answer_of(rate.settings.remote())
    if held != settings:
        raise InputError(f"{path} is used with {held} already, and {settings} was asked for; destroy() ends that")
    return rate


def answer_of(ref: Any) -> Any:
    """Return what an actor that counts answers; an UnreachableError where it does not in time."""
    try:
        return ray.get(ref, timeout=_PATIENCE)
    except (ray.exceptions.RayError, TimeoutError) as error:
        reason = str(error).splitlines()[0]
        raise UnreachableError(f"what counts samples and inserts does not answer ({reason}); make the buffer again") from None


def tell_actor(
    rate: Any, *told: Any, wait: bool = True, seconds: float = 0.0, is_over: Callable[[], bool] | None = None
) -> tuple[int, dict[str, Any]] | None:
    """Call `Rate.tell` of an actor, or `Rate.wait` with `seconds`, unless it is over by then, and return its answer.

    Without `wait` nobody waits for it, and nothing is told where Ray has ended.
    """
    if seconds:
        waiting, until = rate.wait.remote(*told, seconds), time.monotonic() + seconds + _PATIENCE
        while time.monotonic() < until and not (is_over is not None and is_over()):
            if ray.wait([waiting], timeout=_LOOK_EVERY)[0]:  # signals are handled in between
                held: tuple[int, dict[str, Any]] = answer_of(waiting)
                return held
    if wait:
        answer: tuple[int, dict[str, Any]] = answer_of(rate.tell.remote(*told))
        return answer
    if ray.is_initialized():
        rate.tell.remote(*told)
    return None


class ClusterLimiter:
    """Have one writer, or one learner, wait for the other side; `ReplayBuffer` calls it as its own limiter.

    `tell` calls `Rate.tell`, and `side` and `count` are as of that. `who` is whom it counts, `where` what messages call the
    buffer, and `stored` returns how many steps there are in the cluster.
    """

    def __init__(
        self,
        tell: Callable[..., Any],
        settings: SampleToInsertRatio,
        side: str,
        who: str,
        where: str,
        count: int,
        stored: Callable[[], int],
    ) -> None:
        self._tell, self._settings, self._side, self._who, self._where = tell, settings, side, who, where
        self._count, self._stored, self._lock = count, stored, threading.Lock()
        self._may, self._told, self._closed, self._waited = 0, -math.inf, False, 0.0
        self.state()

    def state(self) -> dict[str, Any]:
        """Return where things stand in the cluster; ``waited``, seconds, is of this process."""
        return self._state(0.0)

    def _state(self, seconds: float) -> dict[str, Any]:
        told = self._side, self._who, self._count, self._stored()
        may, state = self._tell(*told, seconds=seconds, is_over=lambda: self._closed)
        with self._lock:
            self._may, self._told = may, time.monotonic()
        return {**state, "waited": self._waited}

    sync = state  # before a writer's `flush` returns

    @property
    def may_add(self) -> bool:
        """Whether `add` would not wait now."""
        return bool(self.state()["may_add"])

    @property
    def may_sample(self) -> bool:
        """Whether `sample` would not wait now."""
        return bool(self.state()["may_sample"])

    def wait_to_add(self) -> None:
        """Block while the other side is behind; a LimiterTimeoutError where it does nothing for too long."""
        if self._may > 0:
            return
        begin = since = time.monotonic()
        before, timeout, held = -1, self._settings.timeout, 0.0
        while not (state := self._state(held))[f"may_{self._side}"]:
            if self._closed:
                raise ClosedError(f"{self._where} was closed; open it again")
            done = state["samples" if self._side == "add" else "added"]
            since = since if done == before else time.monotonic()
            if timeout is not None and time.monotonic() - since >= timeout:
                missing, by = ("sampled", "learner") if self._side == "add" else ("added", "actors")
                raise LimiterTimeoutError(
                    f"waited {timeout:.0f} s to {self._side} at {self._where}, where nothing was {missing}: {state['added']:,} "
                    f"steps in all, {state['samples']:,} samples of {state['inserts']:,} inserts at ratio={state['asked']:g}, "
                    f"min_size={state['min_size']}. Start the {by}, give a longer timeout=, or ask limiter.may_{self._side} first"
                )
            before, left = done, math.inf if timeout is None else since + timeout - time.monotonic()
            held = min(_HELD, max(_LOOK_EVERY, left))
        self._waited += time.monotonic() - begin

    wait_to_sample = wait_to_add

    def note_added(self, count: int) -> None:
        """Note how many steps the store has ever had."""
        self.note_sampled(count - self._count)

    def note_sampled(self, more: int) -> None:
        """Note that so many more were sampled, or added."""
        with self._lock:
            self._may -= more
            self._count += more
        if time.monotonic() - self._told > _TOLD_EVERY:
            with contextlib.suppress(DiskBufferError):  # as the steps are added; whoever waits next is told
                self.state()

    def close(self) -> None:
        """End waits, and tell the last count."""
        self._closed = True
        with contextlib.suppress(Exception):  # it was destroyed
            self._tell(self._side, self._who, self._count, 0, wait=False)
