"""The simulated disk, the trace of file operations, and some hundred crashes."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import itertools
import mmap
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import diskbuffer as db
from diskbuffer.store.system.files import Files
from soak import crashes
from soak.workers import scratch
from tests.support.simulated_disk import Contents, Disk, FailedSync, Kind, Names, Size, Sync, Tree, Write, build
from tests.support.tracing import IGNORED, Fault, Trace
from tests.support.workloads import WORKLOADS, Gate, boot, record

ALL: tuple[Kind, ...] = ("nothing", "everything", "data only", "metadata only", *(("random",) * 60))


Pair = tuple[bytes, bytes]


def differences(tree: Tree, base: Path) -> list[str]:
    """Return the paths that are not the same in a tree and below a directory."""
    paths = [path for path in base.rglob("*") if path.name not in IGNORED]
    found = {str(path.relative_to(base)): None if path.is_dir() else path.read_bytes() for path in paths}
    expected = {path: None if contents is None else contents.whole() for path, contents in tree.items()}
    return sorted(path for path in found.keys() | expected.keys() if found.get(path, b"?") != expected.get(path, b"?"))


def left_by(tmp_path: Path, *, sync_data: bool, sync_name: bool) -> set[bytes]:
    """Return what crashes leave of a file that is replaced, after which another is made, of which a process tells."""
    (tmp_path / "file").write_bytes(b"old" * 1000)
    with Trace(tmp_path) as trace:
        files = Files(tmp_path)
        fd = files.create("new", 3000, reserve=False)
        files.pwrite(fd, b"new" * 1000, 0)
        files.close(fd)
        if sync_data:
            files.sync("new")
        files.rename("new", "file")
        if sync_name:
            files.sync(".")
        replaced = trace.look("replaced")
    disk, rng, found = trace.disk(replaced), np.random.default_rng(0), set[bytes]()
    for kind in ALL:
        contents = disk.crash(kind, rng)["file"]
        assert contents is not None
        found.add(contents.whole())
    return found


def test_a_replaced_file_is_old_or_new_only_if_it_was_synced_before(tmp_path: Path) -> None:
    old, new = b"old" * 1000, b"new" * 1000
    first, second, third = (tmp_path / name for name in "abc")
    for directory in (first, second, third):
        directory.mkdir()
    assert left_by(first, sync_data=True, sync_name=True) == {new}
    assert left_by(second, sync_data=True, sync_name=False) == {old, new}
    torn = left_by(third, sync_data=False, sync_name=True)
    assert b"" in torn
    assert len(torn) > 10
    assert old not in torn


def test_stores_through_maps_are_seen_and_lost_until_they_are_synced(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(4096))
    fd = os.open(tmp_path / "file", os.O_RDWR)
    with mmap.mmap(fd, 4096) as mapped, Trace(tmp_path) as trace:
        mapped[0:8] = b"11111111"
        mapped[512:520] = b"22222222"
        first = trace.look("stored")
        os.fsync(fd)
        mapped[0:8] = b"33333333"
        trace.look("stored again")
    os.close(fd)
    disk, rng, before, after = trace.disk(), np.random.default_rng(0), set[Pair](), set[Pair]()
    for n, event in enumerate(trace.events):
        disk.apply(event)
        for _ in range(50):
            contents = disk.crash("random", rng)["file"]
            assert contents is not None
            whole = contents.whole()
            (before if n < first else after).add((whole[:8], whole[512:520]))
    zeros = bytes(8)
    assert before == {(a, b) for a in (zeros, b"1" * 8) for b in (zeros, b"2" * 8)}  # in any order
    assert after == {(b"1" * 8, b"2" * 8), (b"3" * 8, b"2" * 8)}


def test_names_come_in_the_order_of_a_directory_and_directories_on_their_own() -> None:
    disk, rng = Disk(0), np.random.default_rng(0)
    disk.apply(Names(0, (("a", 1, True), ("b", 2, True)), ""))
    disk.apply(Sync(0, ""))
    for directory in (1, 2):
        for n in range(3):
            disk.apply(Names(directory, ((str(n), 10 * directory + n, False),), ""))
    found = {tuple(sorted(path for path in disk.crash("random", rng) if "/" in path)) for _ in range(500)}
    expected = {
        tuple(sorted([*(f"a/{n}" for n in range(first)), *(f"b/{n}" for n in range(second))]))
        for first in range(4)
        for second in range(4)
    }
    assert found == expected


def test_words_of_a_sector_may_be_old_or_new_and_are_never_torn() -> None:
    disk, rng = Disk(0), np.random.default_rng(0)
    disk.apply(Names(0, (("file", 1, False),), ""))
    disk.apply(Write(1, {0: b"\1" * 512}, ""))
    disk.sync_all()
    disk.apply(Write(1, {0: b"\2" * 512}, ""))
    mixed = set()
    for _ in range(300):
        contents = disk.crash("random", rng)["file"]
        assert isinstance(contents, Contents)
        words = np.frombuffer(contents.sectors[0], np.uint64)
        assert set(words.tolist()) <= {0x0101010101010101, 0x0202020202020202}
        mixed.add(len(set(words.tolist())))
    assert mixed == {1, 2}


@pytest.mark.some(1)
@pytest.mark.parametrize("number", [2, 4])
def test_a_trace_tells_everything_and_depends_on_its_seed_alone(number: int, tmp_path: Path) -> None:
    told = []
    for name in ("first", "second"):
        base = tmp_path / name
        base.mkdir()
        found = record(dataclasses.replace(WORKLOADS[number], calls=20), 3, base)
        disk = found.disk()
        for event in found.events:
            disk.apply(event)
        tree = disk.crash("everything", np.random.default_rng(0))
        assert differences(tree, base) == []
        (tmp_path / f"{name} again").mkdir()
        build(tree, tmp_path / f"{name} again")
        assert differences(tree, tmp_path / f"{name} again") == []
        told.append([moment.events for moment in found.moments])
    assert told[0] == told[1]


@pytest.mark.nightly
def test_syncs_that_do_nothing_are_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Files, "sync", lambda self, name: None)
    broken = [broken for broken in map(crashes.judged, some(lambda state: True, recording=3, count=30)) if broken is not None]
    assert broken


@pytest.mark.nightly
@pytest.mark.parametrize("recording", [1, 3, 4])
def test_kills_lose_nothing(recording: int) -> None:
    killed = list(some(lambda state: state.expected.killed, recording, count=160))
    assert len(killed) >= 10
    for state in killed:
        broken = crashes.judged(state)
        assert broken is None, f"seed 0, recording {recording}, state {state.number}: {state.how}: {broken}"


def some(choose: Callable[[crashes.State], bool], recording: int, count: int) -> Iterator[crashes.State]:
    return filter(choose, crashes.states_of(0, recording, crashes.recorded(0, recording), count))


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("seed", "recording", "number", "workload"),
    [
        (0, 5, 221, "grow"),
        (11, 1, 4, "three"),
        (0, 69, 60, "background"),
        (0, 10, 212, "views"),
        (0, 26, 242, "noisy views"),
        (3, 0, 89, "lossy views"),
    ],
)
def test_what_was_broken_once_is_not_again(seed: int, recording: int, number: int, workload: str) -> None:
    """Judge states that were found to be broken.

    11, 1, 4: of chunks that were not synced, a later one was there and an earlier one only in the tail.
    0, 69, 60: the newest row of a flush, at which nothing had been done, was taken for a step as the row behind it was there.
    0, 10, 212: a segment that a power loss took rows of was still noted as complete, and so evicted too early.
    0, 5, 221: a directory above the store was made by a process that was killed, and not synced by the next one.
    3, 0, 89: a kill came while a picture went back to the tail, and neither of its two checksums was looked for.
    0, 26, 242: what a killed process had tagged in a sealed segment was not synced by the flush of the next one.
    """
    count = 100 if workload.startswith("lossy") else crashes.STATES
    states = crashes.states_of(seed, recording, crashes.recorded(seed, recording, workload), count)
    state = next(state for state in states if state.number == number)
    assert crashes.judged(state) is None


def test_a_map_that_a_power_loss_interrupted_is_resumed_where_values_are_on_the_disk(
    monkeypatch: pytest.MonkeyPatch, amount: Callable[[int, int], int]
) -> None:
    """What is resumed has the values of every step: of those, too, that were not flushed when the map began."""
    monkeypatch.setattr("diskbuffer.columns.map_steps._NOTED_EVERY", 0.0)
    monkeypatch.setattr("diskbuffer.columns.map_steps._SHARE", float("inf"))
    columns = {"obs": db.Column((), "int64"), "action": db.Column((), "int64")}

    def extend(buffer: db.ReplayBuffer, first: int, steps: int) -> None:
        obs = np.arange(first, first + steps + 1)
        buffer.extend(obs=obs[:-1], next_obs=obs[1:], action=np.zeros(steps, int), reward=np.ones(steps))

    def function(which: int, batches: int = 1000) -> Callable[[db.Batch], object]:
        left = [batches]

        def call(batch: db.Batch) -> object:
            if left[0] == batches:
                begun.append(trace.look("a map has begun"))
            left[0] -= 1
            if left[0] < 0:
                raise KeyboardInterrupt
            return batch["obs"].float() * 2 + which

        return call

    begun = list[int]()
    with scratch() as base, boot(1), Trace(base) as trace, Gate(free=False):
        buffer = db.ReplayBuffer(base / "store", columns=columns, segment_rows=16, threads=1)
        extend(buffer, 0, 40)
        buffer.flush()
        extend(buffer, 40, 40)
        for which in (1, 2):
            with pytest.raises(KeyboardInterrupt):
                buffer.columns.map(function(which, 7), 8, "value", progress=False, threads=1)
        events = trace.events[: trace.look("the end")]
        disk, applied, rng, resumed = trace.disk(), 0, np.random.default_rng(0), 0
        moments = sorted(int(n) for n in rng.integers(begun[0] + 1, len(events), amount(10, 100)))
        buffer.close()
    for n, moment in enumerate(moments):
        for event in events[applied:moment]:
            disk.apply(event)
        applied, which = moment, 2 if moment >= begun[1] else 1
        with scratch() as place, boot(2), Gate(free=False):
            build(disk.crash("random" if n % 4 else "metadata only", rng), place)
            buffer = db.ReplayBuffer(place / "store", threads=1)
            assert len(buffer) >= 40
            extend(buffer, 1000, 80 - len(buffer))
            buffer.flush()
            mapped = buffer.columns.map(function(which), 8, "value", resume=True, progress=False, threads=1)
            resumed += mapped < 80
            batch = buffer.at(buffer.steps())
            np.testing.assert_array_equal(batch["value"], batch["obs"] * 2 + which, err_msg=f"state {n}, event {moment}")
            buffer.close()
    assert resumed > len(moments) // 5


@pytest.mark.some(1)
@pytest.mark.parametrize("recording", [3, 4])
def test_power_losses_lose_nothing_that_was_flushed(recording: int, amount: Callable[[int, int], int]) -> None:
    for state in some(lambda state: True, recording, count=amount(3, 80)):
        broken = crashes.judged(state)
        assert broken is None, f"seed 0, recording {recording}, state {state.number}: {state.how}: {broken}"


@pytest.mark.nightly
def test_power_losses_judged_by_several_processes_lose_nothing_that_was_flushed() -> None:
    count = 60
    row = crashes.run(count, seed=0, states=count // 2, first=5)
    assert row.done >= count // 2
    assert not row.broken, str(row)


# Faults, and then a power loss


def test_what_a_failed_sync_dropped_is_not_written_by_the_next_one() -> None:
    disk, rng = Disk(0), np.random.default_rng(0)

    def left() -> set[tuple[bytes, bytes]]:
        found = set()
        for _ in range(400):
            contents = disk.crash("random", rng)["file"]
            assert contents is not None
            whole = contents.whole()
            found.add((whole[:1], whole[4096:4097]))
        return found

    disk.apply(Names(0, (("file", 1, False),), ""))
    disk.apply(Size(1, 8192, ""))
    disk.sync_all()
    disk.apply(Write(1, {0: b"1" * 512, 8: b"1" * 512}, ""))
    disk.apply(FailedSync(1, ""))
    disk.apply(Sync(1, ""))
    anything = {(a, b) for a in (b"\0", b"1") for b in (b"\0", b"1")}
    assert left() == anything
    disk.apply(Write(1, {3: b"2" * 512}, ""))  # in the page of the first
    assert left() == anything
    disk.apply(Sync(1, ""))
    assert left() == {(b"1", b"\0"), (b"1", b"1")}


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["faults", "faults in a ring", "lossy faults"])
def test_power_losses_after_faults_lose_nothing_that_was_flushed(name: str) -> None:
    workload = dataclasses.replace(next(one for one in WORKLOADS if one.name == name), calls=12, faults=0.5)
    with scratch() as base:
        recording = record(workload, 1, base)
    for state in crashes.states_of(0, 0, recording, 12):
        broken = crashes.judged(state)
        assert broken is None, f"state {state.number}: {state.how}: {broken}"


COLUMNS = {"obs": db.Column((), "int64"), "action": db.Column((), "int64")}


def extended(buffer: db.ReplayBuffer, first: int, steps: int) -> None:
    obs = np.arange(first, first + steps + 1)
    buffer.extend(obs=obs[:-1], next_obs=obs[1:], action=np.zeros(steps, int), reward=np.ones(steps))


def test_a_flush_after_a_sync_that_failed_unseen_raises_until_the_store_is_opened_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, fails = os.fsync, True

    def fsync(fd: int) -> None:
        nonlocal fails
        if fails and os.readlink(f"/proc/self/fd/{fd}").endswith("/store/action/c.0"):  # by the thread that seals
            fails = False
            raise OSError(errno.EIO, "Input/output error")
        real(fd)

    monkeypatch.setattr(os, "fsync", fsync)
    buffer = db.ReplayBuffer(tmp_path / "store", columns=COLUMNS, segment_rows=16, threads=1)
    extended(buffer, 0, 20)
    with pytest.raises(OSError, match=r"Input/output error|an earlier sync"):  # the thread may have tried again by then
        buffer.flush(recompress=True)
    for _ in range(3):
        with pytest.raises(OSError, match="an earlier sync of this file failed; open the store again"):
            buffer.flush()
    extended(buffer, 20, 5)
    assert len(buffer) == 25
    with pytest.raises(OSError, match="an earlier sync"):
        buffer.close()
    with db.ReplayBuffer(tmp_path / "store", threads=1) as buffer:
        assert len(buffer) == 25
        buffer.flush()
        assert buffer.check(progress=False).ok


def test_a_file_in_the_place_of_one_whose_sync_failed_can_be_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files, real, left = Files(tmp_path), os.fsync, [1]

    def fsync(fd: int) -> None:
        if left:
            left.pop()
            raise OSError(errno.ENOSPC, "No space left on device")
        real(fd)

    monkeypatch.setattr(os, "fsync", fsync)
    files.close(files.create("file", 100, reserve=True))
    with pytest.raises(OSError, match="the disk is full"):
        files.sync("file")
    with pytest.raises(OSError, match="an earlier sync"):
        files.sync("file")
    for _ in range(20):  # whatever number it is given
        files.close(files.create("file", 100, reserve=True))
        files.sync("file")


def test_what_gets_the_number_of_a_file_whose_sync_failed_can_be_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system gives the number of a file that was removed to the next that is made, whatever that is."""
    files, other, fails = Files(tmp_path / "one"), Files(tmp_path / "other"), True
    real_stat, real_lstat, real_sync, by_path = os.fstat, os.lstat, os.fsync, os.stat

    def numbered(status: os.stat_result) -> os.stat_result:
        return os.stat_result((status[0], 7, *status[2:]))

    def fsync(fd: int) -> None:
        if fails:
            raise OSError(errno.EIO, "Input/output error")
        real_sync(fd)

    for each in (files, other):
        each.make_directory(".")
    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "fstat", lambda fd: numbered(real_stat(fd)))
    monkeypatch.setattr(os, "stat", lambda *args, **keywords: numbered(by_path(*args, **keywords)))
    monkeypatch.setattr(os, "lstat", lambda *args, **keywords: numbered(real_lstat(*args, **keywords)))
    other.close(other.create("file", 10, reserve=False))
    made: tuple[tuple[str, Callable[[], object]], ...] = (
        ("directory", lambda: files.make_directory("directory")),
        ("directory/file", lambda: files.below("directory").replace("file", 1, b"x")),
        ("directory/again", lambda: files.below("directory").copy(other, "file", "again", reserve=False)),
        ("linked", lambda: files.link(other, "file", "linked")),
    )
    for name, make in made:
        fails = True
        files.close(files.create("failed", 10, reserve=False))
        with pytest.raises(OSError, match="Input/output error"):
            files.sync("failed")
        fails = False
        with pytest.raises(OSError, match="an earlier sync"):
            files.sync("failed")
        files.remove("failed")
        make()
        files.sync(name)


