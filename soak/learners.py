"""Writers with a small capacity beside a learner that writes columns.

A schedule draws, from its seed, what writers and a learner of one directory do, one after the other and in the middle of each
other's file operations: add, clear, flush, end, come back; write, tag, set priorities, map, flush while syncs fail, refresh, hand
over to a reader that was there. Then all of them are killed, or cut off from power, some of them in the middle of a call. What is
left is opened again, and every value of every step compared with a model. In one of four schedules buffers are dropped instead of
closed.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import shutil
import threading
import traceback
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import diskbuffer as db
from diskbuffer.gathering.description import STREAMS, read_description
from diskbuffer.store.system.files import Files
from soak.table import Row, seeded
from soak.workers import scratch
from tests.support.simulated_disk import Disk, Kind, build
from tests.support.tracing import Fault, Trace
from tests.support.workloads import Gate, boot

Array = np.ndarray[Any, np.dtype[Any]]
PLACES = ("make_directory", "create", "create_mapped", "map", "sync", "rename", "remove", "replace_contents", "stat")
COLUMNS = {"obs": db.Column((2,), "float32"), "action": db.Column((), "int64")}
KINDS = ("score", "return", "priority", "tag")
TAGS = ("red", "green", "blue")
POWER: tuple[Kind, ...] = ("nothing", "everything", "data only", "metadata only", "random", "random", "random", "random")


class BrokenError(Exception):
    """A promise was broken."""


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
        self.members: dict[int, list[int]] = defaultdict(list)  # steps of each episode
        self.next_step = self.next_episode = 1
        self.kept: dict[str, set[int]] = defaultdict(set)  # by writer
        self.adding: dict[str, set[int]] = defaultdict(set)  # steps of calls that may not have returned
        self.flushed: set[int] = set()
        self.cleared: set[int] = set()
        self.columns: dict[str, dict[int, Written]] = {kind: defaultdict(Written) for kind in KINDS}
        self.maxima: set[float] = {0.0, 1.0}  # that new steps may have entered with
        self.version = 0

    def every_kept(self) -> set[int]:
        """Return the steps that any writer keeps."""
        return set().union(*self.kept.values()) if self.kept else set()

    def name(self, name: int, step: int) -> None:
        """Note that a name is a step's; an error where it was another's, whatever became of that."""
        if step not in self.episode_of:
            raise BrokenError(f"name {name} has step {step}, which nobody added")
        known = self.named.setdefault(name, step)
        if known != step:
            raise BrokenError(f"name {name} was given to step {known}, and to step {step}")
        if self.name_of.setdefault(step, name) != name:
            raise BrokenError(f"step {step} has the names {self.name_of[step]} and {name}")

    def write(self, kind: str, steps: Sequence[int] | set[int], value: Callable[[int], Any], *, certain: bool = True) -> None:
        """Note what was written, or may have been, to some steps."""
        for step in steps:
            self.columns[kind][step].write(value(step), certain=certain)

    def flush(self) -> None:
        """Note that all that was written is on the disk."""
        for one in self._every():
            if one.low > one.lost:
                one.durable = one.low

    def lose(self) -> None:
        """Note that a sync failed: what it was to bring to the disk may never get there."""
        for one in self._every():
            one.lost = len(one.values) - 1

    def remember(self) -> None:
        """Count all that was written as on the disk."""
        for one in self._every():
            one.durable, one.lost = one.low, -1

    def _every(self) -> Iterator[Written]:
        for written in self.columns.values():
            yield from written.values()


class _LearnersFault(Fault):
    """Syncs that fail of what a learner writes: writers' threads sync at any time."""

    def fails(self, name: str, what: str) -> bool:
        """Count an operation, and tell whether it fails."""
        return "/_shared" in what and super().fails(name, what)


