"""Snapshots, marks and the way back to them: consistent beside a writer, apart from him afterwards, and whole after a crash."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import zarr

import diskbuffer as db
from diskbuffer.store.copies import marks, snapshots
from diskbuffer.store.copies.marks import MARKS
from diskbuffer.store.format.layout import TABLE
from diskbuffer.store.origin import Origin
from diskbuffer.store.system.files import Files
from tests.support.experience import Experience, Feeder, heads_of
from tests.support.specimens import contents

OPTIONS: dict[str, Any] = {"segment_rows": 16}


def is_well(path: Path) -> bool:
    report = db.check(path, progress=False)
    assert report.ok, str(report)
    return True


def links(path: Path) -> int:
    """How many data files of a store have another name elsewhere."""
    return sum(file.stat().st_nlink > 1 for file in path.rglob("c.*") if "marks" not in file.parts)


@contextlib.contextmanager
def at_work(*works: Callable[[], object]) -> Any:
    """Do things again and again in other threads; errors come out at the end."""
    stopped, errors = threading.Event(), list[BaseException]()

    def run(work: Callable[[], object]) -> None:
        try:
            while not stopped.is_set():
                work()
        except BaseException as error:  # noqa: BLE001
            errors.append(error)

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stopped.set()
        for thread in threads:
            thread.join()
    assert not errors, errors


@pytest.fixture
def tmp_path(tmp_path: Path) -> Iterator[Path]:
    """In memory, where there is a file system in memory, for thousands of files are synced."""
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(prefix="diskbuffer-", dir=memory) as directory:
        yield Path(directory)


# Snapshots


@pytest.mark.some(1)
@pytest.mark.parametrize("capacity", [None, 300])
def test_a_snapshot_is_whole_and_goes_on_by_itself(capacity: int | None, tmp_path: Path) -> None:
    world, path, copy = Experience(2), tmp_path / "store", tmp_path / "copies" / "first"
    with world.open(path, capacity, frame_stack=2, **OPTIONS) as buffer:
        feed = Feeder(world, buffer)
        feed.add(200)
        buffer.flush(recompress=True)
        feed.add(33)
        steps = buffer.steps()
        buffer.columns.write("value", steps, steps.astype(np.float32))
        assert buffer.copies.snapshot(copy) == copy
        assert links(copy) > 50
        before = contents(copy)
        feed.add(200)
        buffer.columns.write("value", steps, steps.astype(np.float32) + 1)
        buffer.flush(recompress=True)
        world.check(buffer)
        assert contents(copy) == before
        assert is_well(copy)
        with db.ReplayBuffer(copy, mode="r") as reader:
            np.testing.assert_array_equal(reader.steps(), steps)
            world.check(reader)
            assert (reader.at(steps)["value"].numpy() == steps).all()
        assert contents(copy) == before
        for name in ("obs", "action"):  # every row is in its column, as after a close
            length = np.asarray(zarr.open_group(str(copy), mode="r")["_segments/length"])[:, 0]
            column = zarr.open_group(str(copy), mode="r")[name]
            assert isinstance(column, zarr.Array)
            rows = np.concatenate([np.asarray(column[s * 16 : s * 16 + n]) for s, n in enumerate(length)])
            assert rows.any(axis=tuple(range(1, rows.ndim))).sum() >= len(steps)
    original = contents(path)
    with world.open(copy, capacity, frame_stack=2) as other:
        feed = Feeder(world, other)
        feed.add(300)
        other.columns.write("value", other.steps(), np.zeros(len(other), np.float32))
        other.flush(recompress=True)
        world.check(other)
    assert is_well(copy)
    assert contents(path) == original
    assert is_well(path)


def test_repairing_one_does_not_change_the_other(tmp_path: Path) -> None:
    world, path, copy = Experience(), tmp_path / "store", tmp_path / "copy"
    with world.open(path, **OPTIONS) as buffer:
        Feeder(world, buffer).add(100)
        buffer.flush(recompress=True)
        buffer.copies.snapshot(copy)
    before, file = contents(path), copy / "action" / "c.1"
    damaged = bytearray(file.read_bytes())
    damaged[3] ^= 1
    file.unlink()
    file.write_bytes(damaged)
    assert not db.check(copy, progress=False).ok
    db.check(copy, repair=True, progress=False)
    assert is_well(copy)
    with db.ReplayBuffer(copy) as other:
        assert 80 < len(other) < 100
    assert contents(path) == before


def test_snapshots_beside_threads_that_add_sample_and_seal(tmp_path: Path, amount: Callable[[int, int], int]) -> None:
    world = Experience(2, shape=(40, 40))
    with world.open(tmp_path / "store", 300, **OPTIONS) as buffer:
        feed = Feeder(world, buffer)
        feed.add(250)
        sampler = db.Prioritized(seed=1)

        def learn() -> None:
            batch = buffer.sample(32, sampler)
            world.check_batch(batch)
            sampler.update(batch["steps"], np.ones(32))

        heads = []
        with at_work(feed.add, learn, lambda: buffer.flush(recompress=True)):
            for n in range(amount(4, 8)):
                at_least = feed.heads.copy()
                buffer.copies.snapshot(tmp_path / str(n))
                heads.append((at_least, feed.heads.copy()))
        world.check(buffer)
    for n, (low, high) in enumerate(heads):
        assert is_well(tmp_path / str(n))
        with db.ReplayBuffer(tmp_path / str(n)) as other:
            found = heads_of(other)
            assert (low <= found).all()
            assert (found <= high + 1).all()
            assert world.check(other) >= 300
            assert other.columns["priority"] == db.Column((), "float32")
            Feeder(world, other).add(20)
            world.check(other)


def test_what_cannot_be_linked_is_copied(tmp_path: Path) -> None:
    world, elsewhere = Experience(), Path(tempfile.mkdtemp())
    copy = elsewhere / "copy"
    if elsewhere.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("there is no other device")
    try:
        with world.open(tmp_path / "store", **OPTIONS) as buffer:
            Feeder(world, buffer).add(100)
            buffer.flush(recompress=True)
            buffer.copies.snapshot(copy)
            world.check(buffer)
        assert links(copy) == links(tmp_path / "store") == 0
        assert is_well(copy)
        with db.ReplayBuffer(copy) as other:
            Feeder(world, other).add(50)
            assert world.check(other) == 150
    finally:
        shutil.rmtree(elsewhere)


def test_a_copy_of_a_live_shard_takes_no_more_than_its_chunks(tmp_path: Path) -> None:
    world = Experience(shape=(84, 84))
    with world.open(tmp_path / "store", segment_rows=4096) as buffer:
        Feeder(world, buffer).add(300)
        buffer.copies.mark("one")
        (shard,) = (tmp_path / "store" / MARKS / "one" / "obs").glob("c.*")
        assert shard.stat().st_size > 2**24
        assert shard.stat().st_blocks * 512 < 2**21


def test_the_places_and_buffers_that_are_refused(tmp_path: Path) -> None:
    world, path = Experience(), tmp_path / "store"
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("mine")
    (tmp_path / "empty").mkdir()
    (tmp_path / "inside").symlink_to(path / "obs")
    with world.open(path) as buffer:
        Feeder(world, buffer).add(10)
        for inside in (path / "copy", path / "_segments" / "x" / "y", tmp_path / "inside" / "copy"):
            with pytest.raises(db.InputError, match="inside"):
                buffer.copies.snapshot(inside)
        for wrong in ("full", "full/file", "store"):
            with pytest.raises(db.errors.NotAStoreError):
                buffer.copies.snapshot(tmp_path / wrong)
        buffer.copies.snapshot(tmp_path / "empty")
        with pytest.raises(db.errors.NotAStoreError, match="already"):
            buffer.copies.snapshot(tmp_path / "empty")
        with db.ReplayBuffer(path, mode="r") as reader:
            for call in (reader.copies.mark, reader.copies.remove):
                with pytest.raises(db.errors.ReadOnlyError, match="mode='a'"):
                    call("x")
    for closed in (lambda: buffer.copies.snapshot(tmp_path / "x"), lambda: buffer.copies.mark("x")):
        with pytest.raises(db.errors.ClosedError):
            closed()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["empty", "full", "inside", "store"]


@pytest.mark.parametrize("after", [3, 40])
def test_a_disk_that_is_full_leaves_nothing(after: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = Experience()
    with world.open(tmp_path / "store", **OPTIONS) as buffer:
        feed = Feeder(world, buffer)
        feed.add(100)
        real, calls = Files.create, 0

        def create(self: Files, name: str, size: int, *, reserve: bool) -> int:
            nonlocal calls
            calls += 1
            if calls > after:
                raise OSError(errno.ENOSPC, "No space left on device")
            return real(self, name, size, reserve=reserve)

        monkeypatch.setattr(Files, "create", create)
        for call in (lambda: buffer.copies.snapshot(tmp_path / "copy"), lambda: buffer.copies.mark("one")):
            calls = 0
            with pytest.raises(OSError, match="No space"):
                call()
        monkeypatch.undo()
        assert [p.name for p in tmp_path.iterdir()] == ["store"]
        assert buffer.copies.marks == ()
        assert not list((tmp_path / "store" / MARKS).iterdir())
        feed.add(100)
        assert world.check(buffer) == 200


# Marks


def test_marks_are_kept_read_replaced_and_removed(tmp_path: Path) -> None:
    world, path = Experience(2), tmp_path / "store"
    with world.open(path, 200, **OPTIONS) as buffer:
        feed = Feeder(world, buffer)
        found: dict[str, Any] = {}
        for name in ("zebra", "step-10.0", "_a"):
            feed.add(70)
            buffer.copies.mark(name)
            found[name] = buffer.steps()
        assert buffer.copies.marks == ("zebra", "step-10.0", "_a")
        with pytest.raises(db.InputError, match="already"):
            buffer.copies.mark("zebra")
        buffer.copies.mark("zebra", replace=True)
        found["zebra"] = buffer.steps()
        assert buffer.copies.marks == ("step-10.0", "_a", "zebra")
        for wrong in ("", ".x", "a/b", "..", "x" * 101, "a b", "ä", "x\n", 3):
            for call in (buffer.copies.mark, buffer.copies.remove):
                with pytest.raises(db.InputError, match="mark's name"):
                    call(wrong)  # type: ignore[arg-type]
        with pytest.raises(db.InputError, match=r"'step-10\.0', '_a', 'zebra'"):
            buffer.copies.remove("none")
        feed.add(200)
        buffer.copies.remove("_a")
        for name in buffer.copies.marks:
            with db.ReplayBuffer(path, mark=name, mode="r") as reader:  # beside the writer
                assert reader.copies.marks == buffer.copies.marks
                np.testing.assert_array_equal(reader.steps(), found[name])
                world.check(reader)
                assert reader.check(progress=False).ok
        world.check(buffer)
    table = zarr.open_group(str(path), mode="r")["_segments"]
    assert isinstance(table, zarr.Group)
    assert "checksum" in set(table.keys()) <= {*TABLE, "checksum", "cleared"}  # and marks are hidden
    assert is_well(path)
    path.rename(tmp_path / "moved")
    with db.ReplayBuffer(tmp_path / "moved", mark="step-10.0", mode="r") as reader:
        np.testing.assert_array_equal(reader.steps(), found["step-10.0"])


@pytest.mark.nightly
def test_what_is_shared_counts_once(tmp_path: Path) -> None:
    world = Experience(shape=(100, 100))
    with world.open(tmp_path / "store", **OPTIONS) as buffer:
        Feeder(world, buffer).add(2000)
        buffer.flush(recompress=True)
        before = buffer.stats()["disk_bytes"]
        buffer.copies.mark("one")
        one = buffer.stats()["disk_bytes"]
        buffer.copies.mark("two")
        two = buffer.stats()["disk_bytes"]
        assert two - one < before / 4
        buffer.copies.remove("one")
        buffer.copies.remove("two")
        assert abs(buffer.stats()["disk_bytes"] - before) < 2**16


@pytest.mark.some(1)
@pytest.mark.parametrize("again", [False, True])
def test_going_back_to_a_mark(again: bool, tmp_path: Path) -> None:
    world, path = Experience(2), tmp_path / "store"
    with world.open(path, 200, **OPTIONS) as buffer:
        feed = Feeder(world, buffer)
        feed.add(130)
        steps = buffer.steps()
        buffer.columns.write("value", steps[5:50], steps[5:50] * 1.5)
        buffer.episodes.of(steps[:1]).set_tag("first")
        buffer.copies.mark("one")
        expected = {name: value.clone() for name, value in buffer.at(steps).items()}
        feed.add(7 if again else 300)  # the same segments, or others
        buffer.columns.write("value", buffer.steps(), np.zeros(len(buffer)))
        buffer.columns.write("later", buffer.steps(), np.ones(len(buffer)))
        buffer.episodes.of(buffer.steps()[:1]).set_tag("second")
        buffer.flush(recompress=True)
        buffer.copies.mark("two")
        newest = buffer.steps()
    with pytest.raises(db.errors.SchemaError):  # and then it does not go back
        db.ReplayBuffer(path, 500, mark="one")
    for mode in ("a", "r"):
        with pytest.raises(db.InputError, match="'one', 'two'"):
            db.ReplayBuffer(path, mark="three", mode=mode)
    for mode, other in (("w-", path), ("a", tmp_path / "none"), ("r", tmp_path / "none")):
        with pytest.raises(db.errors.NotAStoreError):
            db.ReplayBuffer(other, mark="one", mode=mode)  # type: ignore[arg-type]
    with db.ReplayBuffer(path, mark="one") as buffer:
        assert buffer.copies.marks == ("one", "two")
        np.testing.assert_array_equal(buffer.steps(), steps)
        assert buffer.episodes.tag_names == ("first",)
        batch = buffer.at(steps)
        assert batch.keys() == expected.keys()
        for name, value in expected.items():
            assert torch.equal(batch[name], value), name
        world.check(buffer)
        feed = Feeder(world, buffer)
        feed.add(40)
        buffer.columns.write("later", buffer.steps(), np.ones(len(buffer)))  # anew
        world.check(buffer)
        buffer.flush(recompress=True)
    assert is_well(path)
    assert not (path / "tmp").exists()
    with db.ReplayBuffer(path, mark="two", mode="r+") as buffer:
        np.testing.assert_array_equal(buffer.steps(), newest)
        assert buffer.episodes.tag_names == ("first", "second")
        world.check(buffer)
    assert is_well(path)
    assert is_well(path / MARKS / "one")


@pytest.mark.some(1)
@pytest.mark.parametrize("seed", range(2))
def test_going_back_goes_all_the_way_whenever_it_is_killed(seed: int, tmp_path: Path, amount: Callable[[int, int], int]) -> None:
    """A fork dies at some file operation, for good; opening finishes what it had begun."""
    world, path = Experience(), tmp_path / "store"
    with world.open(path, 60, segment_rows=8) as buffer:
        feed = Feeder(world, buffer)
        feed.add(100)
        buffer.flush(recompress=True)
        feed.add(3)
        steps = buffer.steps()
        buffer.columns.write("value", steps, steps * 1.0)
        buffer.copies.mark("one")
        feed.add(100)
        buffer.columns.write("later", buffer.steps(), np.ones(len(buffer)))
        buffer.copies.mark("two")
    rng, died_on_the_way = np.random.default_rng(seed), 0
    for at in (rng.integers(0, 40, 8) + np.arange(8) * 40)[:: amount(3, 1)].tolist():  # some 300 operations in all
        die_at(at, lambda: db.ReplayBuffer(path, mark="one").close())
        origin = Origin.read(Files(path))
        if origin is not None and origin.back_to is not None:
            died_on_the_way += 1
            for mark in (None, "one"):  # a reader, who cannot finish it, has the mark itself
                with db.ReplayBuffer(path, mode="r", mark=mark) as reader:
                    np.testing.assert_array_equal(reader.steps(), steps)
                    assert (reader.at(steps)["value"].numpy() == steps).all()
                    reader.refresh()
            reader = db.ReplayBuffer(path, mode="r")
            die_at(int(rng.integers(1, 250)), lambda: db.ReplayBuffer(path).close())  # and while it is finished
            with db.ReplayBuffer(path) as buffer:
                np.testing.assert_array_equal(buffer.steps(), steps)
                assert (buffer.at(steps)["value"].numpy() == steps).all()
                assert "later" not in buffer.columns
                world.check(buffer)
                with reader, pytest.raises(db.CorruptionError, match="went back to a mark"):
                    reader.refresh()
            assert not list(path.rglob("*.tmp"))
        db.ReplayBuffer(path, mark="two").close()  # to have something to go back from
    assert died_on_the_way > amount(0, 3)
    assert is_well(path)


def die_at(number: int, work: Callable[[], object]) -> bool:
    """Do something in a fork that dies before its file operation of that number; return whether it came to the end."""
    pid = os.fork()
    if pid == 0:
        done = 0
        for name in ("create", "pwrite", "sync", "rename", "remove", "link", "remove_directory", "make_directory"):
            real = getattr(Files, name)

            def counted(*args: Any, real: Any = real, **options: Any) -> Any:
                nonlocal done
                done += 1
                if done >= number:
                    os._exit(9)
                return real(*args, **options)

            setattr(Files, name, counted)
        try:
            work()
        except BaseException:  # noqa: BLE001
            os._exit(1)
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert code in (0, 9)
    return code == 0


def test_a_kill_while_marks_are_made_replaced_and_removed_leaves_old_ones_or_new_ones(tmp_path: Path) -> None:
    world, path = Experience(), tmp_path / "store"

    def change() -> None:
        with db.ReplayBuffer(path) as buffer:
            buffer.copies.mark("one", replace=True)
            buffer.copies.mark("two")
            buffer.copies.remove("two")

    with world.open(path, **OPTIONS) as buffer:
        Feeder(world, buffer).add(60)
        buffer.copies.mark("one")
    died = 0
    for at in range(90, 800, 97):
        died += not die_at(at, change)
        with db.ReplayBuffer(path) as buffer:
            assert set(buffer.copies.marks) in ({"one"}, {"one", "two"})
            assert {p.name for p in (path / MARKS).iterdir()} == set(buffer.copies.marks)
            if "two" in buffer.copies.marks:
                buffer.copies.remove("two")
            world.check(buffer)
        with db.ReplayBuffer(path, mark="one", mode="r") as reader:
            assert world.check(reader) == 60
    assert died > 5
    old = path / MARKS / ".one.old"  # where a kill comes between two renames
    (path / MARKS / "one").rename(old)
    with db.ReplayBuffer(path) as buffer:
        assert buffer.copies.marks == ("one",)


def test_a_reader_elsewhere_never_gets_wrong_data_while_a_store_goes_back(tmp_path: Path) -> None:
    class Other(Experience):
        def actions(self, stream: int, positions: Any) -> Any:
            return super().actions(stream, positions) + 10**9

    world, path = Experience(), tmp_path / "store"
    with world.open(path, 300, **OPTIONS) as buffer:
        feed = Feeder(world, buffer)
        feed.add(200)
        buffer.copies.mark("one")
        feed.add(50)
    readers = [db.ReplayBuffer(path, mode="r") for _ in range(3)]
    world.check(readers[1])  # all is mapped
    readers[2].at(readers[2].steps()[-20:])
    with db.ReplayBuffer(path, mark="one") as buffer:
        other = Other()
        Feeder(other, buffer).add(50)
        for reader in readers:
            try:
                world.check(reader)
            except db.CorruptionError as error:
                assert "went back" in str(error)  # noqa: PT017
                assert reader is not readers[1]
            else:
                assert reader is readers[1]
            with pytest.raises(db.CorruptionError, match="went back to a mark"):
                reader.refresh()
            reader.close()
        with db.ReplayBuffer(path, mode="r") as reader:
            assert len(reader) == 250
            assert (reader.at(reader.steps()[210:])["action"] > 10**9).all()


def test_a_damaged_mark_is_not_gone_back_to(tmp_path: Path) -> None:
    world, path = Experience(), tmp_path / "store"
    with world.open(path, **OPTIONS) as buffer:
        feed = Feeder(world, buffer)
        feed.add(100)
        buffer.flush(recompress=True)
        buffer.copies.mark("one")
        feed.add(100)
    mark = path / MARKS / "one"
    for file in (mark / "action" / "c.2", mark / "_segments" / "length" / "state.json"):
        good = file.read_bytes()
        file.unlink()
        with pytest.raises(db.CorruptionError):
            db.ReplayBuffer(path, mark="one")
        file.write_bytes(good)
    with db.ReplayBuffer(path) as buffer:
        assert world.check(buffer) == 200


def test_the_way_back_to_a_mark_of_a_newer_format_is_not_forgotten(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with Experience().open(path) as buffer:
        buffer.copies.mark("one")
    (path / MARKS / "one" / "zarr.json").write_text('{"attributes": {"diskbuffer": {"format": 99}}}')
    Origin.new(back_to="one").note(Files(path))
    with pytest.raises(db.errors.FormatError):
        marks.finish_or_forget(Files(path))
    assert marks.unfinished(path) is not None


@pytest.mark.parametrize("wrong", ["../../../..", "one/../one", "", "two"])
def test_a_note_that_leads_elsewhere_is_refused(wrong: str, tmp_path: Path) -> None:
    world, path = Experience(), tmp_path / "store"
    with world.open(path) as buffer:
        Feeder(world, buffer).add(10)
        buffer.copies.mark("one")
    Origin.new(back_to=wrong).note(Files(path))
    with pytest.raises(db.DiskBufferError):
        db.ReplayBuffer(path)
    if wrong == "two":  # another can be gone back to, though
        with db.ReplayBuffer(path, mark="one") as buffer:
            assert world.check(buffer) == 10
        return
    report = db.check(path, progress=False)
    assert "origin.json" in str(report.problems[0])
    db.check(path, repair=True, progress=False)
    with db.ReplayBuffer(path) as buffer:
        assert world.check(buffer) == 10


def test_links_out_of_the_store_are_not_followed_on_the_way_back(tmp_path: Path) -> None:
    world, path = Experience(), tmp_path / "store"
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "c.77").write_text("mine")
    with world.open(path) as buffer:
        Feeder(world, buffer).add(10)
        buffer.copies.mark("one")
    shutil.rmtree(path / "action")
    (path / "action").symlink_to(tmp_path / "mine")
    Origin.new(back_to="one").note(Files(path))
    with pytest.raises(db.CorruptionError, match="link"):
        db.ReplayBuffer(path)
    assert [p.name for p in (tmp_path / "mine").iterdir()] == ["c.77"]


# Training goes on from a mark as it went on then


@pytest.mark.some(1)
@pytest.mark.parametrize("kind", ["uniform", "prioritized", "loader"])
def test_after_going_back_the_same_batches_come(kind: str, tmp_path: Path) -> None:
    world, path = Experience(2, 20, (9,)), tmp_path / "store"

    def learn(buffer: db.ReplayBuffer, sampler: db.Sampler, rounds: int) -> list[dict[str, torch.Tensor]]:
        feed, found = Feeder(world, buffer), []
        loop = iter(buffer.loader(16, sampler)) if kind == "loader" else None
        for _ in range(rounds):
            batch = buffer.sample(16, sampler) if loop is None else next(loop)
            found.append({name: value.clone() for name, value in batch.items()})
            if isinstance(sampler, db.Prioritized):
                sampler.update(batch["steps"], (batch["steps"] % 7).float())
            feed.add(3)
        if loop is not None:
            loop.close()  # type: ignore[attr-defined]
        return found

    def new() -> db.Sampler:
        return db.Prioritized(seed=4) if kind == "prioritized" else db.Uniform(5)

    with world.open(path, 150, **OPTIONS) as buffer:
        Feeder(world, buffer).add(60)
        sampler = new()
        learn(buffer, sampler, 20)
        buffer.copies.mark("step-20")
        state, own = sampler.state_dict(), buffer.state_dict()
        expected = learn(buffer, sampler, 40)
        own_batch = buffer.sample(8)["steps"].tolist()
    for _ in range(2):
        with db.ReplayBuffer(path, mark="step-20") as buffer:
            sampler = new()
            sampler.load_state_dict(state)
            buffer.load_state_dict(own)
            found = learn(buffer, sampler, 40)
            assert buffer.sample(8)["steps"].tolist() == own_batch
        for a, b in zip(expected, found, strict=True):
            assert a.keys() == b.keys()
            assert [key for key in a if not torch.equal(a[key], b[key])] == []


def test_nested_columns_go_back_too(tmp_path: Path) -> None:
    columns = {
        "obs/pixels": db.Column((40, 40), "uint8"),
        "obs/state": db.Column((3,), "float32"),
        "action": db.Column((), "int64"),
    }
    path = tmp_path / "store"

    def extend(buffer: db.ReplayBuffer, first: int) -> None:
        n = np.arange(first, first + 31)
        pixels = np.broadcast_to((n % 251)[:, None, None], (31, 40, 40)).astype(np.uint8)
        obs = {"pixels": pixels, "state": np.repeat(n[:, None], 3, 1).astype(np.float32)}
        buffer.extend(obs=obs, action=n[:30], reward=np.zeros(30))

    with db.ReplayBuffer(path, 60, columns=columns, segment_rows=8) as buffer:
        for n in range(10):
            extend(buffer, n * 30)
        buffer.columns.write("value", buffer.steps(), buffer.steps() * 2.0)
        buffer.flush(recompress=True)
        buffer.copies.mark("one")
        steps = buffer.steps()
        actions = buffer.at(steps)["action"]
        for n in range(10, 20):
            extend(buffer, n * 30)
        buffer.columns.write("later", buffer.steps(), np.ones(len(buffer)))
    with db.ReplayBuffer(path, mark="one") as buffer:
        np.testing.assert_array_equal(buffer.steps(), steps)
        batch = buffer.at(steps)
        assert torch.equal(batch["action"], actions)
        assert (batch["obs"]["pixels"][:, 0, 0] == actions % 251).all()
        assert (batch["obs"]["state"][:, 1] == actions).all()
        assert not (path / "later").exists()
    assert is_well(path)


def test_the_lock_is_held_for_a_short_time_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By what is done meanwhile: no file is made, but for those of segments that were completed or sealed since."""
    world, made = Experience(2), list[str]()
    with world.open(tmp_path / "store", **OPTIONS) as buffer:
        Feeder(world, buffer).add(300)
        buffer.flush(recompress=True)
        buffer.columns.write("value", buffer.steps(), np.ones(len(buffer)))
        hold, create = snapshots._Copy.hold, Files.create

        def noted(self: Files, name: str, size: int, *, reserve: bool) -> int:
            made.append(name)
            return create(self, name, size, reserve=reserve)

        def counted(self: snapshots._Copy, heads: Any) -> Any:
            monkeypatch.setattr(Files, "create", noted)
            try:
                return hold(self, heads)
            finally:
                monkeypatch.setattr(Files, "create", create)

        monkeypatch.setattr(snapshots._Copy, "hold", counted)
        buffer.copies.snapshot(tmp_path / "copy")
        assert made == []
    assert is_well(tmp_path / "copy")
