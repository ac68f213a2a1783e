"""Power losses and kills, simulated by the thousand: ``python -m soak.crashes --count 20000 --seed 0``.

Workloads run on small stores while what they do to the disk is traced. Then, at moments of the trace, the directory is built that
a crash there can leave (see `tests.support.simulated_disk`), opened, compared with what was promised by then, and used. With some
the workload goes on, and they crash again.

A broken promise prints its recording and state; ``--only RECORDING STATE`` builds and judges that state again, with the same
``--seed`` and ``--states``. Where a workload's threads run beside each other a trace depends on more than the seed: every broken
state is also kept as a file below ``--keep``, and ``--replay FILE`` judges it.
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import itertools
import multiprocessing
import multiprocessing.connection
import pickle
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, get_args

import numpy as np

from soak.judging import BrokenError, Expected, broken_by, expect, judge
from soak.table import Row
from tests.support.simulated_disk import Assumption, Disk, Event, Kind, Sync, Tree, build
from tests.support.workloads import WORKLOADS, Recorded, Resumed, record

STATES = 250  # of a recording
AGAIN, AGAIN_STATES, AGAIN_CALLS = 2, 20, 15  # of how many a crash is recovered from, to crash again how often, in which calls
PATIENCE = 180.0  # seconds that one state may take, or a workload
SHOWN = 30


@dataclass(frozen=True)
class State:
    """What a crash left, and how it is to be judged."""

    number: int
    tree: Tree
    expected: Expected
    boot: int
    reader: bool
    thorough: bool
    how: str
    disk: Disk | None = None  # of a kill that the workload goes on after
    failed: BrokenError | None = None  # where the library failed before it came to a crash


@dataclass(frozen=True)
class Found:
    """A promise that was broken."""

    recording: int
    state: int
    what: str
    detail: str
    how: str
    file: str = ""


@dataclass
class Findings:
    """What a campaign found, the broken promises by their text."""

    done: int = 0
    kills: int = 0
    broken_kills: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    first: dict[str, Found] = field(default_factory=dict)

    def add(self, found: Found) -> None:
        """Count a broken promise."""
        self.counts[found.what] += 1
        self.first.setdefault(found.what, found)


# Crash states of a recording


def recorded(seed: int, number: int, name: str | None = None) -> Recorded:
    """Run the workload of a recording, or the one of a name."""
    workload = next((one for one in WORKLOADS if one.name == name), WORKLOADS[number % len(WORKLOADS)])
    with scratch() as base:
        return record(workload, int(np.random.default_rng([seed, number]).integers(2**31)), base)


def states_of(
    seed: int, number: int, recording: Recorded, count: int, assume: frozenset[Assumption] = frozenset()
) -> Iterator[State]:
    """Yield crash states, in the order of the trace, then those of crashes at opening."""
    again = AGAIN_STATES if count > 2 * AGAIN * AGAIN_STATES else 0
    first = count - AGAIN * again
    disk, applied, chosen = recording.disk(), 0, list[State]()
    near = _near_syncs(recording.events)
    rngs = [np.random.default_rng([seed, number, state]) for state in range(count)]
    points = [int(rng.choice(near) if rng.random() < 0.4 else rng.integers(len(recording.events) + 1)) for rng in rngs[:first]]
    kills = [state % 10 == 1 and state // 10 % 3 != 2 and not recording.workload.concurrent for state in range(first)]
    looks = np.array(recording.trace.looks)
    points = [int(looks[np.searchsorted(looks, at)]) if killed else at for at, killed in zip(points, kills, strict=True)]
    for state in sorted(range(first), key=points.__getitem__):
        for event in recording.events[applied : points[state]]:
            disk.apply(event)
        applied = points[state]
        rng, kind = rngs[state], _kind(state)
        killed = kills[state]
        expected = expect(recording, applied, killed=killed)
        what = recording.events[applied - 1].what if applied else "nothing"
        how = f"{kind}{', a kill' if killed else ''}; {expected.before}; event {applied}, {what}"
        found = State(
            state, disk.crash(kind, rng, assume), expected, 1 if killed else 2, state % 4 == 3, state // 10 % 2 == 0, how
        )
        if (
            again
            and len(chosen) < AGAIN
            and (killed or kind == "random")
            and rng.random() < (16 if killed else 3) * AGAIN / first
        ):
            chosen.append(dataclasses.replace(found, disk=copy.deepcopy(disk) if killed else None))
        yield found
    for n, one in enumerate(chosen):
        yield from _crashed_again(one, first + n * again, rngs[first + n * again : first + (n + 1) * again], assume)


def _kind(state: int) -> Kind:
    kinds: dict[int, Kind] = {0: "nothing", 1: "everything", 2: "data only", 3: "metadata only"}
    return kinds.get(state % 10, "random")


def _near_syncs(events: list[Event]) -> list[int]:
    """Return moments right before and after syncs and changes of names, where protocols go wrong."""
    syncs = [n for n, event in enumerate(events) if isinstance(event, Sync)]
    return [n + d for n in syncs for d in (0, 1)] or [0]


def _crashed_again(state: State, number: int, rngs: list[np.random.Generator], assume: frozenset[Assumption]) -> Iterator[State]:
    """Open a state and go on with it for some calls, and yield what power losses and kills leave while that is done."""
    expected = state.expected
    workload = dataclasses.replace(expected.workload, calls=AGAIN_CALLS)
    resumed = Resumed(
        expected.world, expected.must, expected.flushed, expected.may, expected.sealed, expected.seen, state.boot, state.disk
    )
    if judged(state) is not None:
        return
    with scratch() as base:
        build(state.tree, base)
        try:
            recording = record(workload, state.number, base, resumed)
        except Exception as error:  # noqa: BLE001  as a state, so that it is told
            what = f"state {state.number} ({state.how}), gone on with"
            yield dataclasses.replace(state, number=number, how=what, failed=broken_by("going on", error))
            return
    points, disk, applied = [int(rng.integers(len(recording.events) + 1)) for rng in rngs], recording.disk(), 0
    kills = [n % 10 == 0 and not workload.concurrent for n in range(len(rngs))]
    looks = np.array(recording.trace.looks)
    points = [int(looks[np.searchsorted(looks, at)]) if killed else at for at, killed in zip(points, kills, strict=True)]
    for n in sorted(range(len(rngs)), key=points.__getitem__):
        for event in recording.events[applied : points[n]]:
            disk.apply(event)
        applied, killed = points[n], kills[n]
        kind: Kind = "everything" if killed else "random"
        again = expect(recording, applied, killed=killed)
        what = f"{kind}{', a kill' if killed else ''}; {again.before}; event {applied}"
        how = f"state {state.number} ({state.how}), gone on with; {what}"
        boot = state.boot if killed else state.boot + 1
        yield State(number + n, disk.crash(kind, rngs[n], assume), again, boot, n % 4 == 3, n % 2 == 0, how)


class scratch:  # noqa: N801  used as a function
    """A directory in memory, for as long as a block runs."""

    def __enter__(self) -> Path:
        memory = Path("/dev/shm")
        self._path = Path(tempfile.mkdtemp(prefix="crashes-", dir=memory if memory.is_dir() else None))
        return self._path

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self._path, ignore_errors=True)


def judged(state: State) -> BrokenError | None:
    """Build a state, and judge it."""
    if state.failed is not None:
        return state.failed
    with scratch() as base:
        build(state.tree, base)
        return judge(state.expected, base, state.boot, reader=state.reader, thorough=state.thorough)


# Recordings in processes of their own, which a state may take down


def _work(seed: int, states: int, keep: str, assume: frozenset[Assumption], jobs: Connection) -> None:
    """Judge the states of recordings that are asked for; ``(recording, states to skip)`` comes, the number of each state goes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        job = jobs.recv()
        if job is None:
            return
        number, skip = job
        recording = recorded(seed, number)
        for state in states_of(seed, number, recording, states, assume):
            if state.number in skip:
                continue
            jobs.send((state.number, state.how))
            broken = judged(state)
            found = None
            if broken is not None:
                file = _keep(keep, f"{seed}-{number}-{state.number}", state)
                found = Found(number, state.number, broken.what, broken.detail, state.how, file)
            jobs.send(found)
        jobs.send("done")


