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
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from unittest import mock

import numpy as np

from diskbuffer.errors import CorruptionError
from soak import crashes
from soak.crashes import State
from soak.table import Row
from soak.workers import Answer, Job, Pool, scratch
from tests.support.simulated_disk import Disk, Kind, Sync, Tree
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


Found = dict[str, Noticed]


def _first_broken(
    before: Noticed, states: Iterable[tuple[State, State | None]], *without: tuple[str, Callable[..., Any]]
) -> Noticed:
    """Judge states, functions replaced meanwhile, until one is broken whose control, judged as ever, is not."""
    tried = before.tried
    for state, control in states:
        tried += 1
        with contextlib.ExitStack() as stack:
            for name, function in without:
                stack.enter_context(replaced(name, function))
            broken = crashes.judged(state)
        if broken is not None and (control is None or crashes.judged(control) is None):
            return dataclasses.replace(before, workload=state.expected.workload.name, what=broken.what, tried=tried)
    return dataclasses.replace(before, tried=tried)


# Syncs


def kind_of(path: str) -> str:
    """Say of which kind a file or a directory below the traced one is."""
    inside = re.sub(r"^runs/(store|\.store\.[0-9a-z]+\.new)/?", "", path)
    if inside == path:
        return "a directory above the store"
    inside = re.sub(r"\.[0-9a-f]{8}(\.old)?\.tmp$|\.new\.tmp$|\.tmp$", "", inside)
    directory, _, name = inside.rpartition("/")
    if inside in ("", "."):
        return "the store's directory"
    if name.startswith("c."):
        return f"file of {_column(directory)}"
    if name.startswith("tail."):
        return "a copy of the tail"
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


def states_without(recording: Recorded, syncs: list[int], boot: int, rng: np.random.Generator) -> Iterator[tuple[State, State]]:
    """Yield what power losses leave where some syncs never happened, and did change something; and what they leave with them."""
    missing, with_, without = set(syncs), recording.disk(), recording.disk()
    applied = found = 0
    for point in _points(recording, syncs, rng):
        for n, event in enumerate(recording.events[applied:point], applied):
            with_.apply(event)
            if n not in missing:
                without.apply(event)
        applied = point
        if _synced(with_) == _synced(without):
            continue
        for kind in KINDS:
            luck = int(rng.integers(2**31))
            state, control = (
                crashes.left_by(recording, found + 1, point, disk, kind, np.random.default_rng(luck), boot=boot)
                for disk in (without, with_)
            )
            if state.tree == control.tree:
                continue
            found += 1
            yield state, control
            if found == STATES:
                return


def _synced(disk: Disk) -> Tree:
    return disk.crash("nothing", np.random.default_rng(0))


def _points(recording: Recorded, syncs: list[int], rng: np.random.Generator) -> list[int]:
    """Choose moments at which such a sync may be missed: after the call that made it, when something was promised, above all."""
    ends, found, last = np.array([moment.events for moment in recording.moments]), set[int](), len(recording.events)
    flushed = np.array([moment.events for moment in recording.moments if moment.flushed is not None])
    for at in rng.permutation(syncs)[:PLACES].tolist():
        found |= {at + 1, int(rng.integers(at + 1, min(at + 60, last) + 1)), *ends[ends > at][:2].tolist()}
        found |= set(flushed[flushed > at][:1].tolist())
    return sorted(point for point in found if point <= last)


