"""Power losses and kills, simulated by the thousand.

Workloads run on small stores while what they do to the disk is traced. Then, at moments of the trace, the directory is built that
a crash there can leave (see `tests.support.simulated_disk`), opened, compared with what was promised by then, and used. With some
the workload goes on, and they crash again.

Where a workload's threads run beside each other a trace depends on more than the seed: every broken state is also kept as a file
in soak/broken, which ``--again "{'file': NAME}"`` judges.
"""

from __future__ import annotations

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
from tests.support.workloads import WORKLOADS, Recorded, Resumed, record

STATES = 250  # of a recording
AGAIN, AGAIN_STATES, AGAIN_CALLS = 2, 20, 15  # of how many a crash is recovered from, to crash again how often, in which calls
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


def states_of(seed: int, number: int, recording: Recorded, count: int) -> Iterator[State]:
    """Yield crash states, in the order of the trace, then those of crashes at opening."""
    again = AGAIN_STATES if count > 2 * AGAIN * AGAIN_STATES else 0
    first, chosen, near = count - AGAIN * again, list[State](), _near_syncs(recording.events)
    rngs = [np.random.default_rng([seed, number, state]) for state in range(count)]
    points = [int(rng.choice(near) if rng.random() < 0.4 else rng.integers(len(recording.events) + 1)) for rng in rngs[:first]]
    kills = [state % 10 == 1 and state // 10 % 3 != 2 and not recording.workload.concurrent for state in range(first)]
    for state, applied, disk in walked(recording, points, kills):
        rng, kind, killed = rngs[state], _kind(state), kills[state]
        expected = expect(recording, applied, killed=killed)
        what = recording.events[applied - 1].what if applied else "nothing"
        how = f"{kind}{', a kill' if killed else ''}; {expected.before}; event {applied}, {what}"
        tree, boot = disk.crash(kind, rng), 1 if killed else 2
        found = State(state, tree, expected, boot, state % 4 == 3, state // 10 % 2 == 0, how)
        likely = (16 if killed else 3 if kind == "random" else 0) * AGAIN / first
        if again and len(chosen) < AGAIN and likely and rng.random() < likely:
            chosen.append(dataclasses.replace(found, disk=copy.deepcopy(disk) if killed else None))
        yield found
    for n, one in enumerate(chosen):
        yield from _crashed_again(one, first + n * again, rngs[first + n * again : first + (n + 1) * again])


def _kind(state: int) -> Kind:
    kinds: dict[int, Kind] = {0: "nothing", 1: "everything", 2: "data only", 3: "metadata only"}
    return kinds.get(state % 10, "random")


def _near_syncs(events: list[Event]) -> list[int]:
    """Return moments right before and after syncs and changes of names, where protocols go wrong."""
    syncs = [n for n, event in enumerate(events) if isinstance(event, Sync)]
    return [n + d for n in syncs for d in (0, 1)] or [0]


def _crashed_again(state: State, number: int, rngs: list[np.random.Generator]) -> Iterator[State]:
    """Open a state and go on with it for some calls, and yield what power losses and kills leave while that is done."""
    expected = state.expected
    workload = dataclasses.replace(expected.workload, calls=AGAIN_CALLS)
    if judged(state) is not None:
        return
    with scratch() as base:
        build(state.tree, base)
        try:
            recording = record(workload, state.number, base, resumed(expected, state.boot, state.disk))
        except Exception as error:  # noqa: BLE001  as a state, so that it is told
            what = f"state {state.number} ({state.how}), gone on with"
            yield dataclasses.replace(state, number=number, how=what, failed=broken_by("going on", error))
            return
    points = [int(rng.integers(len(recording.events) + 1)) for rng in rngs]
    kills = [n % 10 == 0 and not workload.concurrent for n in range(len(rngs))]
    for n, applied, disk in walked(recording, points, kills):
        killed = kills[n]
        kind: Kind = "everything" if killed else "random"
        again = expect(recording, applied, killed=killed)
        what = f"{kind}{', a kill' if killed else ''}; {again.before}; event {applied}"
        how, boot = f"state {state.number} ({state.how}), gone on with; {what}", state.boot if killed else state.boot + 1
        yield State(number + n, disk.crash(kind, rngs[n]), again, boot, n % 4 == 3, n % 2 == 0, how)


def resumed(expected: Expected, boot: int, disk: Disk | None) -> Resumed:
    """Return what is known of a store that a crash left."""
    known = expected.must, expected.flushed, expected.may, expected.sealed, expected.seen
    return Resumed(expected.world, *known, boot, disk)


def judged(state: State) -> BrokenError | None:
    """Build a state, and judge it."""
    if state.failed is not None:
        return state.failed
    with scratch() as base:
        build(state.tree, base)
        return judge(state.expected, base, state.boot, reader=state.reader, thorough=state.thorough)


# Recordings in processes that a state may take down


def child(directory: Path) -> Callable[[Job], Answer]:
    """Return what judges the states of a recording, those in ``skip`` left out, and notes each in a file before and after."""

    def do(job: Job) -> Answer:
        if "file" in job:
            return {"broken": str(judged(pickle.loads((BROKEN / job["file"]).read_bytes())))}
        recording = recorded(job["seed"], job["recording"])
        with notes_of(directory, job).open("a") as notes:
            for state in states_of(job["seed"], job["recording"], recording, job["states"]):
                if state.number in job["skip"]:
                    continue
                told: Answer = {"state": state.number, "how": state.how, "killed": state.expected.killed}
                print(json.dumps(told), file=notes, flush=True)
                broken = judged(state)
                if broken is not None:
                    BROKEN.mkdir(exist_ok=True)
                    told["file"] = f"{job['seed']}-{job['recording']}-{state.number}.pickle"
                    (BROKEN / told["file"]).write_bytes(pickle.dumps(state))
                    told |= {"what": broken.what, "detail": broken.detail}
                print(json.dumps(told | {"judged": True}), file=notes, flush=True)
        return {"done": True}

    return do


def notes_of(directory: Path, job: Job) -> Path:
    """Return the file of what a worker has judged of a recording."""
    return directory.with_name(f"recording {job['recording']}, {len(job['skip'])} left out")


def run(count: int, seed: int, *, states: int = STATES, first: int = 0) -> Row:
    """Judge `count` states at least, from recording `first` on."""
    row, kills, broken = Row("states that a power loss or a kill left", 0, 0), [0, 0], dict[str, list[str]]()
    jobs: list[Job] = [
        {"seed": seed, "recording": first + n, "states": states, "skip": list[int]()} for n in range(-(-count // states))
    ]
    with scratch() as base, Pool("soak.crashes", base, timeout=1800) as pool:
        while jobs:
            left = list[Job]()
            for job, answer in pool.do_all(jobs):
                file = notes_of(pool.directory / "worker", job)
                notes = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
                if "done" not in answer:
                    last: Answer = (
                        notes[-1] if notes and "judged" not in notes[-1] else {"state": -1, "how": "no crash", "killed": False}
                    )
                    notes.append(last | {"judged": True, "what": f"the process ends, or hangs: {answer}"})
                    skip = [note["state"] for note in notes if "judged" in note]
                    left += [job | {"skip": [*job["skip"], *skip]}] if last["state"] >= 0 else []
                for note in notes:
                    if "judged" in note:
                        row.done, row.broken = row.done + 1, row.broken + ("what" in note)
                        kills = [kills[0] + note["killed"], kills[1] + (note["killed"] and "what" in note)]
                    if "what" in note:
                        where = f"recording {job['recording']}, state {note['state']}: {note['how']}"
                        told = f"({where}): {note.get('detail', '')[:300]} {note.get('file', '')}"
                        broken.setdefault(note["what"], []).append(told)
            jobs = left
    row.notes = [f"{kills[0]:,} of the states are what a kill leaves, {kills[1]} of these broken"]
    row.notes += [
        f"{len(told)} times: {what} {told[0]}" for what, told in sorted(broken.items(), key=lambda one: -len(one[1]))[:SHOWN]
    ]
    return row


def main(scale: float = 1.0, *, seed: int = 0) -> Row:
    """Judge 20,000 states, times `scale`; those that are broken are kept in the directory `broken`."""
    return run(int(20_000 * scale), seed)