def _keep(directory: str, name: str, state: State) -> str:
    if not directory:
        return ""
    Path(directory).mkdir(parents=True, exist_ok=True)
    file = Path(directory) / f"{name}.pickle"
    file.write_bytes(pickle.dumps(state))
    return str(file)


class Worker:
    """A process that judges one recording after the other, and is started again where a state takes it down."""

    def __init__(self, seed: int, states: int, keep: str, assume: frozenset[Assumption]) -> None:
        self._arguments = seed, states, keep, assume
        self._process: Any = None
        self.recording, self._skip = -1, set[int]()
        self._state: tuple[int, str] | None = None
        self._since = 0.0

    def begin(self, recording: int) -> None:
        """Have a recording be judged."""
        self.recording, self._skip = recording, set()
        self._send()

    def _send(self) -> None:
        if self._process is None:
            context = multiprocessing.get_context("spawn")
            self.jobs, theirs = context.Pipe()
            self._process = context.Process(target=_work, args=(*self._arguments, theirs), daemon=True)
            self._process.start()
            theirs.close()
        self._state, self._since = None, time.monotonic()
        self.jobs.send((self.recording, self._skip))

    def take(self, findings: Findings) -> bool:
        """Take one message, and tell whether the recording is done."""
        try:
            message = self.jobs.recv()
        except (EOFError, ConnectionResetError):
            return self._died(findings)
        self._since = time.monotonic()
        if isinstance(message, tuple):
            self._state = message
        elif message == "done":
            return True
        else:
            assert self._state is not None
            self._count(findings, message)
        return False

    def _count(self, findings: Findings, found: Found | None) -> None:
        assert self._state is not None
        findings.done += 1
        killed = ", a kill;" in self._state[1].split("gone on with")[-1]
        findings.kills += killed
        findings.broken_kills += killed and found is not None
        self._skip.add(self._state[0])
        self._state = None
        if found is not None:
            findings.add(found)

    def _died(self, findings: Findings) -> bool:
        self._process.join()
        code, self._process = self._process.exitcode, None
        what = "it hangs" if code == -signal.SIGKILL else f"it ends the process with {code}"
        if self._state is None:  # no crash was needed
            findings.add(Found(self.recording, -1, f"while a workload runs, {what}", "", "no crash"))
            return True
        number, how = self._state
        self._count(findings, Found(self.recording, number, what, "", how))
        self._send()
        return False

    def watch(self) -> None:
        """End a process that hangs."""
        if self._process is not None and time.monotonic() - self._since > PATIENCE:
            self._process.kill()

    def stop(self) -> None:
        """End the process."""
        if self._process is not None:
            self.jobs.send(None)
            self._process.join(0.5)
            self._process.kill()
            self._process.join()
            self._process = None