def test_what_cannot_be_brought_to_the_disk_keeps_nobody_from_adding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    frames, columns = np.zeros((1000, 40, 40), np.uint8), {"obs": db.Column((40, 40), "uint8"), "action": db.Column((), "int64")}
    frames[:, 0, 0], frames[:, 0, 1] = np.arange(1000) % 256, np.arange(1000) // 256
    real, failing = os.fsync, False

    def fsync(fd: int) -> None:
        if failing and "/store/obs/c." in os.readlink(f"/proc/self/fd/{fd}"):
            raise OSError(errno.EIO, "Input/output error")
        real(fd)

    def add(buffer: db.ReplayBuffer, first: int, steps: int) -> None:
        obs, next_obs = frames[first : first + steps], frames[first + 1 : first + steps + 1]
        buffer.extend(obs=obs, action=np.zeros(steps, int), reward=np.zeros(steps), next_obs=next_obs)

    monkeypatch.setattr(os, "fsync", fsync)
    buffer = db.ReplayBuffer(tmp_path / "store", columns=columns, segment_rows=1024, threads=1)
    add(buffer, 0, 50)
    failing = True
    with pytest.raises(OSError, match="Input/output error"):
        buffer.flush()
    failing = False
    add(buffer, 50, 850)  # more than the tail holds
    with pytest.raises(OSError, match="an earlier sync of this file failed; open the store again"):
        buffer.flush()
    with pytest.raises(OSError, match="an earlier sync"):
        buffer.close()
    with db.ReplayBuffer(tmp_path / "store", threads=1) as buffer:
        assert (buffer.at(buffer.steps())["obs"].numpy() == frames[:900]).all()


