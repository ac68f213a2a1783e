"""Threads in an order that a seed tells.

One thread runs at a time. At every file operation of a store, and wherever a thread takes, releases or waits for a lock, the one
that goes on is drawn by a generator, so that a run which broke can be had again with its seed. For that the
primitives of `threading` are replaced by ones that ask the schedule, and clocks by one that counts steps: a wait with a timeout
may time out whenever it is its turn, and the clock is then as late as that takes. What the processor and the kernel do between
two such places is not varied; `soak.holding`, where threads sleep at random, does that a little.
"""

from __future__ import annotations

import _thread
import concurrent.futures.thread
import contextlib
import functools
import gc
import hashlib
import itertools
import queue
import random
import re
import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

import diskbuffer as db
from diskbuffer.store.system.files import Files
from soak.rings import Steps, check_sample, judge, ring
from soak.table import Row, seeded
from soak.workers import failure

PLACES = ("make_directory", "create", "open", "pwrite", "sync", "rename", "remove", "link", "replace_contents", "map", "stat")
TICK = 1e-6  # seconds that the clock goes on at every place
PATIENCE = 120.0  # seconds until a thread that was given its turn must have given it on


class DeadlockError(Exception):
    """No thread can go on."""


class _Task:
    """A thread, its turn, and what it waits for."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.turn = _thread.allocate_lock()
        self.turn.acquire()
        self.until: Callable[[], bool] | None = None
        self.deadline: float | None = None
        self.done = False

    def can_go_on(self) -> bool:
        """Tell whether it waits for nothing any more; one with a deadline may always find that it has passed."""
        return not self.done and (self.until is None or self.deadline is not None or self.until())


class Schedule:
    """Have threads that begin inside of it, and the one that enters it, run one at a time, in an order drawn from a seed.

    `often` is how often another thread goes on, where the one at hand could, too. `order` is every place that a thread came to.
    """

    def __init__(self, seed: int, often: float = 0.3) -> None:
        self._rng, self._often = random.Random(seed), often
        self._tasks: list[_Task] = []  # in the order in which they began, those that are over left out
        self._known: dict[int, _Task] = {}  # by what the system knows a thread by, which it gives to others later
        self._count, self._names = itertools.count(), set[str]()
        self._now = 1000.0
        self._over = True
        self._real: list[tuple[Any, str, Any]] = []
        self.order: list[str] = []

    # Places

    def at(self, what: str) -> None:
        """Come to a place where another thread may go on."""
        me = self._me()
        if me is not None:
            self._note(me, what)
            self._hand_over(me)

    def wait(self, what: str, until: Callable[[], bool], timeout: float | None = None) -> bool:
        """Let others go on until something is so; return False where the time was over before."""
        me = self._me()
        if me is None:
            return self._wait_alone(until, timeout)
        if timeout is not None and timeout < 0:
            timeout = None
        self._note(me, what)
        me.until, me.deadline = until, None if timeout is None else self._now + timeout
        try:
            self._hand_over(me)
            if self._over:
                return self._wait_alone(until, timeout)
            if until():
                return True
            self._now = max(self._now, me.deadline or 0.0)
            return False
        finally:
            me.until = me.deadline = None

    def clock(self) -> float:
        """Return what time it is."""
        self._now += TICK
        return self._now

    def _me(self) -> _Task | None:
        return None if self._over else self._known.get(_thread.get_ident())

    def _note(self, me: _Task, what: str) -> None:
        self._now += TICK
        self.order.append(f"{me.name}: {what}")

    def _hand_over(self, me: _Task) -> None:
        """Choose who goes on, and wait for the next turn."""
        following = self._choose(me)
        if following is not me:
            following.turn.release()
            self._take_turn(me)

    def _take_turn(self, me: _Task) -> None:
        if not me.turn.acquire(timeout=PATIENCE):
            self._end()
            raise DeadlockError(f"{me.name} never has its turn; the last places were {self.order[-10:]}")

    def _end(self) -> None:
        """Let all threads run as they like from now on."""
        self._over = True
        for task in self._tasks:
            with contextlib.suppress(RuntimeError):
                task.turn.release()

    def _choose(self, me: _Task) -> _Task:
        ready = [task for task in self._tasks if task.can_go_on()]
        if not ready:
            self._end()
            raise DeadlockError(f"no thread can go on; the last places were {self.order[-10:]}")
        if me in ready and me.until is None and self._rng.random() >= self._often:
            return me
        timely = [task for task in ready if task.deadline is None or task.until is None or task.until()]
        if timely and self._rng.random() < 0.9:  # waiting too long is rare
            return self._rng.choice(timely)
        return self._rng.choice(ready)

    @staticmethod
    def _wait_alone(until: Callable[[], bool], timeout: float | None) -> bool:
        """Wait in real time, where no schedule is any more."""
        end = None if timeout is None or timeout < 0 else _MONOTONIC() + timeout
        while not until():
            if end is not None and _MONOTONIC() > end:
                return False
            _SLEEP(0.001)
        return True

    # Threads

    def _start(self, real: Callable[..., None], thread: threading.Thread) -> None:
        me = self._me()
        if me is None:
            real(thread)
            return
        name = re.sub(r"-?\d+(_\d+)?( \(.*\))?$", "", thread.name) or "thread"
        task = _Task(name if name not in self._names else f"{name} {next(self._count)}")
        self._names.add(task.name)
        run, begun = thread.run, _thread.allocate_lock()
        begun.acquire()

        def scheduled() -> None:
            self._known[_thread.get_ident()] = task
            self._tasks.append(task)  # one begins at a time: who began it waits for that
            begun.release()
            try:
                self._take_turn(task)
                run()
            finally:
                task.done = True
                self._leave(task)

        thread.run = scheduled  # type: ignore[method-assign]
        thread._started = _Started()  # type: ignore[attr-defined]
        thread._task = task  # type: ignore[attr-defined]
        real(thread)
        begun.acquire()
        self.at(f"start {task.name}")

    def _leave(self, task: _Task) -> None:
        del self._known[_thread.get_ident()]
        self._tasks.remove(task)
        if not self._over:
            self.order.append(f"{task.name}: end")
            ready = [other for other in self._tasks if other.can_go_on()]
            if ready:
                self._rng.choice(ready).turn.release()

    def _join(self, real: Callable[..., None], thread: threading.Thread, timeout: float | None = None) -> None:
        task = getattr(thread, "_task", None)
        if task is not None and self._me() is not None and not self.wait("join", lambda: task.done, timeout):
            return
        real(thread, timeout)

    def at_lock_of(self, buffer: db.ReplayBuffer) -> None:
        """Do nothing: all locks are the schedule's."""

    # Replacing what threads wait for

    def __enter__(self) -> Self:
        me = _Task("main")
        self._known[_thread.get_ident()] = me
        self._tasks.append(me)
        self._over = False
        lock, recursive = functools.partial(_Lock, self), functools.partial(_RLock, self)
        for owner, name, replacement in (
            (threading, "Lock", lock),
            (threading, "_allocate_lock", lock),
            (threading, "RLock", recursive),
            (threading, "_time", self.clock),
            (time, "monotonic", self.clock),
            (time, "perf_counter", self.clock),
            (time, "sleep", lambda seconds: self.wait("sleep", lambda: False, seconds) and None),
            (queue, "SimpleQueue", queue.Queue),
            (concurrent.futures.thread, "_global_shutdown_lock", _Lock(self)),
        ):
            self._replace(owner, name, replacement)
        for name, function in (("start", self._start), ("join", self._join)):
            real = getattr(threading.Thread, name)
            self._replace(threading.Thread, name, functools.partialmethod(_called_with, function, real))
        self._replace(ThreadPoolExecutor, "__init__", _with_threads_in_order(ThreadPoolExecutor.__init__))
        for name in PLACES:
            self._replace(Files, name, self._placed(name, getattr(Files, name)))
        self._collects = gc.isenabled()
        gc.disable()  # finalizers come when memory is short, which no seed tells
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        for owner, name, real in reversed(self._real):
            setattr(owner, name, real)
        if self._collects:
            gc.enable()
        self._end()

    def _replace(self, owner: Any, name: str, replacement: Any) -> None:
        self._real.append((owner, name, vars(owner)[name]))
        setattr(owner, name, replacement)

    def _placed(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def operation(files: Files, *args: Any, **keywords: Any) -> Any:
            self.at(f"{name} {_anonymous(args[0])}" if args and isinstance(args[0], str) else name)
            return real(files, *args, **keywords)

        return operation

    def digest(self) -> str:
        """Return what tells two orders apart."""
        return hashlib.sha256("\n".join(self.order).encode()).hexdigest()[:16]


_MONOTONIC, _SLEEP = time.monotonic, time.sleep


def _called_with(
    thread: threading.Thread, function: Callable[..., Any], real: Callable[..., Any], *args: Any, **keywords: Any
) -> Any:
    return function(real, thread, *args, **keywords)


def _with_threads_in_order(real: Callable[..., None]) -> Callable[..., None]:
    """Have a pool join its threads in the order in which they began; that of a set is another each time."""

    def init(pool: ThreadPoolExecutor, *args: Any, **keywords: Any) -> None:
        real(pool, *args, **keywords)
        pool._threads = _InOrder()  # type: ignore[assignment]

    return init


class _InOrder(dict[Any, None]):
    def add(self, thread: threading.Thread) -> None:
        self[thread] = None


def _anonymous(name: str) -> str:
    return re.sub(r"\.[0-9a-z]{8}\.", ".#.", name)


class _Started:
    """What tells that a thread has begun, in real time."""

    def __init__(self) -> None:
        self._lock, self._set = _thread.allocate_lock(), False
        self._lock.acquire()

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True
        self._lock.release()

    def wait(self, timeout: float | None = None) -> bool:  # noqa: ARG002
        self._lock.acquire()
        self._lock.release()
        return True


class _Lock:
    """A lock that threads of a schedule wait for in turn."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule, self._mutex = schedule, _thread.allocate_lock()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        self._schedule.at("acquire")
        while not self._mutex.acquire(blocking=False):
            if not blocking:
                return False
            if not self._schedule.wait("wait for a lock", lambda: not self._mutex.locked(), timeout):
                return False
        return True

    def release(self) -> None:
        self._mutex.release()
        self._schedule.at("release")

    def locked(self) -> bool:
        return self._mutex.locked()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class _RLock(_Lock):
    """The same for a lock that its owner may take again."""

    def __init__(self, schedule: Schedule) -> None:
        super().__init__(schedule)
        self._owner, self._times = 0, 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        if not self._is_owned() and not super().acquire(blocking, timeout):
            return False
        self._owner = _thread.get_ident()
        self._times += 1
        return True

    def release(self) -> None:
        if not self._is_owned():
            raise RuntimeError("cannot release un-acquired lock")
        self._times -= 1
        if not self._times:
            self._owner = 0
            super().release()

    def _is_owned(self) -> bool:
        return self._owner == _thread.get_ident()

    def _release_save(self) -> int:
        times, self._times = self._times, 1
        self.release()
        return times

    def _acquire_restore(self, times: int) -> None:
        self.acquire()
        self._times = times


# What is run


def together(path: Path, seed: int, schedule: Schedule) -> None:
    """Turn a small ring, which one thread writes to, one samples from, and one flushes, seals and marks."""
    rng = np.random.default_rng([seed, 3])
    frames, rows, n_envs = bool(rng.random() < 0.5), int(2 ** rng.integers(3, 6)), int(rng.integers(1, 4))
    capacity, steps = int(rng.integers(2 * rows, 8 * rows)), Steps(n_envs, rng, int(rng.choice([2, 20])))
    buffer = ring(path, capacity, n_envs, rows, frames, threads=1)
    failed, over = list[str](), threading.Event()

    def beside(function: Callable[[np.random.Generator], None], number: int) -> None:
        mine = np.random.default_rng([seed, 4, number])
        try:
            while not over.is_set():
                function(mine)
                schedule.at("again")
        except Exception:  # noqa: BLE001  which is what is looked for
            failed.append(traceback.format_exc(limit=-6))

    def sample(_: np.random.Generator) -> None:
        if len(buffer):
            check_sample(buffer.sample(8), frames)

    def bring_to_disk(mine: np.random.Generator) -> None:
        what = mine.random()
        if what < 0.4:
            buffer.flush()
        elif what < 0.7:
            buffer.flush(recompress=True)
        elif what < 0.85:
            buffer.copies.mark("one", replace=True)
        elif len(buffer):
            batch = buffer.sample(4)
            buffer.columns.write("value", batch["steps"], batch["action"].float())

    threads = [
        threading.Thread(target=beside, args=(function, n), name=name)
        for n, (name, function) in enumerate({"sample": sample, "flush": bring_to_disk}.items())
    ]
    for thread in threads:
        thread.start()
    try:
        for _ in range(int(rng.integers(2, 5))):
            for _ in range(int(rng.integers(1, 2 * rows))):
                steps.add(buffer, frames)
            steps.extend(buffer, frames, int(rng.integers(1, 3 * rows)))
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert not failed, failed[0]
    steps.compare(buffer, frames, capacity)
    buffer.close()
    judge(path, steps, frames, capacity)


def run(seed: int) -> str:
    """Run one store; return what went wrong, or nothing."""
    return ordered(seed)[0]


def ordered(seed: int) -> tuple[str, str, int]:
    """Run one store; return what went wrong, or nothing, what tells its order from others, and how many places it came to."""
    schedule = Schedule(seed)

    def both(path: Path) -> None:
        with contextlib.suppress(Exception):  # so that all is compiled, and imported: that takes locks, too
            together(path / "first", seed, schedule)
        with schedule:
            together(path / "store", seed, schedule)

    return failure(both), schedule.digest(), len(schedule.order)


def main(scale: float = 1.0, *, seed: int = 0) -> Row:
    """Run 2,000 schedules, times `scale`."""
    runs = ((seed * 1_000_000 + n,) for n in range(max(2, round(2000 * scale))))
    return seeded("schedules of threads, each drawn from its seed", "soak.schedules", runs, timeout=600)