def run(
    count: int,
    seed: int,
    *,
    minutes: float | None = None,
    processes: int = 2,
    states: int = STATES,
    keep: str = "",
    first: int = 0,
    assume: frozenset[Assumption] = frozenset(),
) -> Findings:
    """Judge `count` states at least, or as many as `minutes` allow, from recording `first` on."""
    findings, until = Findings(), time.monotonic() + 60 * (minutes or 1e9)
    recordings, workers = itertools.count(first), list[Worker]()
    idle = [Worker(seed, states, keep, assume) for _ in range(processes)]

    def is_enough() -> bool:
        return findings.done + states * len(workers) >= count or time.monotonic() > until

    try:
        while workers or not is_enough():
            while idle and not is_enough():
                worker = idle.pop()
                worker.begin(next(recordings))
                workers.append(worker)
            ready = multiprocessing.connection.wait([worker.jobs for worker in workers], timeout=5)
            for worker in list(workers):
                if worker.jobs in ready and worker.take(findings):
                    workers.remove(worker)
                    idle.append(worker)
                worker.watch()
    finally:
        for worker in [*workers, *idle]:
            worker.stop()
    return findings


def row(findings: Findings) -> Row:
    """Return the campaign as a row of the table."""
    notes = [
        f"{n} times: {what} (recording {one.recording}, state {one.state}: {one.how}): {one.detail[:300]} {one.file}".strip()
        for what, n in findings.counts.most_common(SHOWN)
        for one in [findings.first[what]]
    ]
    notes.insert(0, f"{findings.kills:,} of the states are what a kill leaves, {findings.broken_kills} of these broken")
    return Row("states that a power loss or a kill left", findings.done, sum(findings.counts.values()), notes)