class Schedule:
    """One schedule.

    Parameters
    ----------
    seed : int
        Of the campaign.
    number : int
    base : Path
        An empty directory.
    """

    def __init__(self, seed: int, number: int, base: Path) -> None:
        self._rng = np.random.default_rng([seed, number, 27])
        self._base, self._boot = base, 1
        self._rows = int(self._rng.choice([8, 16]))
        self._writers = [f"w{n}" for n in range(int(self._rng.integers(1, 4)))]
        self._envs = {name: int(self._rng.integers(1, 3)) for name in self._writers}
        streams = sum(self._envs.values())
        self._capacity = int(self._rows * streams * self._rng.integers(2, 6))
        self._drops = number % 4 == 0
        self._open: dict[str, db.ReplayBuffer] = {}
        self._first: dict[str, int] = {}
        self._learner: db.ReplayBuffer | None = None
        self._reader: db.ReplayBuffer | None = None
        self._sampler: db.Prioritized | None = None
        self._failed = False  # whether a sync has failed in the learner's life
        self.model = Model()
        self._trace: Trace | None = None
        self._nested, self._countdown = False, -1
        self._inside: Callable[[], None] | None = None
        self._busy = ""  # the writer that is being opened, or closed
        self._later: list[Callable[[], None]] = []
        self._known = set[str]()  # writers that are gone, and of which nobody has evicted anything since they were looked at
        self.log: list[str] = []
        self.counts = Counter[str]()

    # Running

    def run(self) -> None:
        """Run it; a BrokenError where a promise was broken."""
        real = {name: getattr(Files, name) for name in PLACES}
        try:
            for name, function in real.items():
                setattr(Files, name, self._at(function))
            with Gate(free=False) as self._gate:
                for _ in range(int(self._rng.integers(1, 3))):
                    self._round()
        finally:
            for name, function in real.items():
                setattr(Files, name, function)
            self._trace = None
            self._let_go()

    def _at(self, real: Callable[..., Any]) -> Callable[..., Any]:
        thread = threading.get_ident()

        def place(*args: Any, **keywords: Any) -> Any:
            # Never in a thread that seals: the next steps, and the end of it all, would not wait for the call, and the call could
            # wait for that very thread.
            if self._inside is not None and not self._nested and threading.get_ident() == thread:
                self._countdown -= 1
                if self._countdown == 0:
                    call, self._inside = self._inside, None
                    self._nested = True
                    try:
                        call()
                    finally:
                        self._nested = False
            return real(*args, **keywords)

        return place

    def _round(self) -> None:
        power = bool(self._rng.random() < 0.5)
        with boot(self._boot):
            with self._broken_by("coming back"):
                self._come_back()
            for _ in range(int(self._rng.integers(3, 12))):
                self._step()
            self._kept_now()  # of writers that are gone, others may have evicted some
            left = self._base.parent / f"{self._base.name}-left"
            left.mkdir()
            if power:
                self._cut(left)
            else:
                self._kill(left)
        if power:
            self._boot += 1
        self._let_go()
        shutil.rmtree(self._base)
        left.rename(self._base)
        self.log.append("power is lost" if power else "killed")
        with boot(self._boot), self._broken_by("opening what is left"):
            self._judge(power)

    def _kill(self, left: Path) -> None:
        """Copy what there is as a kill leaves it, in the middle of one more call or after it."""
        taken = False

        def take() -> None:
            nonlocal taken
            before: list[tuple[str, int, int]] | None = None
            with contextlib.ExitStack() as locks:
                for buffer in self._open.values():  # or a copy might have one half of what a thread notes through maps
                    locks.enter_context(buffer._store.lock)
                while before != (now := _stamps(self._base)):  # again, where a thread has put another file in its place
                    before = now
                    shutil.rmtree(left)
                    shutil.copytree(self._base, left)
            taken = True

        if self._rng.random() < 0.6:
            self._last_step(take)
        if not taken:
            take()

    def _cut(self, left: Path) -> None:
        """Trace some calls, and build what a power loss in the middle of the last, or after it, leaves."""
        for name in list(self._open):
            self._look_at(name)
        self.model.remember()
        events = -1
        with Trace(self._base) as trace:
            self._trace = trace
            for _ in range(int(self._rng.integers(2, 7))):
                self._step(faults=True)

            def take() -> None:
                nonlocal events
                events = trace.look("the end")

            if self._rng.random() < 0.6:
                self._last_step(take)
            if events < 0:
                take()
            self._trace = None
        disk: Disk = trace.disk()
        for event in trace.events[:events]:
            disk.apply(event)
        build(disk.crash(POWER[int(self._rng.integers(len(POWER)))], self._rng), left)

    def _last_step(self, take: Callable[[], None]) -> None:
        """Make a call in the middle of which it all ends: whatever it writes may be there or not."""
        before = {(kind, step): one.low for kind, steps in self.model.columns.items() for step, one in steps.items()}
        durable = {(kind, step): one.durable for kind, steps in self.model.columns.items() for step, one in steps.items()}
        flushed, ended, kept = set(self.model.flushed), False, {name: set(steps) for name, steps in self.model.kept.items()}
        names = dict(self.model.named), dict(self.model.name_of)

        def end() -> None:
            nonlocal ended
            ended = True
            take()

        self._step(inside=end)
        self._kept_now()
        if ended:
            self.model.flushed, (self.model.named, self.model.name_of) = flushed, names  # what came later never was
            for name, steps in self.model.kept.items():  # those that were added, or evicted, meanwhile may be there or not
                self.model.adding[name] |= steps ^ kept.get(name, set())
            for kind, written in self.model.columns.items():
                for step, one in written.items():
                    one.low, one.durable = before.get((kind, step), 0), durable.get((kind, step), 0)

    @contextlib.contextmanager
    def _broken_by(self, what: str) -> Iterator[None]:
        try:
            yield
        except BrokenError:
            raise
        except Exception as error:
            raise BrokenError(f"{what}: {error!r}\n{traceback.format_exc(limit=-6)}") from error

    def _step(self, *, faults: bool = False, inside: Callable[[], None] | None = None) -> None:
        """Make one call of a writer's or the learner's, perhaps with one of the other's in its middle."""
        learner = bool(self._rng.random() < 0.6)
        call = self._draw(learner)
        if inside is None and self._rng.random() < 0.4:
            other = self._draw(not learner)
            inside = lambda: other(False)  # noqa: E731
        self._inside, self._countdown = inside, int(self._rng.integers(1, 25))
        try:
            with self._broken_by(self.log[-1] if self.log else "a call"):
                call(faults)
        finally:
            self._inside = None
        self._nested = False
        for check in self._later:
            check()
        self._later = []
        for name in list(self._open):
            self._look_at(name)

    def _draw(self, learner: bool) -> Callable[[bool], None]:
        if learner:
            calls: dict[Callable[[bool], None], float] = {
                self._write: 6, self._prioritize: 4, self._tag: 3, self._map: 1, self._returns: 1, self._flush: 3,
                self._refresh: 5, self._compare: 4, self._compare_reader: 1.5, self._end_learner: 1, self._hand_over: 0.7,
                self._remove: 0.3,
            }  # fmt: skip
        else:
            calls = {self._add: 8, self._flush_writer: 1.5, self._clear: 0.5, self._end_writer: 0.7}
        weights = np.array(list(calls.values()))
        return list(calls)[int(self._rng.choice(len(calls), p=weights / weights.sum()))]

    # Writers

    @property
    def _root(self) -> Path:
        return self._base / "all"

    def _writer(self, name: str) -> db.ReplayBuffer:
        if name not in self._open:
            self.log.append(f"{name} opens")
            capacity, self._busy = self._capacity, name
            self._open[name] = db.ReplayBuffer(
                self._root, capacity, columns=COLUMNS, n_envs=self._envs[name], writer=name, segment_rows=self._rows,
                autoreset="disabled", threads=1, seed=0,
            )  # fmt: skip
            self._busy = ""
            entry = read_description(Files(self._root)).find(name)
            assert entry is not None
            self._first[name] = entry.first_stream
            self._look_at(name)
        return self._open[name]

    def _any_writer(self) -> str:
        """Return a writer; in the middle of another call one that is open, as that call may be opening the other."""
        names = [name for name in self._writers if name in self._open] if self._nested else self._writers
        return str(self._rng.choice(names or self._writers[:1]))

    def _look_at(self, name: str) -> None:
        """See what a writer keeps by now."""
        buffer = self._open[name]
        if self._nested or buffer._store.holds_lock():
            return
        own = buffer.steps()
        actions = buffer.at(own, columns=["action"])["action"].tolist() if len(own) else []
        for step, action in zip(own.tolist(), actions, strict=True):
            self.model.name(self._global(name, step), action)
        self.model.kept[name] = set(actions)
        self.model.adding[name].clear()

    def _global(self, name: str, step: int) -> int:
        return step // self._envs[name] * STREAMS + step % self._envs[name] + self._first[name]

    def _add(self, _faults: bool) -> None:
        name = self._any_writer()
        if self._nested and name not in self._open:
            return
        buffer, env = self._writer(name), int(self._rng.integers(self._envs[name]))
        n, ends = int(self._rng.integers(1, 3 * self._rows)), bool(self._rng.random() < 0.7)
        model = self.model
        numbers = list(range(model.next_step, model.next_step + n))
        model.next_step += n
        episode, model.next_episode = model.next_episode, model.next_episode + 1
        model.episode_of |= dict.fromkeys(numbers, episode)
        model.members[episode] = numbers
        model.adding[name].update(numbers)
        self._known.clear()
        self.log.append(f"{name} adds {numbers[0]} to {numbers[-1]} in {env}, {'which ends' if ends else 'which runs'}")
        actions = np.array(numbers)
        obs = np.stack([np.append(actions, -1), np.append(actions, -1)], axis=1).astype(np.float32)
        truncated = (np.arange(n) == n - 1) & ends
        with self._gate.closed():
            buffer.extend(
                obs=obs, action=actions, reward=actions.astype(np.float32), truncated=truncated, env=env, new_episode=True
            )
        self._known.clear()
        if self._boot == 1 and not self._nested:  # how many steps each has is a hint that a power loss may take
            self._look_at(name)
            streams = sum(self._envs.values())
            most = self._capacity + (len(self._writers) + 2 * streams) * self._rows
            if len(model.every_kept()) > most:
                raise BrokenError(f"{len(model.every_kept())} steps are kept, at most {most} may be")

    def _flush_writer(self, _faults: bool) -> None:
        name = self._any_writer()
        if name in self._open and not self._open[name]._store.holds_lock():
            self.log.append(f"{name} flushes")
            before = set(self.model.kept[name])
            self._open[name].flush()
            self.model.flushed |= before

    def _clear(self, _faults: bool) -> None:
        name = self._any_writer()
        if name in self._open:
            self.log.append(f"{name} clears")
            self.model.cleared |= self.model.kept[name] | self.model.adding[name]
            self._open[name].clear()

    def _end_writer(self, _faults: bool) -> None:
        name = self._any_writer()
        if name in self._open and not self._open[name]._store.holds_lock():
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

    # The learner

    def _learn(self) -> db.ReplayBuffer:
        if self._learner is None:
            self.log.append("the learner opens")
            self._learner, self._sampler = db.ReplayBuffer(self._root, mode="r", threads=1, seed=0), None
        return self._learner

    def _some(self, learner: db.ReplayBuffer, names: list[int] | None = None) -> dict[int, int]:
        """Return the numbers of steps that the learner sees by their names, of some where none are given."""
        if names is None:
            names = self._rng.permutation(learner.steps())[: int(self._rng.integers(1, 40))].tolist()
        return dict(zip(names, self._numbers(learner, names), strict=False))

    def _numbers(self, learner: db.ReplayBuffer, names: Sequence[int]) -> list[int]:
        """Return the numbers of steps that the learner sees, of which some may be new to the model."""
        unknown = [name for name in names if name not in self.model.named]
        if unknown:
            batch = self._at_some(learner, unknown)
            for name, action in zip(*(batch[key].tolist() for key in ("steps", "action")), strict=True):
                self.model.name(name, action)
        return [self.model.named[name] for name in names if name in self.model.named]

    @staticmethod
    def _at_some(learner: db.ReplayBuffer, names: Sequence[int], columns: list[str] | None = None) -> dict[str, Any]:
        """Return those of some steps that are there still."""
        with learner._store.lock:
            while True:
                there = np.array(names, np.int64)
                there = there[learner.episodes.remaining(there) > 0]
                try:
                    return learner.at(there, columns=columns)
                except db.InputError:  # evicted since, as a refresh in the middle has told
                    continue

    def _change(self, kind: str, names: Sequence[int], value: Callable[[int], Any], call: Callable[[], int | None]) -> None:
        """Make a call that writes values of steps, and note it; what it returns must be true.

        A learner that has not seen yet that steps were cleared may write to them, and sees that until it refreshes.
        """
        model, learner = self.model, self._learn()
        numbers = self._numbers(learner, names)
        before = self._kept_now() & set(numbers)
        try:
            written = call()
        except OSError:
            self.counts["errors"] += 1
            self.log.append("   it fails")
            model.write(kind, before | model.cleared.intersection(numbers), value, certain=False)
            self._note_failure()
            return
        model.write(kind, before, value)
        model.write(kind, model.cleared.intersection(numbers) - before, value, certain=False)
        if written is None:  # of everything, as of now
            model.write(kind, set(self._numbers(learner, learner.steps().tolist())) - before, value, certain=False)
            return

        def check() -> None:
            after = self._kept_now() & set(numbers)
            cleared = model.cleared.intersection(numbers) - before  # which is seen by the next refresh
            if not len(after) <= written <= len(before) + len(cleared):
                there = f"{len(before)} were there before, {len(after)} after, and {len(cleared)} were cleared"
                raise BrokenError(f"{kind}: {written} of {len(names)} reported as written, where {there}")

        self._later.append(check)

    def _kept_now(self) -> set[int]:
        """Return the steps that are kept, of writers that are gone, too."""
        for name in list(self._open):  # one of which a call within may close
            if name in self._open:
                self._look_at(name)
        nested, self._nested = self._nested, True
        try:
            for name in self._writers:
                if name == self._busy:  # a reader would wait for it, and it waits for this call
                    continue
                if name not in self._open and name not in self._known and name in self._first:
                    self._known.add(name)
                    with db.ReplayBuffer(self._root, mode="r", writer=name, threads=1) as buffer:
                        own = buffer.steps()
                        self.model.kept[name] = set(buffer.at(own)["action"].tolist()) if len(own) else set()
        finally:
            self._nested = nested
        found = self.model.every_kept()
        return found | set().union(*self.model.adding.values()) if self._nested else found

    def _note_failure(self) -> None:
        if self._trace is not None and self._trace.fault is not None and self._trace.fault.failed:
            self._failed = True
            self.model.lose()

    @contextlib.contextmanager
    def _faulty(self, faults: bool, often: float) -> Iterator[None]:
        if faults and self._trace is not None and self._rng.random() < often:
            lasting = int(self._rng.choice([0, 0, 2, 10**6]))
            self._trace.fault = _LearnersFault(int(self._rng.integers(12)), errno.EIO, lasting, only="fsync")
        try:
            yield
        finally:
            if self._trace is not None:
                self._trace.fault = None

    def _next_version(self) -> int:
        self.model.version += 1
        return self.model.version

    def _write(self, faults: bool) -> None:
        learner = self._learn()
        numbers, version = self._some(learner), self._next_version()
        if not (names := list(numbers)):
            return
        self.log.append(f"the learner writes version {version} to {names}")
        values = np.array([numbers[name] * 10_000 + version for name in names])
        with self._faulty(faults, 0.2):
            self._change(
                "score", names, lambda step: step * 10_000 + version, lambda: learner.columns.write("score", names, values)
            )

    def _prioritize(self, faults: bool) -> None:
        learner = self._learn()
        if not len(learner):
            return
        if self._sampler is None:
            self._sampler = db.Prioritized(alpha=1.0, seed=int(self._rng.integers(100)))
        sampler, version = self._sampler, self._next_version()
        with self._faulty(faults, 0.2):
            try:
                batch = learner.sample(int(self._rng.integers(1, 30)), sampler)
            except db.errors.EmptyBufferError:
                return
            except OSError:
                self.log.append("a draw fails")
                self._note_failure()
                return
            finally:
                self.model.maxima.add(sampler._largest)
            drawn = np.unique(batch["steps"].numpy()).tolist() if self._rng.random() < 0.5 else None
            names = list(numbers := self._some(learner, drawn))
            self.log.append(f"the learner sets priorities of version {version} of {names}")
            errors = np.array([self._priority(numbers[name], version) for name in names])
            try:
                self._change(
                    "priority", names, lambda step: self._priority(step, version), lambda: sampler.update(np.array(names), errors)
                )
            finally:
                self.model.maxima.add(sampler._largest)

    @staticmethod
    def _priority(step: int, version: int) -> float:
        return float(np.float32(1000 + step * 64 + version % 64))

    def _tag(self, faults: bool) -> None:
        learner, model = self._learn(), self.model
        episodes = learner.episodes
        if not len(episodes):
            return
        one = int(self._rng.integers(len(episodes)))
        name, tag = int(episodes.start[one]), str(self._rng.choice(TAGS))
        numbers = self._numbers(learner, [name])
        if not numbers:
            return
        kept = self._kept_now()
        every = model.members[model.episode_of[numbers[0]]]
        members = [step for step in every if step in kept]
        self.log.append(f"the learner tags the episode of {name}, of steps {members[:1]} to {members[-1:]}, {tag}")
        with self._faulty(faults, 0.2):
            try:
                learner.episodes.of([name]).set_tag(tag)
            except db.InputError:
                return  # evicted, or not over: nothing is written, which is compared
            except OSError:
                model.write("tag", model.cleared.intersection(every).union(members), lambda _: tag, certain=False)
                self._note_failure()
                return
        model.write("tag", members, lambda _: tag)
        model.write("tag", model.cleared.intersection(every).difference(members), lambda _: tag, certain=False)

    def _map(self, faults: bool) -> None:
        learner, version = self._learn(), self._next_version()
        if not len(learner):
            return
        names = learner.steps().tolist()
        self.log.append(f"the learner maps version {version}")

        def function(batch: dict[str, Any]) -> Array:
            return np.asarray(batch["action"].numpy() * 10_000 + version)

        def call() -> None:
            learner.columns.map(function, 16, "score", progress=False, threads=1)

        with self._faulty(faults, 0.2):
            self._change("score", names, lambda step: step * 10_000 + version, call)

    def _returns(self, faults: bool) -> None:
        learner = self._learn()
        if not len(learner):
            return
        self.log.append("the learner computes returns")

        def call() -> None:
            learner.columns.returns_and_advantages(gamma=0.0, values=None)

        with self._faulty(faults, 0.2):
            self._change("return", learner.steps().tolist(), float, call)

    def _flush(self, faults: bool) -> None:
        learner = self._learn()
        self.log.append("the learner flushes")
        with self._faulty(faults, 0.5):
            try:
                learner.flush()
            except OSError:
                self.counts["flushes that failed"] += 1
                self.log.append("   it fails")
                self._note_failure()
                return
        self.model.flush()

    def _refresh(self, _faults: bool) -> None:
        self.log.append("the learner refreshes")
        self._learn().refresh()

    def _compare(self, _faults: bool) -> None:
        self.log.append("the learner's view is compared")
        learner = self._learn()
        if not learner._store.columns.is_writing:  # type: ignore[attr-defined]  # it was a reader, and what others wrote is new
            learner.refresh()
        self.compare(learner)

    def _compare_reader(self, _faults: bool) -> None:
        """Have a reader that is there all the time see what the learner wrote."""
        if self._reader is None:
            self.log.append("a reader opens")
            self._reader = db.ReplayBuffer(self._root, mode="r", threads=1, seed=0)
        self.log.append("a reader's view is compared")
        self._reader.refresh()
        self.compare(self._reader)

    def _end_learner(self, _faults: bool) -> None:
        if self._learner is not None and not self._nested:
            self.log.append("the learner ends")
            held, self._learner, self._sampler = [self._learner], None, None
            with contextlib.suppress(OSError) if self._failed else contextlib.nullcontext():
                self._end(held)
            if not self._failed:
                self.model.flush()
            self._failed = False

    def _hand_over(self, _faults: bool) -> None:
        """Have the reader go on in the learner's place."""
        if self._reader is not None and not self._nested:
            self.log.append("the reader is the learner from now on")
            self._end_learner(False)
            self._learner, self._reader = self._reader, None

    def _remove(self, faults: bool) -> None:
        learner, model = self._learn(), self.model
        if "score" in learner.columns.derived:
            self.log.append("the learner removes a column")
            with self._faulty(faults, 0.0):
                learner.columns.remove("score")
            for one in model.columns["score"].values():
                one.write(0)
                one.durable = one.low

    # What there is

    def compare(self, buffer: db.ReplayBuffer, *, power: bool = False) -> None:
        """Compare every value of every step that a buffer sees with the model.

        After a loss of `power` older values may be there, and of steps that had been evicted and are back, any.
        """
        model, names = self.model, buffer.steps()
        if not len(names):
            return
        batch = self._at_some(buffer, names.tolist())
        actions, found = batch["action"].tolist(), batch["steps"].tolist()
        for name, action in zip(found, actions, strict=True):
            model.name(name, action)
        kept = model.every_kept()
        for kind, action, seen in self._values(buffer, batch):
            written = model.columns[kind].get(action) or Written()
            low = written.durable if power else written.low
            if power and action not in kept:
                low = 0
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

    def _come_back(self) -> None:
        for name in self._rng.permutation(self._writers).tolist():
            self._writer(name)

    def _judge(self, power: bool) -> None:
        """Open what is left, and compare everything; the writers come back before a learner does, or after it."""
        model = self.model
        if not (self._root / "zarr.json").exists():
            if not power or model.flushed:
                raise BrokenError("the directory is gone")
            return
        first = bool(self._rng.random() < 0.5)
        if first:
            with db.ReplayBuffer(self._root, mode="r", threads=1) as learner:
                self.compare(learner, power=power)
        kept, adding = model.every_kept(), set().union(*model.adding.values())
        for name in self._writers:
            if (self._root / name).exists():
                self._writer(name)
        there = model.every_kept()
        missing = kept - adding - there
        if missing and not power:
            raise BrokenError(f"steps {sorted(missing)} are gone")
        learner = self._learn()
        self.compare(learner, power=power)
        self._settle(learner, power)
        for name in self._writers:
            model.adding[name].clear()
        if self._rng.random() < 0.5:
            self._end_learner(False)

    def _settle(self, learner: db.ReplayBuffer, power: bool) -> None:
        """Take what is there for what was written."""
        model, names, there = self.model, learner.steps(), set[int]()
        for kind, action, seen in self._values(learner, learner.at(names)) if len(names) else ():
            there.add(action)
            written = model.columns[kind][action]
            if power:
                written.values, written.low, written.durable, written.lost = [seen], 0, 0, -1
            elif len(written.values) - 1 > written.low:
                written.write(seen)
            if kind == "priority":
                model.maxima.add(seen)
        for step in set(model.name_of) - there:
            for written_of in model.columns.values():
                written_of.pop(step, None)

    def _let_go(self) -> None:
        """Forget the buffers of a process that is gone."""
        self._known.clear()
        buffers = [*self._open.values(), self._learner, self._reader]
        self._open, self._learner, self._reader, self._sampler, self._failed = {}, None, None, None, False
        for buffer in buffers:
            if buffer is not None:
                with contextlib.suppress(OSError, db.DiskBufferError):
                    buffer.close()
        buffers.clear()


