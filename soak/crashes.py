"""Power losses and kills, simulated by the thousand.

Workloads run on small stores while what they do to the disk is traced. Then, at moments of the trace, the directory is built that
a crash there can leave (see `tests.support.simulated_disk`), opened, compared with what was promised by then, and used. With some
the workload goes on, and they crash again.

Where a workload's threads run beside each other a trace depends on more than the seed: every broken state is also kept as a file
in soak/broken, which ``--again "{'file': NAME}"`` judges.
"""

from __future__ import annotations

import collections
import copy
import dataclasses
import json
import pickle
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from soak.judging import BrokenError, Expected, broken_by, expect, judge
from soak.table import SHOWN, Row
from soak.workers import Answer, Job, Pool, scratch
from tests.support.simulated_disk import Disk, Event, Kind, Sync, Tree, build
from tests.support.workloads import WORKLOADS, Recorded, record

STATES = 250  # of a recording
AGAIN, AGAIN_STATES, AGAIN_CALLS = 2, 20, 15  # of how many a crash is recovered from, to crash again how often, in which calls
KINDS: dict[int, Kind] = {
    0: "nothing",
    1: "everything",
    2: "data only",
    3: "metadata only",
}  # of ten states; the others are random
BROKEN = Path(__file__).parent / "broken"


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


# Crash states of a recording


def recorded(seed: int, number: int, name: str | None = None) -> Recorded:
    """Run the workload of a recording, or the one of a name."""
    workload = next((one for one in WORKLOADS if one.name == name), WORKLOADS[number % len(WORKLOADS)])
    with scratch() as base:
        return record(workload, int(np.random.default_rng([seed, number]).integers(2**31)), base)


def walked(recording: Recorded, points: list[int], kills: list[bool] | None = None) -> Iterator[tuple[int, int, Disk]]:
    """Yield the number of each moment, the moment, and the disk then, in the order of the trace; kills come at looks."""
    looks, disk, applied = np.array(recording.trace.looks), recording.disk(), 0
    if kills is not None:
        points = [int(looks[np.searchsorted(looks, at)]) if killed else at for at, killed in zip(points, kills, strict=True)]
    for n in sorted(range(len(points)), key=points.__getitem__):
        for event in recording.events[applied : points[n]]:
            disk.apply(event)
        applied = points[n]
        yield n, applied, disk


def left_by(
    recording: Recorded,
    number: int,
    point: int,
    disk: Disk,
    kind: Kind,
    rng: np.random.Generator,
    *,
    killed: bool = False,
    boot: int = 1,
    before: str = "",
) -> State:
    """Return what a crash at a moment leaves; `boot` is that of the recording."""
    expected = expect(recording, point, killed=killed)
    what = recording.events[point - 1].what if point else "nothing"
    how = f"{before}{kind}{', a kill' if killed else ''}; {expected.before}; event {point}, {what}"
    return State(number, disk.crash(kind, rng), expected, boot + (not killed), number % 4 == 3, number % 2 == 0, how)


