"""Does the crash campaign notice? One protection at a time is taken away, and it must fail.

A protection is a sync, a checksum that is verified, or an order of two writes. Syncs are not listed by hand: a trace tells which
function of the library asked for each, of which kind of file, and a disk is built on which all syncs of one such place never
happened. Checksums are verified no longer while a crash is judged, orders are turned round while a workload is recorded.

What nothing fails without is either needless or not tested. `NEEDLESS` says which of these are known, and why.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import itertools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from unittest import mock

import numpy as np

from diskbuffer.errors import CorruptionError
from soak import crashes
from soak.judging import expect
from soak.table import Row
from soak.workers import Answer, Job, Pool, scratch
from tests.support.simulated_disk import Disk, Event, Kind, Sync, Tree, build
from tests.support.tracing import Trace
from tests.support.workloads import WORKLOADS, Recorded, Workload, record

PLACES = 6  # of one kind of sync in a recording, around which crashes are looked for
STATES = 20  # of a recording, in which a sync that is missing has changed what is left
VERIFIED = 40  # of a recording, to be judged with each checksum that is verified no longer
TURNED = 20  # moments of a recording between two writes whose order is turned round
CALLS = 25  # of a recording
AGAIN_CALLS = 12  # of a recording that goes on after a crash
KINDS: tuple[Kind, ...] = ("nothing", "data only", "metadata only", "random", "random")

# What the crash campaign does not notice, and why that is right.
NEEDLESS: dict[str, str] = {
    "create: directory a flat column": "It holds a zarr.json alone, which opening writes anew.",
    "create: directory a packed column": "It holds a zarr.json alone, which opening writes anew.",
}


@dataclass(frozen=True)
class Noticed:
    """A protection, and what failed without it; nothing, where `what` is empty."""

    name: str
    kind: Literal["sync", "checksum", "order"]
    workload: str = ""
    what: str = ""
    tried: int = 0


# Syncs


def kind_of(path: str) -> str:
    """Say of which kind a file or a directory below the traced one is."""
    inside = re.sub(r"^runs/(store|\.store\.[0-9a-z]+\.new)/?", "", path)
    if inside == path:
        return "a directory above the store"
    inside = re.sub(r"\.[0-9a-f]{8}\.tmp$|\.new\.tmp$|\.tmp$", "", inside)
    directory, _, name = inside.rpartition("/")
    if inside in ("", "."):
        return "the store's directory"
    if name.startswith("c."):
        return f"file of {_column(directory)}"
    if not name.endswith(".json"):
        return f"directory {_column(inside)}"
    return name if name != "zarr.json" else "zarr.json of " + ("a column" if directory else "the group")


_COLUMNS = {
    "_segments/length": "the lengths",
    "_segments/checksum": "checksums of files",
    "_segments": "the segment table",
    "_tail": "the tail",
    **dict.fromkeys(("obs", "depth"), "a packed column"),
    **dict.fromkeys(("value", "tag"), "a derived column"),
}


def _column(directory: str) -> str:
    return next((kind for above, kind in _COLUMNS.items() if f"{directory}/".startswith(f"{above}/")), "a flat column")


def syncs_of(recording: Recorded) -> dict[str, list[int]]:
    """Return where in a trace each kind of sync is, by its name."""
    found: dict[str, list[int]] = {}
    for n, event in enumerate(recording.events):
        if isinstance(event, Sync) and event.by:
            found.setdefault(f"{event.by}: {kind_of(recording.trace.path(event.number))}", []).append(n)
    return found


def states_without(
    recording: Recorded, syncs: list[int], boot: int, rng: np.random.Generator
) -> Iterator[tuple[crashes.State, Tree]]:
    """Yield what power losses leave where some syncs never happened, and did change something; and what they leave with them."""
    missing, with_, without = set(syncs), recording.disk(), recording.disk()
    applied = found = 0
    for point in _points(recording, syncs, rng):
        for n in range(applied, point):
            event: Event = recording.events[n]
            with_.apply(event)
            if n not in missing:
                without.apply(event)
        applied = point
        if _same(with_, without):
            continue
        for kind in KINDS:
            luck = int(rng.integers(2**31))
            tree, control = (disk.crash(kind, np.random.default_rng(luck)) for disk in (without, with_))
            if tree == control:
                continue
            found += 1
            expected = expect(recording, point, killed=False)
            how = f"{kind}; {expected.before}; event {point}"
            yield crashes.State(found, tree, expected, boot, found % 4 == 3, found % 2 == 0, how), control
            if found == STATES:
                return


def _same(with_: Disk, without: Disk) -> bool:
    nobody = np.random.default_rng(0)
    return with_.crash("nothing", nobody) == without.crash("nothing", nobody)


def _points(recording: Recorded, syncs: list[int], rng: np.random.Generator) -> list[int]:
    """Choose moments at which such a sync may be missed: after the call that made it, when something was promised, above all."""
    ends, found, last = np.array([moment.events for moment in recording.moments]), set[int](), len(recording.events)
    flushed = np.array([moment.events for moment in recording.moments if moment.flushed is not None])
    for at in rng.permutation(syncs)[:PLACES].tolist():
        found |= {at + 1, int(rng.integers(at + 1, min(at + 60, last) + 1)), *ends[ends > at][:2].tolist()}
        found |= set(flushed[flushed > at][:1].tolist())
    return sorted(point for point in found if point <= last)


# Checksums


@contextlib.contextmanager
def replaced(name: str, function: Callable[..., Any]) -> Iterator[None]:
    """Have ``module:Class.function`` below `diskbuffer.store` be replaced by a function that gets it as its first argument."""
    module, _, path = name.partition(":")
    *parents, last = path.split(".")
    owner: Any = importlib.import_module(f"diskbuffer.store.{module}")
    for parent in parents:
        owner = getattr(owner, parent)
    real = getattr(owner, last)
    call: Any = lambda *args, **keywords: function(real, *args, **keywords)  # noqa: E731
    with mock.patch.object(owner, last, staticmethod(call) if isinstance(vars(owner)[last], staticmethod) else call):
        yield


CHECKSUMS: dict[str, tuple[str, Callable[..., Any]]] = {
    "of rows": ("recovery.inspection:Inspected.verified", lambda real, *of, **how: np.ones_like(real(*of, **how))),
    "of chunks, when a store is recovered": ("format.chunks:decode_entry", lambda real, *of: real(*of) and 0),
    "of the lengths of segments": (
        "segments.table:SegmentTable.used",
        lambda _, table: (table.column("length"), np.zeros(len(table.column("length")), np.bool_)),
    ),
    "of what is sealed": ("segments.table:SegmentTable.is_sealed", lambda _, table, slot: bool(table.get("sealed", slot))),
    "of files of sealed segments": ("verification:Verification.verify_file", lambda *_, **__: None),
    "of files when they are mapped": ("verification:Verification.check", lambda *_, **__: None),
    "of what came before a segment": (
        "segments.table:SegmentTable.before",
        lambda _, table, slot: (table.get("first_step", slot), table.get("episode_start", slot)),
    ),
    "of when a segment was complete": (
        "segments.table:SegmentTable.completed",
        lambda _, table, slot: int(table.get("completed", slot)),
    ),
    "the identity of a shard": ("recovery.inspection:Inspected._is_of_this_segment", lambda *_: True),
    "of derived columns": ("verification:Verification._check_derived", lambda *_, **__: None),
    "of the note of the last writer": ("last_writer:State._checksum", lambda *_: 1),
}


# Orders: of two writes the second comes first, and the moment between them is marked


def _between() -> None:
    if Trace.current is not None:
        Trace.current.mark()


def _in_place(_real: Callable[..., Any], files: Any, name: str, data: bytes, *, sync: bool = True) -> None:
    fd = files.create(name, len(data), reserve=False)
    _between()
    try:
        files.pwrite(fd, data, 0)
    finally:
        files.close(fd)
    if sync:
        files.sync(name)


def _removed_first(real: Callable[..., Any], store: Any, slot: int) -> None:
    store.remove_files(slot)
    _between()
    real(store, slot)


def _entry_first(real: Callable[..., Any], shard: Any, *parts: Any) -> None:
    for part in reversed(parts):
        real(shard, part)
        _between()


ORDERS: dict[str, tuple[str, Callable[..., Any], tuple[str, ...]]] = {
    "small files are replaced, not overwritten": ("system.files:Files.replace_contents", _in_place, ("add", "derived")),
    "a segment is free before its files are removed": ("store:Store.evict", _removed_first, ("evict", "three")),
    "a chunk is written before its entry": ("segments.shard:LiveShard._write", _entry_first, ("add", "noisy")),
}


def states_between(recording: Recorded, rng: np.random.Generator) -> Iterator[tuple[crashes.State, Tree]]:
    """Yield what kills and power losses leave at the moments that were marked."""
    for n, point, disk in crashes.walked(recording, sorted(rng.permutation(recording.trace.marked)[:TURNED].tolist())):
        for killed in (True, False):
            expected = expect(recording, point, killed=killed)
            tree = disk.crash("everything" if killed or n % 2 else "random", rng)
            how = f"{'a kill' if killed else 'a power loss'}; {expected.before}; event {point}"
            yield crashes.State(n, tree, expected, 1 if killed else 2, n % 4 == 3, n % 2 == 0, how), {}


# One after the other


def recordings(workload: Workload, seed: int) -> Iterator[tuple[Recorded, int]]:
    """Yield a workload's trace, then those of what goes on after a power loss, and after a kill; and the boot after each."""
    with scratch() as base:
        first = record(workload, seed, base)
    yield first, 2
    for killed in (False, True):
        rng = np.random.default_rng([seed, killed])
        looks = [n for n in first.trace.looks if n > len(first.events) // 3]
        _, point, disk = next(crashes.walked(first, [int(rng.choice(looks))]))
        expected = expect(first, point, killed=killed)
        boot = 1 if killed else 2
        tree = disk.crash("everything" if killed else "random", rng)
        state = crashes.State(0, tree, expected, boot, False, False, "")
        if crashes.judged(state) is not None:  # which another campaign tells
            continue
        resumed = crashes.resumed(expected, boot, disk if killed else None)
        again = dataclasses.replace(workload, calls=AGAIN_CALLS)
        with scratch() as base:
            build(tree, base)
            yield record(again, seed + 1, base, resumed), boot + 1


def notice_syncs(workload: Workload, seed: int, found: dict[str, Noticed]) -> None:
    """Find syncs without which a workload's crashes break a promise; those that were found already are left out."""
    for recording, boot in recordings(workload, seed):
        for name, syncs in syncs_of(recording).items():
            before = found.get(name, Noticed(name, "sync"))
            if not before.what:
                rng = np.random.default_rng([seed, len(name)])
                found[name] = _first_broken(before, workload, states_without(recording, syncs, boot, rng))


def _first_broken(
    before: Noticed, workload: Workload, states: Iterator[tuple[crashes.State, Tree]], *, control: bool = True
) -> Noticed:
    tried = before.tried
    for state, tree in states:
        tried += 1
        broken = crashes.judged(state)
        if broken is not None and (not control or crashes.judged(dataclasses.replace(state, tree=tree)) is None):
            return dataclasses.replace(before, workload=workload.name, what=broken.what, tried=tried)
    return dataclasses.replace(before, tried=tried)


def notice_checksums(workload: Workload, seed: int, found: dict[str, Noticed], names: list[str]) -> None:
    """Find checksums without which a workload's crashes break a promise."""
    with scratch() as base:
        recording = record(workload, seed, base)
    for state in crashes.states_of(seed, 0, recording, VERIFIED):
        for name in names:
            before = found.get(name, Noticed(name, "checksum"))
            if before.what:
                continue
            with replaced(*CHECKSUMS[name]):
                broken = crashes.judged(state)
            what = "" if broken is None or crashes.judged(state) is not None else broken.what
            found[name] = dataclasses.replace(before, workload=workload.name if what else "", what=what, tried=before.tried + 1)


def notice_order(name: str, workload: Workload, seed: int, found: dict[str, Noticed]) -> None:
    """Find out whether an order that is turned round breaks a promise."""
    function, replacement, _ = ORDERS[name]
    before = found.get(name, Noticed(name, "order"))
    if before.what:
        return
    try:
        with replaced(function, replacement), scratch() as base:
            recording = record(workload, seed, base)
            states = states_between(recording, np.random.default_rng([seed, len(name)]))
            found[name] = _first_broken(before, workload, states, control=False)
    except CorruptionError as error:
        found[name] = dataclasses.replace(before, workload=workload.name, what=f"while it ran: {error}"[:160])


def child(_: Path) -> Callable[[Job], Answer]:
    """Return what takes protections away, those that are `known` to be noticed left out."""

    def do(job: Job) -> Answer:
        known = {name: Noticed(name, "sync", what="known") for name in job["known"]}
        (what, name, seed), found = job["task"], dict[str, Noticed](known)
        workload = dataclasses.replace(next(one for one in WORKLOADS if one.name == name), calls=CALLS)
        if what == "syncs":
            notice_syncs(workload, seed, found)
        elif what == "checksums":
            notice_checksums(workload, seed, found, list(CHECKSUMS))
        else:
            notice_order(what, workload, seed, found)
        return {"found": [dataclasses.asdict(one) for name, one in found.items() if name not in known]}

    return do


def tasks(seed: int, rounds: int) -> Iterator[tuple[str, str, int]]:
    """Yield what there is to do: which protections, with which workload, with which seed."""
    for n in range(rounds):
        for name, (_, _, workloads) in ORDERS.items():
            yield from ((name, workload, seed + n) for workload in workloads)
        for what, workload in itertools.product(("syncs", "checksums"), WORKLOADS):
            if not workload.concurrent and not workload.faults:  # whose trace depends on more than its seed
                yield what, workload.name, seed + n


def run(seed: int, rounds: int = 1, seconds: float | None = None) -> tuple[list[Noticed], list[str]]:
    """Take every protection away in turn; return what noticed, and which tasks failed."""
    found, failed = dict[str, Noticed](), list[str]()
    jobs = ({"task": task, "known": [name for name, one in list(found.items()) if one.what]} for task in tasks(seed, rounds))
    with scratch() as base, Pool("soak.noticing", base, timeout=7200) as pool:
        for job, answer in pool.do_all(jobs, seconds):
            failed += [] if "found" in answer else [f"{job['task']}: {answer}"]
            for one in (Noticed(**told) for told in answer.get("found", [])):
                before = found.get(one.name, Noticed(one.name, one.kind))
                found[one.name] = dataclasses.replace(before if before.what else one, tried=before.tried + one.tried)
    return sorted(found.values(), key=lambda one: (one.kind, not one.what, one.name)), failed


def table(found: list[Noticed]) -> list[str]:
    """Return lines that tell of every protection by what it was noticed."""
    lines = []
    for one in found:
        by = f"{one.workload}: {one.what}" if one.what else f"NOT NOTICED. {_why(one)}".strip()
        lines.append(f"{one.kind:<9} {one.name:<84} {one.tried:>5} states  {by}")
    return lines


def _why(one: Noticed) -> str:
    """Say why it is right that nothing fails without a protection; nothing, where it is not known to be."""
    if one.kind == "sync" and not one.tried:
        return "No crash leaves anything else without it: another sync does the same before anything depends on it."
    return NEEDLESS.get(one.name, "")


def main(scale: float = 1.0, *, seed: int = 0) -> Row:
    """Take every protection away in turn, with one seed of every workload; with a smaller scale for fewer minutes."""
    found, failed = run(seed, max(1, round(scale)), None if scale >= 1 else 3600 * scale)
    missed, notes = [one for one in found if not one.what and not _why(one)], [*table(found), *failed]
    if scale < 1:
        missed, notes = [], [*notes, "a short run: what was not noticed counts for nothing"]
    title = "protections of which the crash campaign notices that they are gone"
    return Row(title, len(found), len(missed) + len(failed), notes)
