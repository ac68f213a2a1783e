"""After a repair a store opens for writing, a check finds nothing, and what was not damaged is there."""

from __future__ import annotations

import json
import os
import shutil
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import diskbuffer as db
from diskbuffer.store.format.layout import Layout, checksum_of_json
from diskbuffer.store.system.files import Files
from tests.support.experience import Experience, Feeder
from tests.support.specimens import copy_while_open

WORLD = Experience(1, shape=(20,))


def made(path: Path, steps: int = 60, *, open_at_the_end: bool = False, world: Experience = WORLD) -> Path:
    """Make a store, closed, or as a kill leaves it."""
    there = path.with_name("open") if open_at_the_end else path
    with world.open(there, segment_rows=16) as buffer:
        Feeder(world, buffer).add(steps)
        buffer.flush(recompress=True)
        buffer.flush()
        if open_at_the_end:
            copy_while_open(there, path)
    return path


def assert_repaired(path: Path, *, most: int, added: int = 60, world: Experience = WORLD) -> db.Report:
    """Assert that a repair leaves a store that is whole, without `most` of its steps at most."""
    report = db.check(path, repair=True, progress=False)
    assert db.check(path, progress=False).ok
    with db.ReplayBuffer(path) as buffer:
        assert len(buffer) >= added * world.n_envs - most
        steps = buffer.steps()
        streams = steps % world.n_envs
        expected = np.array([world.actions(s, p) for s, p in zip(streams, steps // world.n_envs, strict=True)])
        assert (buffer.at(steps)["action"].numpy() == expected).all()
        Feeder(world, buffer).add(40)
        buffer.flush(recompress=True)
    assert db.check(path, progress=False).ok
    return report


# Something else in a place


@pytest.mark.some(2)
@pytest.mark.parametrize("name", ["obs", "action", "_segments", "_segments/length", "_segments/first_row", "_segments/checksum"])
def test_a_file_in_the_place_of_a_directory_is_repaired(name: str, tmp_path: Path) -> None:
    path = made(tmp_path / "store")
    shutil.rmtree(path / name)
    (path / name).write_text("something")
    report = db.check(path, progress=False)
    assert any(problem.path == path / name and "in the place of a directory" in problem.what for problem in report.problems)
    assert_repaired(path, most=0 if name.startswith("_seg") else 60)


@pytest.mark.some(2)
@pytest.mark.parametrize("name", ["obs", "_segments", "_segments/length", "_segments/first_row"])
def test_a_link_in_the_place_of_a_directory_is_named_with_what_to_do(name: str, tmp_path: Path) -> None:
    path = made(tmp_path / "store")
    shutil.move(path / name, tmp_path / "elsewhere")
    (path / name).symlink_to(tmp_path / "elsewhere")
    before = {file: file.read_bytes() for file in (tmp_path / "elsewhere").rglob("*") if file.is_file()}
    report = db.check(path, progress=False)
    assert any(problem.path == path / name and f"rm {path / name}" in problem.what for problem in report.problems), str(report)
    with pytest.raises(db.CorruptionError, match=rf"{path / name} is a link.*rm {path / name}"):
        db.check(path, repair=True, progress=False)
    assert before == {file: file.read_bytes() for file in (tmp_path / "elsewhere").rglob("*") if file.is_file()}
    (path / name).unlink()
    shutil.move(tmp_path / "elsewhere", path / name)
    assert_repaired(path, most=0)


@pytest.mark.some(2)
@pytest.mark.parametrize(
    "name", ["zarr.json", "action/c.1", "_segments/length/c.0.0", "_segments/length/state.json", "action/zarr.json"]
)
def test_a_directory_in_the_place_of_a_file_is_repaired(name: str, tmp_path: Path) -> None:
    path = made(tmp_path / "store")
    (path / name).unlink()
    (path / name).mkdir()
    assert_repaired(path, most=18 if name.startswith("action/c") else 0)


# Damage after a power loss


def of_another_boot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Files, "boot_id", lambda self: "another")


@pytest.mark.some(3)
@pytest.mark.parametrize("shape", [(20,), (34, 33)])
@pytest.mark.parametrize("column", ["obs", "action", "row_checksum"])
def test_files_that_miss_in_the_last_segments_after_a_power_loss_are_repaired(
    shape: tuple[int, ...], column: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = Experience(1, shape=shape)
    path = made(tmp_path / "store", open_at_the_end=True, world=world)
    for file in sorted((path / column).glob("c.*"), key=lambda file: int(file.name.split(".")[1]))[-2:]:
        file.unlink()
    of_another_boot(monkeypatch)
    assert not db.check(path, progress=False).ok
    assert_repaired(path, most=34, world=world)


# A stranger's store


def described(path: Path, change: Callable[[dict[str, object]], None]) -> None:
    """Change what describes a store, checksum and copy included."""
    metadata = json.loads((path / "zarr.json").read_bytes())
    attributes = metadata["attributes"]["diskbuffer"]
    del attributes["checksum"]
    change(attributes)
    attributes["checksum"] = checksum_of_json(attributes)
    for name in ("zarr.json", "_segments/length/group.json"):
        (path / name).write_text(json.dumps(metadata))


@pytest.fixture
def little() -> Iterator[None]:
    """Have a test take little memory, by what Python and numpy ask for."""
    tracemalloc.start()
    yield
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 1024**3


def refused(path: Path) -> None:
    """Assert that a store is refused in every way, by an error of ours."""
    for ask in (
        lambda: db.ReplayBuffer(path, mode="r"),
        lambda: db.ReplayBuffer(path),
        lambda: db.check(path, progress=False),
        lambda: db.check(path, repair=True, progress=False),
    ):
        with pytest.raises(db.DiskBufferError):
            ask()


@pytest.mark.usefixtures("little")
def test_slots_that_nothing_is_there_for_are_refused_at_once(tmp_path: Path) -> None:
    path = made(tmp_path / "store")
    described(path, lambda attributes: attributes.update(slots=2**31 - 1))
    with pytest.raises(db.errors.NotAStoreError, match=r"2,147,483,647 slots, and the segment table has files for 4,096"):
        db.ReplayBuffer(path, mode="r")
    refused(path)


@pytest.mark.some(1)
@pytest.mark.usefixtures("little")
@pytest.mark.parametrize("depth", [400, 900, 5_000, 1_000_000])
def test_json_that_is_nested_deeply_is_refused_at_once(depth: int, tmp_path: Path) -> None:
    path = made(tmp_path / "store")
    nested = "[" * depth + "]" * depth
    text = '{"attributes": {"diskbuffer": {"format": 1, "checksum": 1, "slots": ' + nested + "}}}"
    for name in ("zarr.json", "_segments/length/group.json"):
        (path / name).write_text(text)
    refused(path)


@pytest.mark.nightly
@pytest.mark.usefixtures("little")
@pytest.mark.parametrize("name", ["zarr.json", "_segments/length/state.json", "_segments/length/group.json"])
def test_json_that_is_far_too_large_is_refused_at_once(name: str, tmp_path: Path) -> None:
    path = made(tmp_path / "store")
    (path / name).write_bytes(b"[" + b"[]," * 20_000_000 + b"1]")
    assert not db.check(path, progress=False).ok
    assert_repaired(path, most=0)


# Beside a writer


@pytest.mark.nightly
@pytest.mark.parametrize("where", ["same process", "another"])
def test_a_check_beside_a_writer_that_does_everything_finds_nothing(where: str, tmp_path: Path) -> None:
    path, done, failed = tmp_path / "store", threading.Event(), list[BaseException]()
    world = Experience(2, episode=6, shape=(20,))
    world.open(path, 100, segment_rows=8).close()

    def write() -> None:
        with world.open(path, segment_rows=8) as buffer:
            feed, turn = Feeder(world, buffer), 0
            while not done.is_set():
                feed.add(7)
                steps = buffer.steps()
                buffer.columns.write(f"value{turn % 3}", steps, steps.astype(np.float32))
                buffer.episodes[:1].set_tag(f"tag {turn}")
                if turn % 5 == 0:
                    buffer.copies.mark("here", replace=True)
                    buffer.flush()
                turn += 1

    def try_to() -> None:
        try:
            write()
        except BaseException as error:  # noqa: BLE001  for the thread that waits
            failed.append(error)

    if where == "another":
        pid = os.fork()
        if pid == 0:
            try_to()
            os._exit(1)
    else:
        thread = threading.Thread(target=try_to)
        thread.start()
    try:
        found = list[str]()
        for _ in range(100):
            report = db.check(path, progress=False)
            found += [] if report.ok else [str(report)]
        assert not found, found[0]
    finally:
        if where == "another":
            os.kill(pid, 9)
            os.waitpid(pid, 0)
        else:
            done.set()
            thread.join()
    assert not failed
    assert db.check(path, progress=False).ok


# What a closed store verifies


@pytest.mark.nightly
def test_a_store_that_was_closed_has_no_complete_segment_whose_rows_are_verified_at_opening(tmp_path: Path) -> None:
    path, n = tmp_path / "store", 200 * 64
    with WORLD.open(path, segment_rows=64) as buffer:
        Feeder(WORLD, buffer).extend(0, n)
    with WORLD.open(path, mode="r") as buffer:
        store = buffer._store
        (slots, _) = store.segments()[0]
        assert [store.verification.is_sealed(int(slot)) for slot in slots] == [True] * (len(slots) - 1) + [False]
    (path / "action" / "c.3").write_bytes(bytes((path / "action" / "c.3").stat().st_size))
    with WORLD.open(path, mode="r") as buffer, pytest.raises(db.CorruptionError, match=r"action/c\.3"):
        buffer.at(buffer.steps()[150:250])
    assert [problem.column for problem in db.check(path, progress=False).problems] == ["action"]
    assert Layout.from_group(json.loads((path / "zarr.json").read_bytes()), "")[0].generation > 0