def _stamps(base: Path) -> list[tuple[str, int, int]]:
    """Return what changes where a file below a directory is put in another's place."""
    found = [(str(path), path.lstat()) for path in sorted(base.rglob("*"))]
    return [(path, status.st_ino, status.st_mtime_ns) for path, status in found]


def run(seed: int, number: int) -> tuple[str, dict[str, int]]:
    """Run one schedule; return what went wrong, or nothing, and figures."""
    with scratch() as base, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        (base / "now").mkdir()
        schedule = Schedule(seed, number, base / "now")
        try:
            schedule.run()
        except BrokenError as broken:
            return "\n    ".join([str(broken), *schedule.log[-12:]]), dict(schedule.counts)
        except Exception:  # noqa: BLE001  every one is counted
            return "\n    ".join([traceback.format_exc(limit=-8), *schedule.log[-12:]]), dict(schedule.counts)
        return "", dict(schedule.counts)


def warm() -> None:
    """Compile what is needed."""
    run(0, 10**6)


def main(scale: float = 1.0, *, seed: int = 0) -> Row:
    """Run 2,000 schedules, times `scale`."""
    title = "writers beside a learner that writes columns, killed or cut off from power"
    return seeded(title, "soak.learners", ((seed, n) for n in range(round(2000 * scale))), timeout=300)
