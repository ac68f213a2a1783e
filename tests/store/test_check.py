"""Checking a store, and repairing it: what is damaged is named, nothing is changed unasked, and what can be saved is."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import diskbuffer as db
from diskbuffer.store import directory
from diskbuffer.store.checking.findings import Collector, Finder, Finding
from diskbuffer.store.checking.opened import Opened
from diskbuffer.store.checking.report import Problem, Report
from diskbuffer.store.checking.segments import SegmentFinder
from diskbuffer.store.directory import read_metadata
from diskbuffer.store.segments.table import SegmentTable
from diskbuffer.store.system.files import Files
from tests.support.experience import Experience, Feeder
from tests.support.specimens import copy_while_open, flip

if TYPE_CHECKING:
    from tests.support.writers import Writers

Made = tuple[Experience, Path]
TABLE = ("stream", "first_row", "first_step", "episode_start", "before", "sealed", "length")


@pytest.fixture(scope="module", params=[(34, 33), (20,)], ids=["packed", "flat"])
def original(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Make a closed store with sealed segments, one that is not, two streams, and a column that was written later."""
    world, path = Experience(2, shape=request.param), tmp_path_factory.mktemp("original")
    with world.open(path / "store", segment_rows=16) as buffer:
        feed = Feeder(world, buffer)
        feed.add(70)
        buffer.flush(recompress=True)
        feed.add(20)
        buffer.columns.write("value", buffer.episodes.start, np.ones(len(buffer.episodes), np.float32))
    return world, path / "store"


@pytest.fixture
def made(original: Made, tmp_path: Path) -> Made:
    """Copy it."""
    world, path = original
    return world, Path(shutil.copytree(path, tmp_path / "store"))


def contents(path: Path) -> dict[str, bytes]:
    files = [file for file in path.rglob("*") if file.is_file() and not file.name.startswith("writer.")]
    return {str(file.relative_to(path)): file.read_bytes() for file in files}


def assert_whole(world: Experience, path: Path, lost: int) -> None:
    """Assert that a repaired store is whole, and has lost no more than so many steps."""
    assert db.check(path, progress=False).ok
    for mode in ("r", "a", "r"):
        with db.ReplayBuffer(path, mode=mode) as buffer:
            assert 180 - len(buffer) <= lost
            assert world_has(world, buffer)
            if mode == "a":
                buffer.flush(recompress=True)
    assert db.check(path, progress=False).ok