def main(scale: float = 1.0, *, seed: int = 0) -> Row:
    """Judge 20,000 states, times `scale`; those that are broken are kept in the directory `broken`."""
    return row(run(int(20_000 * scale), seed, keep=str(Path(__file__).parent / "broken")))


def only(
    seed: int, recording: int, number: int, states: int, keep: str, assume: frozenset[Assumption] = frozenset()
) -> BrokenError | None:
    """Judge one state of a recording."""
    for state in states_of(seed, recording, recorded(seed, recording), states, assume):
        if state.number == number:
            print(state.how)
            return _shown(state, keep)
    raise SystemExit(f"recording {recording} has no state {number}")


def _shown(state: State, keep: str) -> BrokenError | None:
    if keep:
        Path(keep).mkdir(parents=True)
        build(state.tree, Path(keep))
        print(f"built below {keep}")
    broken = judged(state)
    print("fine" if broken is None else f"broken: {broken}")
    if broken is not None and broken.__cause__ is not None:
        sys.excepthook(type(broken.__cause__), broken.__cause__, broken.__cause__.__traceback__)
    return broken


def _command_line() -> int:
    parser = argparse.ArgumentParser(prog="python -m soak.crashes", description="Judge simulated crashes.")
    parser.add_argument("--count", type=int, default=20_000, help="states")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--states", type=int, default=STATES, help="of one recording")
    parser.add_argument("--first", type=int, default=0, help="recording")
    parser.add_argument("--keep", default="", help="directory for broken states, or for the one that is judged")
    parser.add_argument(
        "--assume",
        nargs="+",
        default=[],
        choices=get_args(Assumption),
        help="what is never lost, to see what is behind a cause that hides others",
    )
    parser.add_argument("--only", type=int, nargs=2, metavar=("RECORDING", "STATE"))
    parser.add_argument("--replay", metavar="FILE")
    given = parser.parse_args()
    if given.replay:
        return int(_shown(pickle.loads(Path(given.replay).read_bytes()), given.keep) is not None)
    if given.only:
        number, state = given.only
        return int(only(given.seed, number, state, given.states, given.keep, frozenset(given.assume)) is not None)
    begin = time.monotonic()
    done = row(
        run(
            given.count,
            given.seed,
            minutes=given.minutes,
            processes=given.processes,
            states=given.states,
            keep=given.keep,
            first=given.first,
            assume=frozenset(given.assume),
        )
    )
    print(f"{done.what}: {done.done:,} done, {done.broken:,} broken, in {time.monotonic() - begin:.0f} s")
    for note in done.notes:
        print("  " + note)
    return int(done.broken > 0)


if __name__ == "__main__":
    sys.exit(_command_line())