@pytest.mark.nightly
def test_a_column_that_was_added_in_a_second_attempt_survives_a_power_loss() -> None:
    for n in itertools.count():
        with scratch() as base, boot(1), Trace(base) as trace, Gate(free=False):
            buffer = db.ReplayBuffer(base / "store", columns=COLUMNS, segment_rows=16, threads=1)
            extended(buffer, 0, 8)
            buffer.flush()
            fault = trace.fault = Fault(n, errno.EIO, only="fsync")
            with contextlib.suppress(OSError):
                buffer.columns.write("value", buffer.steps(), np.ones(8, np.float32))
            trace.fault, flushed = None, False
            with contextlib.suppress(OSError):  # where it was a file's, no flush is worth anything
                buffer.columns.write("value", buffer.steps(), np.ones(8, np.float32))
                buffer.flush()
                flushed = True
            disk = trace.disk(trace.look("flushed"))
            with contextlib.suppress(OSError):
                buffer.close()
        if not fault.failed:
            break
        with scratch() as place, boot(2):
            build(disk.crash("nothing", np.random.default_rng(0)), place)
            with db.ReplayBuffer(place / "store", mode="r", threads=1) as reader:
                assert len(reader) == 8
                if flushed:
                    assert reader.at(reader.steps())["value"].tolist() == [1.0] * 8, fault.failed
    assert n > 8