def recordings(workload: Workload, seed: int) -> Iterator[tuple[Recorded, int]]:
    """Yield a workload's trace, then those of what goes on after a power loss, and after a kill; and the boot of each."""
    with scratch() as base:
        first = record(workload, seed, base)
    yield first, 1
    for killed in (False, True):
        rng = np.random.default_rng([seed, killed])
        looks = [n for n in first.trace.looks if n > len(first.events) // 3]
        _, point, disk = next(crashes.walked(first, [int(rng.choice(looks))]))
        state = crashes.left_by(first, 1, point, disk, "everything" if killed else "random", rng, killed=killed)
        state = dataclasses.replace(state, thorough=False, disk=disk if killed else None)
        if crashes.judged(state) is None:  # or another campaign tells
            yield crashes.gone_on(state, AGAIN_CALLS, seed + 1), state.boot


def notice_syncs(workload: Workload, seed: int, found: Found) -> None:
    """Find syncs without which a workload's crashes break a promise; those that were found already are left out."""
    for recording, boot in recordings(workload, seed):
        for name, syncs in syncs_of(recording).items():
            before = found.get(name, Noticed(name, "sync"))
            if not before.what:
                rng = np.random.default_rng([seed, len(name)])
                found[name] = _first_broken(before, states_without(recording, syncs, boot, rng))


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


def notice_checksums(workload: Workload, seed: int, found: Found) -> None:
    """Find checksums without which a workload's crashes break a promise."""
    with scratch() as base:
        recording = record(workload, seed, base)
    states = [(state, state) for state in crashes.states_of(seed, 0, recording, VERIFIED)]
    for name, without in CHECKSUMS.items():
        before = found.get(name, Noticed(name, "checksum"))
        if not before.what:
            found[name] = _first_broken(before, states, without)


def notice_order(name: str, workload: Workload, seed: int, found: Found) -> None:
    """Find out whether an order that is turned round breaks a promise."""
    before, (function, replacement, _) = found.get(name, Noticed(name, "order")), ORDERS[name]
    if before.what:
        return
    try:
        with replaced(function, replacement), scratch() as base:
            recording = record(workload, seed, base)
            found[name] = _first_broken(before, _states_between(recording, np.random.default_rng([seed, len(name)])))
    except CorruptionError as error:
        found[name] = dataclasses.replace(before, workload=workload.name, what=f"while it ran: {error}"[:160])


def _states_between(recording: Recorded, rng: np.random.Generator) -> Iterator[tuple[State, None]]:
    """Yield what kills and power losses leave at the moments that were marked."""
    for n, point, disk in crashes.walked(recording, sorted(rng.permutation(recording.trace.marked)[:TURNED].tolist())):
        for killed in (True, False):
            kind: Kind = "everything" if killed or n % 2 else "random"
            yield crashes.left_by(recording, n, point, disk, kind, rng, killed=killed), None


# The campaign


def child(_: Path) -> Callable[[Job], Answer]:
    """Return what takes protections away, those that are `known` to be noticed left out."""

    def do(job: Job) -> Answer:
        found: Found = {name: Noticed(name, "sync", what="known") for name in job["known"]}
        what, name, seed = job["task"]
        workload = dataclasses.replace(next(one for one in WORKLOADS if one.name == name), calls=CALLS)
        if what == "syncs":
            notice_syncs(workload, seed, found)
        elif what == "checksums":
            notice_checksums(workload, seed, found)
        else:
            notice_order(what, workload, seed, found)
        return {"found": [dataclasses.asdict(one) for name, one in found.items() if name not in job["known"]]}

    return do


def tasks(seed: int, rounds: int) -> Iterator[tuple[str, str, int]]:
    """Yield what there is to do: which protections, with which workload, with which seed."""
    repeatable = [one.name for one in WORKLOADS if not one.concurrent and not one.faults]  # whose trace depends on the seed alone
    for n in range(seed, seed + rounds):
        yield from ((name, workload, n) for name, (_, _, workloads) in ORDERS.items() for workload in workloads)
        yield from ((what, workload, n) for what, workload in itertools.product(("syncs", "checksums"), repeatable))


def _told(one: Noticed) -> str:
    by = f"{one.workload}: {one.what}" if one.what else f"NOT NOTICED. {_why(one)}".strip()
    return f"{one.kind:<9} {one.name:<84} {one.tried:>5} states  {by}"


def _why(one: Noticed) -> str:
    """Say why it is right that nothing fails without a protection; nothing, where it is not known to be."""
    if one.kind == "sync" and not one.tried:
        return "No crash leaves anything else without it: another sync does the same before anything depends on it."
    return NEEDLESS.get(one.name, "")


def main(scale: float = 1.0, *, seed: int = 0) -> Row:
    """Take every protection away in turn, with one seed of every workload; with a smaller scale for fewer minutes."""
    found, failed = Found(), list[str]()
    every = tasks(seed, max(1, round(scale)))
    jobs = ({"task": task, "known": [name for name, one in list(found.items()) if one.what]} for task in every)
    with scratch() as base, Pool("soak.noticing", base, timeout=7200) as pool:
        for job, answer in pool.do_all(jobs, None if scale >= 1 else 3600 * scale):
            failed += [] if "found" in answer else [f"{job['task']}: {answer}"]
            for one in (Noticed(**told) for told in answer.get("found", [])):
                before = found.get(one.name, Noticed(one.name, one.kind))
                found[one.name] = dataclasses.replace(before if before.what else one, tried=before.tried + one.tried)
    row = Row("protections of which the crash campaign notices that they are gone", len(found), len(failed))
    row.notes = [_told(one) for one in sorted(found.values(), key=lambda one: (one.kind, not one.what, one.name))] + failed
    if scale < 1:
        row.notes.append("a short run: what was not noticed counts for nothing")
    else:
        row.broken += sum(not one.what and not _why(one) for one in found.values())
    return row
