"""Writers with a small capacity beside a learner that writes columns, and takes batches from a loop.

A schedule draws, from its seed, what writers and a learner of one directory do, one after the other and in the middle of each
other's file operations. Then all of them are killed, or cut off from power, some of them in the middle of a call. What is left is
opened again, and every value of every step compared with a model. In one of four schedules buffers are dropped instead of closed.
"""

from __future__ import annotations

import contextlib
import copy
import errno
import gc
import itertools
import shutil
import threading
import traceback
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

import diskbuffer as db
from diskbuffer.runtime.dropped import wait_for_closing
from diskbuffer.store.system.files import Files
from diskbuffer.writers.description import STREAMS, read_description
from soak.judging import BrokenError
from soak.table import Row, seeded
from soak.workers import scratch
from tests.support.simulated_disk import Kind, build
from tests.support.specimens import copy_while_open
from tests.support.tracing import Fault, Trace
from tests.support.workloads import Gate, boot

PLACES = ("make_directory", "create", "create_mapped", "map", "sync", "rename", "remove", "replace_contents", "stat")
COLUMNS = {"obs": db.Column((2,), "float32"), "action": db.Column((), "int64")}
KINDS = ("score", "return", "priority", "tag")
TAGS = ("red", "green", "blue")
POWER: tuple[Kind, ...] = ("nothing", "everything", "data only", "metadata only", "random", "random", "random", "random")
# What is called, and how often.
WRITER = {"add": 8, "flush_writer": 1.5, "clear": 0.5, "end_writer": 0.7}
LEARNER = {
    **{"write": 6, "prioritize": 4, "tag": 3, "map": 1, "returns": 1, "flush": 3, "refresh": 5, "remove": 0.3},
    **{"compare_learner": 4, "compare_reader": 1.5, "end_learner": 1, "hand_over": 0.7, "load": 3},
}
FAULTS = {**dict.fromkeys(("write", "prioritize", "tag", "map", "returns"), 0.2), "flush": 0.5}  # how often syncs fail in it


@dataclass
class Written:
    """What a column has had at a step, oldest first, and the places of some of it in that list.

    `low` is the oldest one that may be there now, `durable` the oldest that may be after a power loss, `lost` the newest that a
    sync which failed may have dropped: nobody promises more of it in the next learner's life.
    """

    values: list[Any] = field(default_factory=lambda: [0])
    low: int = 0
    durable: int = 0
    lost: int = -1

    def write(self, value: Any, *, certain: bool = True) -> None:
        """Note a value, or one that may have been written by a call that failed."""
        self.values.append(value)
        if certain:
            self.low = len(self.values) - 1


class Model:
    """What there must be."""

    def __init__(self) -> None:
        self.named: dict[int, int] = {}  # the step that each name was given to, by the number that its action has
        self.name_of: dict[int, int] = {}
        self.episode_of: dict[int, int] = {}
        self.members: dict[int, list[int]] = {}  # steps of each episode
        self.kept: dict[str, set[int]] = defaultdict(set)  # by writer
        self.adding: dict[str, set[int]] = defaultdict(set)  # steps of calls that may not have returned
        self.flushed: set[int] = set()
        self.columns: dict[str, dict[int, Written]] = {kind: defaultdict(Written) for kind in KINDS}
        self.maxima: set[float] = {0.0, 1.0}  # that new steps may have entered with
        self.version = 0

    def every_kept(self) -> set[int]:
        """Return the steps that any writer keeps."""
        return set().union(*self.kept.values())

    def name(self, name: int, step: int) -> None:
        """Note that a name is a step's; an error where it was another's that no power loss took."""
        if step not in self.episode_of:
            raise BrokenError(f"name {name} has step {step}, which nobody added")
        known = self.named.setdefault(name, step)
        if known != step:
            raise BrokenError(f"name {name} was given to step {known}, and to step {step}")
        if self.name_of.setdefault(step, name) != name:
            raise BrokenError(f"step {step} has the names {self.name_of[step]} and {name}")

    def write(self, kind: str, steps: Iterable[int], value: Callable[[int], Any], *, certain: bool = True) -> None:
        """Note what was written, or may have been, to some steps."""
        for step in steps:
            self.columns[kind][step].write(value(step), certain=certain)

    def every(self) -> Iterator[Written]:
        """Yield what was written to each column of each step."""
        for written in self.columns.values():
            yield from written.values()

    def flush(self) -> None:
        """Note that all that was written is on the disk, but for what a sync that failed may have lost."""
        for one in self.every():
            if one.low > one.lost:
                one.durable = one.low