def states_of(seed: int, number: int, recording: Recorded, count: int) -> Iterator[State]:
    """Yield crash states, in the order of the trace, then those of crashes at opening."""
    again = AGAIN_STATES if count > 2 * AGAIN * AGAIN_STATES else 0
    first, chosen, near = count - AGAIN * again, list[State](), _near_syncs(recording.events)
    rngs = [np.random.default_rng([seed, number, state]) for state in range(count)]
    points = [int(rng.choice(near) if rng.random() < 0.4 else rng.integers(len(recording.events) + 1)) for rng in rngs[:first]]
    kills = [state % 10 == 1 and state // 10 % 3 != 2 and not recording.workload.concurrent for state in range(first)]
    for n, point, disk in walked(recording, points, kills):
        kind, killed = KINDS.get(n % 10, "random"), kills[n]
        state = left_by(recording, n, point, disk, kind, rngs[n], killed=killed)
        state = dataclasses.replace(state, thorough=n // 10 % 2 == 0)
        likely = (16 if killed else 3 if kind == "random" else 0) * AGAIN / first
        if again and len(chosen) < AGAIN and likely and rngs[n].random() < likely:
            chosen.append(dataclasses.replace(state, disk=copy.deepcopy(disk) if killed else None))
        yield state
    for n, one in enumerate(chosen):
        yield from _crashed_again(one, first + n * again, rngs[first + n * again : first + (n + 1) * again])


def _near_syncs(events: list[Event]) -> list[int]:
    """Return moments right before and after syncs and changes of names, where protocols go wrong."""
    syncs = [n for n, event in enumerate(events) if isinstance(event, Sync)]
    return [n + d for n in syncs for d in (0, 1)] or [0]


def _crashed_again(state: State, number: int, rngs: list[np.random.Generator]) -> Iterator[State]:
    """Open a state and go on with it for some calls, and yield what power losses and kills leave while that is done."""
    if judged(state) is not None:
        return
    before = f"state {state.number} ({state.how}), gone on with"
    try:
        recording = gone_on(state, AGAIN_CALLS, state.number)
    except Exception as error:  # noqa: BLE001  as a state, so that it is told
        yield dataclasses.replace(state, number=number, how=before, failed=broken_by("going on", error))
        return
    points = [int(rng.integers(len(recording.events) + 1)) for rng in rngs]
    kills = [n % 10 == 0 and not recording.workload.concurrent for n in range(len(rngs))]
    for n, point, disk in walked(recording, points, kills):
        kind: Kind = "everything" if kills[n] else "random"
        left = left_by(recording, number + n, point, disk, kind, rngs[n], killed=kills[n], boot=state.boot, before=f"{before}; ")
        yield dataclasses.replace(left, reader=n % 4 == 3, thorough=n % 2 == 0)


def gone_on(state: State, calls: int, seed: int) -> Recorded:
    """Go on with what a crash left."""
    known = state.expected
    with scratch() as base:
        build(state.tree, base)
        return record(dataclasses.replace(known.workload, calls=calls), seed, base, known, state.boot, state.disk)


def judged(state: State) -> BrokenError | None:
    """Build a state, and judge it."""
    if state.failed is not None:
        return state.failed
    with scratch() as base:
        build(state.tree, base)
        return judge(state.expected, base, state.boot, reader=state.reader, thorough=state.thorough)


# Recordings in processes that a state may take down


def child(directory: Path) -> Callable[[Job], Answer]:
    """Return what judges the states of a recording, and notes each in a file before and after."""

    def do(job: Job) -> Answer:
        if "file" in job:
            return {"broken": str(judged(pickle.loads((BROKEN / job["file"]).read_bytes())))}
        seed, number = job["seed"], job["recording"]
        with directory.with_name(f"recording {number}").open("w") as notes:
            for state in states_of(seed, number, recorded(seed, number), job["states"]):
                note: Answer = {"how": f"recording {number}, state {state.number}: {state.how}", "killed": state.expected.killed}
                print(json.dumps(note), file=notes, flush=True)
                if broken := judged(state):
                    BROKEN.mkdir(exist_ok=True)
                    file = BROKEN / f"{seed}-{number}-{state.number}.pickle"
                    file.write_bytes(pickle.dumps(state))
                    note |= {"what": broken.what, "how": f"({note['how']}): {broken.detail[:300]} {file.name}"}
                print(json.dumps({"what": ""} | note), file=notes, flush=True)
        return {"done": True}

    return do


def run(count: int, seed: int, *, states: int = STATES, first: int = 0) -> Row:
    """Judge `count` states at least, from recording `first` on."""
    jobs: list[Job] = [{"seed": seed, "recording": first + n, "states": states} for n in range(-(-count // states))]
    found, broken = list[Answer](), collections.defaultdict[str, list[Answer]](list)
    with scratch() as base, Pool("soak.crashes", base, timeout=1800) as pool:
        for job, answer in pool.do_all(jobs):
            file = base / f"recording {job['recording']}"
            notes: list[Answer] = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
            if "done" not in answer:  # in the state that was noted last, and is not judged
                last = notes[-1] if notes else {"how": f"recording {job['recording']}", "killed": False}
                notes.append(last | {"what": f"the process ends, or hangs: {answer}"})
            found += [note for note in notes if "what" in note]
    for note in found:
        if note["what"]:
            broken[note["what"]].append(note)
    kills = [bool(note["what"]) for note in found if note["killed"]]
    row = Row("states that a power loss or a kill left", len(found), sum(map(len, broken.values())))
    row.notes = [f"{len(kills):,} of the states are what a kill leaves, {sum(kills)} of these broken"]
    most = sorted(broken.items(), key=lambda one: -len(one[1]))[:SHOWN]
    row.notes += [f"{len(told)} times: {what} {told[0]['how']}" for what, told in most]
    return row


def main(scale: float = 1.0, *, seed: int = 0) -> Row:
    """Judge 20,000 states, times `scale`; those that are broken are kept in the directory `broken`."""
    return run(int(20_000 * scale), seed)