def world_has(world: Experience, buffer: db.ReplayBuffer) -> bool:
    """Tell whether every step of a buffer is one of the world's; episodes that lost steps are several."""
    for start, length in zip(buffer.episodes.start, buffer.episodes.length, strict=True):
        steps = start + 2 * np.arange(length)
        if not length:
            continue
        batch = buffer.at(steps)
        for name, offset in (("obs", 0), ("next_obs", 1)):
            expected = world.frames(start % 2, steps // 2 + offset)
            np.testing.assert_array_equal(batch[name].numpy(), expected)
    return True


# Checking


def test_an_undamaged_store_is_as_it_was_written(made: Made) -> None:
    _, path = made
    before, report = contents(path), db.check(path, progress=False)
    assert report.ok
    assert str(report) == f"{path}: {report.rows} rows (steps, and final observations) checked, everything is as it was written"
    assert report.rows >= 180
    assert contents(path) == before


@pytest.mark.some(3)
@pytest.mark.parametrize("column", ["action", "is_last", "row_checksum", "obs", "value"])
def test_what_is_damaged_is_named_and_nothing_is_changed(column: str, made: Made) -> None:
    _, path = made
    file = min((path / column).glob("c.1*"))
    flip(file, 0)
    before, report = contents(path), db.check(path, progress=False)
    assert not report.ok
    problem = next(problem for problem in report.problems if problem.column == column)
    assert problem.path == file
    assert problem.steps is not None
    assert str(problem).startswith(f"{file}, column {column!r}, steps {problem.steps[0]} to {problem.steps[1]}: ")
    assert contents(path) == before
    if column != "value":
        named = rf"column '{column}', rows|{re.escape(str(file))}"
        with pytest.raises(db.CorruptionError, match=named), db.ReplayBuffer(path, mode="r") as buffer:
            buffer.at([problem.steps[0]])


@pytest.mark.some(2)
@pytest.mark.parametrize("name", TABLE)
def test_every_number_of_the_segment_table_in_use_is_checked(name: str, made: Made) -> None:
    _, path = made
    file = min((path / "_segments" / name).glob("c.0*"))
    words = np.frombuffer(file.read_bytes(), np.uint64)[:10]
    slot = int(np.flatnonzero(words)[0]) if name not in ("first_row", "stream") else 3
    if name in ("first_step", "episode_start"):
        slot = int(np.flatnonzero(np.fromfile(path / "_segments" / "before" / "c.0", np.uint64)[:10])[0])
    flip(file, 8 * slot)
    assert not db.check(path, progress=False).ok
    db.check(path, repair=True, progress=False)
    assert_whole(made[0], path, 0)


@pytest.mark.some(1)
def test_metadata_and_their_copy_are_checked(made: Made) -> None:
    world, path = made
    for name in ("zarr.json", "action/zarr.json", "_segments/length/group.json", "_segments/length/state.json"):
        flip(path / name, (path / name).stat().st_size - 5)
        report = db.check(path, progress=False)
        assert not report.ok, name
        assert db.check(path, repair=True, progress=False).problems
        assert_whole(world, path, 0)


def test_a_check_beside_a_writer_finds_nothing_and_disturbs_nothing(
    tmp_path: Path, writers: Writers, amount: Callable[[int, int], int]
) -> None:
    world = Experience(2)
    writers.start(tmp_path / "store", world, "seal", capacity=300, segment_rows=16)
    writers.wait_for(30)
    for _ in range(amount(4, 8)):
        report = db.check(tmp_path / "store", progress=False)
        assert report.ok, str(report)
    with pytest.raises(db.LockedError, match="is being written to"):
        db.check(tmp_path / "store", repair=True, progress=False)
    assert writers.account is not None
    writers.wait_for(int(writers.account.last[1]) + 10)
    writers.kill()
    assert db.check(tmp_path / "store", progress=False).ok


def test_what_a_kill_left_and_opening_finishes_is_told_and_no_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    columns = {"obs": db.Column((), "int64"), "action": db.Column((), "int64")}
    buffer = db.ReplayBuffer(tmp_path / "store", columns=columns, segment_rows=8)
    with monkeypatch.context() as patched:
        patched.setattr(directory, "replace_group", interrupted)  # when arrays have grown, and the group has not
        with pytest.raises(KeyboardInterrupt):
            buffer.extend(obs=np.arange(100_001), action=np.arange(100_000), reward=np.zeros(100_000))
    copy_while_open(tmp_path / "store", tmp_path / "killed")
    buffer.close()
    report = db.check(tmp_path / "killed", progress=False)
    assert report.ok
    assert report.problems
    assert str(report).endswith("everything is as it was written, but for what a kill left and opening finishes")
    with db.ReplayBuffer(tmp_path / "killed") as again:
        assert len(again) > 0
    assert not db.check(tmp_path / "killed", progress=False).problems


def interrupted(*_: Any, **__: Any) -> Any:
    raise KeyboardInterrupt


def test_what_is_evicted_while_it_is_looked_at_is_not_called_strange(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world, known, find = Experience(1), SegmentTable.before, SegmentFinder.find_unknown_start
    due = False
    with world.open(tmp_path / "store", 64, segment_rows=16) as buffer:
        feed = Feeder(world, buffer)
        feed.add(100)

        def before(table: SegmentTable, slot: int) -> tuple[int, int] | None:
            nonlocal due
            if due and not table._writable:
                due = False
                feed.add(20)
                return None  # as it is between eviction and the next rows
            return known(table, slot)

        def find_unknown_start(finder: SegmentFinder, stream: int, slots: list[int]) -> Finder[None]:
            nonlocal due
            due = True
            return find(finder, stream, slots)

        monkeypatch.setattr(SegmentTable, "before", before)
        monkeypatch.setattr(SegmentFinder, "find_unknown_start", find_unknown_start)
        assert db.check(tmp_path / "store", progress=False).ok
        assert not due


def test_what_is_evicted_while_the_table_is_read_is_not_missed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world, known, due = Experience(2), Opened.segments, 1
    with world.open(tmp_path / "store", 64, segment_rows=16) as buffer:
        feed = Feeder(world, buffer)
        feed.add(100)
        buffer.flush(recompress=True)

        def segments(of: Opened) -> list[list[tuple[int, int]]]:
            nonlocal due
            found = known(of)
            if due:
                due -= 1
                feed.add(20)
                buffer.flush(recompress=True)
            return found

        monkeypatch.setattr(Opened, "segments", segments)
        report = db.check(tmp_path / "store", progress=False)
        assert report.ok, str(report)
        assert not due


def test_a_store_that_is_being_written_to_is_not_repaired_however_damaged(made: Made) -> None:
    _, path = made
    with db.ReplayBuffer(path) as buffer:
        buffer.flush(recompress=True)
        flip(path / "zarr.json", (path / "zarr.json").stat().st_size // 3)
        before = contents(path)
        with pytest.raises(db.LockedError):
            db.check(path, repair=True, progress=False)
        assert contents(path) == before


def test_where_there_is_no_store_there_is_nothing_to_check(tmp_path: Path) -> None:
    for repair in (False, True):
        with pytest.raises(db.errors.NotAStoreError):
            db.check(tmp_path / "nothing", repair=repair, progress=False)
        with pytest.raises(db.errors.NotAStoreError):
            db.check(tmp_path, repair=repair, progress=False)
    assert list(tmp_path.iterdir()) == []


def test_a_finder_goes_on_when_what_it_found_is_fixed_and_only_a_repair_fixes_it(tmp_path: Path) -> None:
    there = {"a", "b"}

    def find() -> Finder[int]:
        for name in ("a", "b"):
            if name in there:
                yield Finding((Problem(tmp_path, name),), lambda: there.difference_update("ab"), dropped=1, blocks=name == "b")
        return len(there)

    looking, mending = Collector(Report(tmp_path)), Collector(Report(tmp_path, repaired=True))
    assert looking.take(find()) == 2
    assert [problem.what for problem in looking.report.problems] == ["a", "b"]
    assert (looking.report.dropped, looking.blocked, there) == (2, True, {"a", "b"})
    assert mending.take(find()) == 0
    assert [problem.what for problem in mending.report.problems] == ["a"]
    assert (mending.report.dropped, mending.blocked) == (1, False)


def test_stages_that_follow_one_that_blocks_are_not_looked_at(tmp_path: Path) -> None:
    def find(what: str) -> Finder[None]:
        yield Finding((Problem(tmp_path, what),), lambda: None, blocks=what == "second")

    for repaired, expected in ((False, ["first", "second"]), (True, ["first", "second", "third"])):
        collector = Collector(Report(tmp_path, repaired=repaired))
        assert collector.take_all(map(find, ("first", "second", "third"))) == repaired
        assert [problem.what for problem in collector.report.problems] == expected


# Repairing


def flipped(file: Path) -> None:
    flip(file, file.stat().st_size // 3)


def cut(file: Path) -> None:
    os.truncate(file, file.stat().st_size // 2)


def emptied(file: Path) -> None:
    file.write_bytes(bytes(file.stat().st_size))


def filled(file: Path) -> None:
    file.write_bytes(np.random.default_rng(0).bytes(file.stat().st_size))


DAMAGES: tuple[Callable[[Path], None], ...] = (flipped, cut, emptied, filled, Path.unlink)


@pytest.mark.some(4)
@pytest.mark.parametrize("harm", DAMAGES, ids=lambda harm: harm.__name__)
@pytest.mark.parametrize("slot", [1, -1])
@pytest.mark.parametrize("column", ["obs", "reward", "is_last"])
def test_of_a_damaged_file_no_more_than_its_segment_is_lost(
    column: str, slot: int, harm: Callable[[Path], None], made: Made
) -> None:
    world, path = made
    files = sorted((path / column).glob("c.*"), key=lambda file: int(file.name.split(".")[1]))
    harm(files[slot])
    report = db.check(path, repair=True, progress=False)
    assert report.repaired
    assert report.dropped <= 16
    assert_whole(world, path, 17)


@pytest.mark.some(4)
@pytest.mark.parametrize("harm", DAMAGES[1:], ids=lambda harm: harm.__name__)
@pytest.mark.parametrize("name", [*TABLE, "checksum/obs", "checksum/value"])
def test_of_a_segment_table_that_is_lost_in_part_all_steps_are_found_again(
    name: str, harm: Callable[[Path], None], made: Made
) -> None:
    world, path = made
    harm(min((path / "_segments" / name).glob("c.0*")))
    db.check(path, repair=True, progress=False)
    assert_whole(world, path, 0)


@pytest.mark.parametrize(("forgotten", "damaged"), [(0, []), (1, []), (0, [2]), (-1, [2])])
def test_of_entries_that_are_gone_without_a_trace_all_rows_are_found_again(
    forgotten: int, damaged: list[int], tmp_path: Path
) -> None:
    world, left = Experience(1, shape=(20,)), tmp_path / "left"
    with world.open(tmp_path / "store", segment_rows=16, threads=1) as buffer:
        Feeder(world, buffer).add(70)
        copy_while_open(tmp_path / "store", left)
        episodes = buffer.episodes.length.tolist()
    file = left / "_segments" / "length" / "c.0.0"
    entries = np.fromfile(file, np.uint64).reshape(-1, 2)
    used = np.flatnonzero(entries[:, 0])
    entries[used[forgotten]] = 0
    entries[used[damaged], 1] ^= 1
    file.write_bytes(entries.tobytes())
    assert db.check(left, repair=True, progress=False).dropped == 0
    assert db.check(left, progress=False).ok
    with db.ReplayBuffer(left, mode="r") as buffer:
        assert (len(buffer), buffer.episodes.length.tolist()) == (70, episodes)


def of_another_kind(path: Path) -> None:
    shard = min((path / "obs").glob("c.1*"))
    flip(shard, shard.stat().st_size - 4 * 16 - 20)  # a shard says that it is another


@pytest.mark.parametrize(
    "harm",
    [
        of_another_kind,
        lambda path: min((path / "row_checksum").glob("c.1*")).unlink(),  # which is worked out anew, as files have their own
        lambda path: flip(path / "value" / "c.0", 3),  # values that were written later, and are lost
    ],
)
def test_what_can_be_worked_out_anew_or_belongs_to_no_row_loses_no_step(harm: Callable[[Path], None], made: Made) -> None:
    world, path = made
    if harm is of_another_kind and world.shape == (20,):
        pytest.skip("a flat column has no shards")
    harm(path)
    report = db.check(path, repair=True, progress=False)
    assert not report.ok
    assert report.dropped == 0
    assert_whole(world, path, 0)


def test_a_segment_table_without_rows_that_were_there_is_refused(made: Made) -> None:
    _, path = made
    emptied(path / "_segments" / "length" / "c.0.0")
    for mode in ("r", "a"):
        with pytest.raises(db.CorruptionError, match=r"rows 0 to .* were on the disk, and the segment table does not have them"):
            db.ReplayBuffer(path, mode=mode)


def test_a_length_that_is_an_older_one_is_noticed_where_others_follow_it(made: Made) -> None:
    world, path = made
    layout, slots = read_metadata(path)
    table = SegmentTable(Files(path), layout, writable=True)
    table.grow(slots)
    slot = int(table.by_stream()[0][1])
    table.set_length(slot, 12)
    with pytest.raises(db.CorruptionError, match="rows 28 to 31 of stream 0 are missing"):
        db.ReplayBuffer(path, mode="r")
    report = db.check(path, progress=False)
    assert [problem.what for problem in report.problems] == [
        f"slot {slot} has 12 rows, and 16 must be there, as others follow; repair finds them"
    ]
    assert db.check(path, repair=True, progress=False).dropped == 0
    assert_whole(world, path, 0)


@pytest.mark.parametrize("name", ["zarr.json", "_segments/length/group.json", "_segments/length/state.json"])
def test_a_file_of_another_store_is_noticed_and_repaired(name: str, made: Made, tmp_path: Path) -> None:
    world, path = made
    Experience(2, shape=world.shape).open(tmp_path / "other", segment_rows=16).close()
    shutil.copy(tmp_path / "other" / name, path / name)
    report = db.check(path, progress=False)
    assert not report.ok
    assert any(name in str(problem) or "copy" in str(problem) for problem in report.problems)
    db.check(path, repair=True, progress=False)
    assert_whole(world, path, lost=0)