class _LearnersFault(Fault):
    """Syncs that fail of what a learner writes: writers' threads sync at any time."""

    def fails(self, name: str, what: str) -> bool:
        """Count an operation, and tell whether it fails."""
        return "/_shared" in what and super().fails(name, what)


class Schedule:
    """One schedule, by the seed of the campaign and a number, in an empty directory."""

    def __init__(self, seed: int, number: int, base: Path) -> None:
        self._rng = np.random.default_rng([seed, number, 27])
        self._base, self._root, self._boot = base, base / "all", 1
        self._rows = int(self._rng.choice([8, 16]))
        self._envs = {f"w{n}": int(self._rng.integers(1, 3)) for n in range(int(self._rng.integers(1, 4)))}  # by writer
        self._capacity = {name: int(self._rows * envs * self._rng.integers(2, 6)) for name, envs in self._envs.items()}
        self._drops = number % 4 == 0
        self._open: dict[str, db.ReplayBuffer] = {}
        self._first: dict[str, int] = {}
        self._learner: db.ReplayBuffer | None = None
        self._reader: db.ReplayBuffer | None = None
        self._loop: Iterator[dict[str, Any]] = iter(())  # over a loader of the learner's, which stays open
        self._sampler: db.Prioritized | None = None
        self._failed = False  # whether a sync has failed in the learner's life
        self.model = Model()
        self._trace: Trace | None = None
        self._nested, self._countdown = False, -1
        self._inside: Callable[[], object] | None = None
        self._busy = ""  # the writer that is being opened, or closed
        self._later: list[Callable[[], None]] = []
        self._known = set[str]()  # writers that are gone, and of which nobody has evicted anything since they were looked at
        self.log: list[str] = []
        self.counts = Counter[str]()

    # Running

    def run(self) -> None:
        """Run it; a BrokenError where a promise was broken."""
        with contextlib.ExitStack() as stack:
            stack.callback(self._let_go)
            for name in PLACES:
                stack.enter_context(mock.patch.object(Files, name, self._at(getattr(Files, name))))
            self._gate = stack.enter_context(Gate(free=False))
            for _ in range(int(self._rng.integers(1, 3))):
                self._round()

    def _at(self, real: Callable[..., Any]) -> Callable[..., Any]:
        thread = threading.get_ident()

        def place(*args: Any, **keywords: Any) -> Any:
            # Never in a thread that seals: the next steps, and the end of it all, would not wait for the call, and the call could
            # wait for that very thread.
            if self._inside is not None and not self._nested and threading.get_ident() == thread:
                self._countdown -= 1
                if self._countdown == 0:
                    call, self._inside, self._nested = self._inside, None, True
                    try:
                        call()
                    finally:
                        self._nested = False
            return real(*args, **keywords)

        return place

    def _round(self) -> None:
        power = bool(self._rng.random() < 0.5)
        left = self._base.parent / f"{self._base.name}-left"
        left.mkdir()
        with boot(self._boot):
            with self._broken_by("coming back"):
                for name in self._rng.permutation(list(self._envs)).tolist():
                    self._writer(name)
            for _ in range(int(self._rng.integers(3, 12))):
                self._step()
            self._kept_now()  # of writers that are gone, others may have evicted some
            if power:
                self._cut(left)
            else:
                self._end_with(lambda: self._copy(left))
        self._boot += power
        self._let_go()
        shutil.rmtree(self._base)
        left.rename(self._base)
        self.log.append("power is lost" if power else "killed")
        with boot(self._boot), self._broken_by("opening what is left"):
            self._judge(power)

    def _copy(self, left: Path) -> None:
        """Copy what there is as a kill leaves it."""
        left.rmdir()
        with contextlib.ExitStack() as locks:
            for buffer in self._open.values():  # or a copy might have one half of what a thread notes through maps
                locks.enter_context(buffer._store.lock)
            copy_while_open(self._base, left)

    def _cut(self, left: Path) -> None:
        """Trace some calls, and build what a power loss leaves."""
        for name in list(self._open):
            self._look_at(name)
        for one in self.model.every():
            one.durable, one.lost = one.low, -1
        with Trace(self._base) as self._trace:
            trace, events = self._trace, list[int]()
            for _ in range(int(self._rng.integers(2, 7))):
                self._step(faults=True)
            self._end_with(lambda: events.append(trace.look("the end")))
            self._trace = None
        disk = trace.disk(events[0])
        build(disk.crash(POWER[int(self._rng.integers(len(POWER)))], self._rng), left)

    def _end_with(self, take: Callable[[], None]) -> None:
        """Have it all end in the middle of one more call, of which whatever it writes may be there or not, or after all calls."""
        before, model, ended = copy.deepcopy(self.model), self.model, False

        def end() -> None:
            nonlocal ended
            ended = True
            take()

        if self._rng.random() < 0.6:
            self._step(inside=end)
            self._kept_now()
        if not ended:
            take()
            return
        model.flushed, model.named, model.name_of = before.flushed, before.named, before.name_of  # what came later never was
        for name, steps in model.kept.items():  # those that were added, or evicted, meanwhile may be there or not
            model.adding[name] |= steps ^ before.kept[name]
        for kind, written in model.columns.items():
            for step, one in written.items():
                old = before.columns[kind][step]
                one.low, one.durable = old.low, old.durable

    @contextlib.contextmanager
    def _broken_by(self, what: str) -> Iterator[None]:
        try:
            yield
        except BrokenError:
            raise
        except Exception as error:
            raise BrokenError(f"{what}: {error!r}\n{traceback.format_exc(limit=-6)}") from error

    def _step(self, *, faults: bool = False, inside: Callable[[], object] | None = None) -> None:
        """Make one call of a writer's or the learner's, perhaps with one of the other's in its middle."""
        learner = bool(self._rng.random() < 0.6)
        name, call = self._draw(LEARNER if learner else WRITER)
        if inside is None and self._rng.random() < 0.4:
            inside = self._draw(WRITER if learner else LEARNER)[1]
        if faults and self._trace is not None and self._rng.random() < FAULTS.get(name, 0):
            lasting = int(self._rng.choice([0, 0, 2, 10**6]))
            self._trace.fault = _LearnersFault(int(self._rng.integers(12)), errno.EIO, lasting, only="fsync")
        self._inside, self._countdown = inside, int(self._rng.integers(1, 25))
        try:
            with self._broken_by(self.log[-1] if self.log else "a call"):
                call()
        finally:
            self._inside, self._nested = None, False
            if self._trace is not None:
                self._trace.fault = None
        later, self._later = self._later, []
        for check in later:
            check()
        for name in list(self._open):
            self._look_at(name)

    def _draw(self, calls: dict[str, float]) -> tuple[str, Callable[[], None]]:
        weights = np.array(list(calls.values()))
        name = str(self._rng.choice(list(calls), p=weights / weights.sum()))
        return name, getattr(self, f"_{name}")

    # Writers

    def _writer(self, name: str) -> db.ReplayBuffer:
        if name not in self._open:
            self.log.append(f"{name} opens")
            self._busy = name
            self._open[name] = db.ReplayBuffer(
                self._root, self._capacity[name], columns=COLUMNS, n_envs=self._envs[name], writer=name, segment_rows=self._rows,
                autoreset="disabled", threads=1, seed=0,
            )  # fmt: skip
            self._busy = ""
            entry = read_description(Files(self._root)).find(name)
            assert entry is not None
            self._first[name] = entry.first_stream
            self._look_at(name)
        return self._open[name]

    def _any_writer(self, *, unlocked: bool = False) -> str:
        """Return a writer that is open, and perhaps not in the middle of a call; "" where the one that was drawn is not."""
        name = str(self._rng.choice(list(self._envs)))
        return name if name in self._open and not (unlocked and self._open[name]._store.holds_lock()) else ""

    def _look_at(self, name: str) -> None:
        """See what a writer keeps by now."""
        buffer = self._open[name]
        if self._nested or buffer._store.holds_lock():
            return
        self._nested = True  # a call in the middle of this one would pass the lock, which this thread has, as no other could
        try:
            own, envs = buffer.steps(), self._envs[name]
            actions = buffer.at(own, columns=["action"])["action"].tolist() if len(own) else []
        finally:
            self._nested = False
        names = own // envs * STREAMS + own % envs + self._first[name]
        for step, action in zip(names.tolist(), actions, strict=True):
            self.model.name(step, action)
        self.model.kept[name] = set(actions)
        self.model.adding[name].clear()

    def _add(self) -> None:
        # In the middle of another call only with a writer that is open: that call may be opening the other.
        names = [name for name in self._envs if name in self._open] if self._nested else list(self._envs)
        if not names:
            return
        name, model = str(self._rng.choice(names)), self.model
        buffer, env = self._writer(name), int(self._rng.integers(self._envs[name]))
        n, ends = int(self._rng.integers(1, 3 * self._rows)), bool(self._rng.random() < 0.7)
        actions, episode = len(model.episode_of) + 1 + np.arange(n), len(model.members) + 1
        model.members[episode] = actions.tolist()
        model.episode_of |= dict.fromkeys(model.members[episode], episode)
        model.adding[name].update(model.members[episode])
        self._known.clear()
        self.log.append(f"{name} adds {actions[0]} to {actions[-1]} in {env}, {'which ends' if ends else 'which runs'}")
        obs = np.repeat(np.append(actions, -1)[:, None], 2, axis=1).astype(np.float32)
        truncated = (np.arange(n) == n - 1) & ends
        with self._gate.closed():
            buffer.extend(
                obs=obs, action=actions, reward=actions.astype(np.float32), truncated=truncated, env=env, new_episode=True
            )
        self._known.clear()
        if not self._nested:
            self._look_at(name)
            kept, most = len(model.kept[name]), self._capacity[name] + 2 * self._envs[name] * self._rows
            if kept > most:
                raise BrokenError(f"{kept} steps are kept, at most {most} may be")

    def _flush_writer(self) -> None:
        if name := self._any_writer(unlocked=True):
            self.log.append(f"{name} flushes")
            before = set(self.model.kept[name])
            self._open[name].flush()
            self.model.flushed |= before

    def _clear(self) -> None:
        if name := self._any_writer():
            self.log.append(f"{name} clears")
            self._open[name].clear()

    def _end_writer(self) -> None:
        if name := self._any_writer(unlocked=True):
            self._look_at(name)
            self.log.append(f"{name} ends")
            self._gate._opened.set()
            self._busy = name
            self._end([self._open.pop(name)])
            self._busy = ""
            self.model.flushed |= self.model.kept[name]
            self._known.add(name)

    def _end(self, held: list[db.ReplayBuffer]) -> None:
        """Close a buffer, or drop it, which nobody else refers to."""
        buffer = held.pop()
        if not self._drops:
            buffer.close()
            return
        del buffer
        gc.collect()
        wait_for_closing()

    def _kept_now(self) -> set[int]:
        """Return the steps that are kept, of writers that are gone, too."""
        for name in list(self._open):  # one of which a call within may close
            if name in self._open:
                self._look_at(name)
        nested, self._nested = self._nested, True
        try:
            # A reader would wait for a writer that is busy, and it waits for this call.
            seen = {*self._open, *self._known, self._busy}
            for name in [name for name in self._first if name not in seen]:
                self._known.add(name)
                with db.ReplayBuffer(self._root, mode="r", writer=name, threads=1) as buffer:
                    own = buffer.steps()
                    self.model.kept[name] = set(buffer.at(own)["action"].tolist()) if len(own) else set()
        finally:
            self._nested = nested
        found = self.model.every_kept()
        return found.union(*self.model.adding.values()) if self._nested else found

    # The learner

    def _learn(self) -> db.ReplayBuffer:
        if self._learner is None:
            self.log.append("the learner opens")
            self._sampler = None
            self._be_learner(db.ReplayBuffer(self._root, mode="r", threads=1, seed=0))
            assert self._learner is not None
        return self._learner

    def _be_learner(self, buffer: db.ReplayBuffer) -> None:
        self._learner, self._loop = buffer, iter(buffer.loader(8, threads=1, prefetch=2, refresh_every=0))

    def _some(self) -> list[int]:
        """Return the names of some steps that the learner sees."""
        names: list[int] = self._rng.permutation(self._learn().steps())[: int(self._rng.integers(1, 40))].tolist()
        return names

    def _numbers(self, names: Sequence[int]) -> dict[int, int]:
        """Return the numbers of steps that the learner sees by their names, of which some may be new to the model."""
        unknown = [name for name in names if name not in self.model.named]
        if unknown:
            batch = self._there(self._learn(), unknown)
            for name, action in zip(*(batch[key].tolist() for key in ("steps", "action")), strict=True):
                self.model.name(name, action)
        return {name: self.model.named[name] for name in names if name in self.model.named}

    @staticmethod
    def _there(buffer: db.ReplayBuffer, names: Sequence[int]) -> dict[str, Any]:
        """Return those of some steps that are there still."""
        with buffer._store.lock:
            while True:
                there = np.array(names, np.int64)
                there = there[buffer.episodes.remaining(there) > 0]
                try:
                    return buffer.at(there, columns=_seen(buffer))
                except db.InputError:  # evicted since, as a refresh in the middle has told
                    continue

    def _change(self, kind: str, steps: Iterable[int], value: Callable[[int], Any], call: Callable[[], int | None]) -> bool:
        """Make a call that writes values of steps, note it, and tell whether it did; the number that it returns must be true.

        A learner that has not seen yet that steps were given up, or cleared, may write to them, and sees that until it refreshes.
        """
        model, numbers = self.model, set(steps)
        before = self._kept_now() & numbers
        try:
            written = call()
        except OSError:
            model.write(kind, numbers, value, certain=False)
            self._note_failure(kind)
            return False
        model.write(kind, before, value)
        model.write(kind, numbers - before, value, certain=False)

        def check() -> None:
            after = self._kept_now() & numbers
            if written is not None and not len(after) <= written <= len(numbers):
                there = f"{len(before)} were there before, and {len(after)} after"
                raise BrokenError(f"{kind}: {written} of {len(numbers)} reported as written, where {there}")

        self._later.append(check)
        return True

    def _note_failure(self, what: str) -> None:
        """Note that a call failed: what a sync was to bring to the disk may never get there."""
        self.counts[f"{what} that failed"] += 1
        self.log.append("   it fails")
        if self._trace is not None and self._trace.fault is not None and self._trace.fault.failed:
            self._failed = True
            for one in self.model.every():
                one.lost = len(one.values) - 1

    def _score(self) -> Callable[[Any], Any]:
        """Return what gives the next version of scores, by steps' numbers."""
        self.model.version += 1
        version = self.model.version
        self.log.append(f"the learner writes version {version}")
        return lambda step: step * 10_000 + version

    def _write(self) -> None:
        if numbers := self._numbers(self._some()):
            value, names = self._score(), list(numbers)
            self.log.append(f"   to {names}")
            values = np.array([value(step) for step in numbers.values()])
            self._change("score", numbers.values(), value, lambda: self._learn().columns.write("score", names, values))

    def _map(self) -> None:
        value = self._score()
        function = lambda batch: np.asarray(value(batch["action"].numpy()))  # noqa: E731
        self._fill("score", value, lambda columns: columns.map(function, 16, "score", progress=False, threads=1))

    def _returns(self) -> None:
        self.log.append("the learner computes returns")
        self._fill("return", float, lambda columns: columns.returns_and_advantages(gamma=0.0, values=None))

    def _fill(self, kind: str, value: Callable[[int], Any], call: Callable[[Any], object]) -> None:
        """Write a column of every step; of those that come in the middle, too, perhaps."""
        learner = self._learn()
        if len(learner):
            numbers = self._numbers(learner.steps().tolist()).values()
            if self._change(kind, numbers, value, lambda: (call(learner.columns), None)[1]):
                new = self._numbers(learner.steps().tolist()).values()
                self.model.write(kind, set(new) - set(numbers), value, certain=False)

    def _prioritize(self) -> None:
        learner, model = self._learn(), self.model
        if not len(learner):
            return
        self._sampler = sampler = self._sampler or db.Prioritized(alpha=1.0, seed=int(self._rng.integers(100)))
        model.version += 1
        version = model.version
        value: Callable[[int], float] = lambda step: float(np.float32(1000 + step * 64 + version % 64))  # noqa: E731
        try:
            batch = learner.sample(int(self._rng.integers(1, 30)), sampler)
        except db.errors.EmptyBufferError:
            return
        except OSError:
            self._note_failure("draws")
            return
        finally:
            model.maxima.add(sampler._largest)
        drawn = np.unique(batch["steps"].numpy()).tolist() if self._rng.random() < 0.5 else self._some()
        numbers = self._numbers(drawn)
        names, errors = np.array(list(numbers), np.int64), np.array([value(step) for step in numbers.values()])
        self.log.append(f"the learner sets priorities of version {version} of {names.tolist()}")
        self._change("priority", numbers.values(), value, lambda: sampler.update(names, errors))
        model.maxima.add(sampler._largest)

    def _tag(self) -> None:
        episodes = self._learn().episodes
        if not len(episodes):
            return
        name, tag = int(self._rng.choice(episodes.start)), str(self._rng.choice(TAGS))
        for number in self._numbers([name]).values():
            members = self.model.members[self.model.episode_of[number]]
            self.log.append(f"the learner tags the episode of {name}, of steps {members[0]} to {members[-1]}, {tag}")
            call = lambda: (self._learn().episodes.of([name]).set_tag(tag), None)[1]  # noqa: E731
            with contextlib.suppress(db.InputError):  # evicted, or not over: nothing is written, which is compared
                self._change("tag", members, lambda _: tag, call)

    def _flush(self) -> None:
        learner = self._learn()
        self.log.append("the learner flushes")
        try:
            learner.flush()
        except OSError:
            self._note_failure("flushes")
        else:
            self.model.flush()

    def _refresh(self) -> None:
        self.log.append("the learner refreshes")
        self._learn().refresh()

    def _compare_learner(self) -> None:
        self.log.append("the learner's view is compared")
        learner = self._learn()
        if not learner._store.columns.is_writing:  # type: ignore[attr-defined]  # it was a reader, and what others wrote is new
            learner.refresh()
        self.compare(learner)

    def _load(self) -> None:
        """Take batches of the learner's loop, the next of which lie ready while others write and are killed."""
        learner = self._learn()
        if not len(learner):
            return
        self.log.append("the learner takes batches")
        try:
            batches = [*itertools.islice(self._loop, 3)]
        except db.errors.EmptyBufferError:  # it was cleared since, which ends the loop
            self._be_learner(learner)
            return
        for batch in batches:
            for name, action in zip(batch["steps"].tolist(), batch["action"].tolist(), strict=True):
                self.model.name(name, action)
            self.counts["loaded"] += 1

    def _compare_reader(self) -> None:
        """Have a reader that is there all the time see what the learner wrote."""
        self.log.append("a reader's view is compared")
        self._reader = self._reader or db.ReplayBuffer(self._root, mode="r", threads=1, seed=0)
        self._reader.refresh()
        self.compare(self._reader)

    def _end_learner(self) -> None:
        if self._learner is not None and not self._nested:
            self.log.append("the learner ends")
            held, self._learner, self._sampler = [self._learner], None, None
            self._loop = iter(())  # or it would keep a learner open that is dropped
            with contextlib.suppress(OSError) if self._failed else contextlib.nullcontext():
                self._end(held)
            if not self._failed:
                self.model.flush()
            self._failed = False

    def _hand_over(self) -> None:
        """Have the reader go on in the learner's place."""
        if self._reader is not None and not self._nested:
            self.log.append("the reader is the learner from now on")
            self._end_learner()
            self._be_learner(self._reader)
            self._reader = None

    def _remove(self) -> None:
        learner = self._learn()
        if "score" in learner.columns.derived:
            self.log.append("the learner removes a column")
            learner.columns.remove("score")
            for one in self.model.columns["score"].values():
                one.write(0)
                one.durable = one.low

    # What there is

    def compare(self, buffer: db.ReplayBuffer, lost: set[int] | None = None) -> None:
        """Compare every value of every step that a buffer sees with the model.

        After a loss of power, older values may be there, and any of steps that had been evicted and are back: those that are not
        among the steps that were kept when it was `lost`.
        """
        model, names = self.model, buffer.steps()
        if not len(names):
            return
        batch = self._there(buffer, names.tolist())
        actions = batch["action"].tolist()
        for name, action in zip(batch["steps"].tolist(), actions, strict=True):
            model.name(name, action)
        for kind, action, seen in self._values(buffer, batch):
            written = model.columns[kind].get(action) or Written()
            low = written.low if lost is None else written.durable if action in lost else 0
            allowed = written.values[low:] if low else [0, *written.values]
            if seen in allowed or (kind == "priority" and 0 in allowed and seen in model.maxima):
                continue
            whose = "zero" if seen == 0 else str(seen)
            whose += " of another step" if kind == "score" and seen and seen // 10_000 != action else ""
            raise BrokenError(f"{kind} of step {action}, {model.name_of.get(action)}, is {whose}, expected one of {allowed}")
        self.counts["values"] += len(actions) * len(KINDS)

    @staticmethod
    def _values(buffer: db.ReplayBuffer, batch: dict[str, Any]) -> Iterator[tuple[str, int, Any]]:
        """Yield each value of a batch, with its kind and its step's number; 0 where nothing was written."""
        actions, tags = batch["action"].tolist(), ("", *buffer.episodes.tag_names)
        for kind in KINDS:
            values = batch[kind].tolist() if kind in batch else [0] * len(actions)
            for action, value in zip(actions, values, strict=True):
                yield kind, action, (tags[value] or 0) if kind == "tag" else value

    def _judge(self, power: bool) -> None:
        """Open what is left, and compare everything; the writers come back before a learner does, or after it."""
        model = self.model
        if not (self._root / "zarr.json").exists():
            if not power or model.flushed:
                raise BrokenError("the directory is gone")
            return
        lost = model.every_kept() if power else None  # before writers come back, and with them steps that had been evicted
        if self._rng.random() < 0.5:
            with db.ReplayBuffer(self._root, mode="r", threads=1) as learner:
                self.compare(learner, lost)
        certain = model.every_kept().difference(*model.adding.values())
        for name in self._envs:
            if (self._root / name).exists():
                self._writer(name)
        missing = certain - model.every_kept()
        if missing and not power:
            raise BrokenError(f"steps {sorted(missing)} are gone")
        learner = self._learn()
        self.compare(learner, lost)
        self._settle(learner, power)
        for steps in model.adding.values():
            steps.clear()
        if self._rng.random() < 0.5:
            self._end_learner()

    def _settle(self, learner: db.ReplayBuffer, power: bool) -> None:
        """Take what is there for what was written."""
        model, names, there = self.model, learner.steps(), set[int]()
        for kind, action, seen in self._values(learner, learner.at(names, columns=_seen(learner))) if len(names) else ():
            there.add(action)
            written = model.columns[kind][action]
            if power:
                model.columns[kind][action] = Written([seen])
            elif len(written.values) - 1 > written.low:
                written.write(seen)
            if kind == "priority":
                model.maxima.add(seen)
        if (
            power
        ):  # names of steps that are lost are given again; after a kill, those that were evicted may come back by a power loss
            for of in model.columns.values():
                for step in set(of) - there:
                    del of[step]
            model.name_of = {step: name for step, name in model.name_of.items() if step in there}
            model.named = {name: step for step, name in model.name_of.items()}

    def _let_go(self) -> None:
        """Forget the buffers of a process that is gone."""
        self._known.clear()
        buffers = [*self._open.values(), self._learner, self._reader]
        self._open, self._learner, self._reader, self._sampler, self._failed = {}, None, None, None, False
        for buffer in filter(None, buffers):
            with contextlib.suppress(OSError, db.DiskBufferError):
                buffer.close()


def _seen(buffer: db.ReplayBuffer) -> list[str]:
    """Return what is compared."""
    return ["obs", "action", *(kind for kind in KINDS if kind in buffer.columns.derived)]


def run(seed: int, number: int) -> tuple[str, dict[str, int]]:
    """Run one schedule; return what went wrong, or nothing, and figures."""
    with scratch() as base, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        (base / "now").mkdir()
        schedule, wrong = Schedule(seed, number, base / "now"), ""
        try:
            schedule.run()
        except Exception as error:  # noqa: BLE001  every one is counted
            told = str(error) if isinstance(error, BrokenError) else traceback.format_exc(limit=-8)
            wrong = "\n    ".join([told, *schedule.log[-12:]])
        return wrong, dict(schedule.counts)


def main(scale: float = 1.0, *, seed: int = 0) -> Row:
    """Run 2,000 schedules, times `scale`."""
    title = "writers beside a learner that writes columns, killed or cut off from power"
    return seeded(title, "soak.learners", ((seed, n) for n in range(round(2000 * scale))), timeout=300)
