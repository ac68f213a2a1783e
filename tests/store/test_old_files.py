"""Older files of the same store put back in the place of newer ones: nothing of the store is missing without a word."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import diskbuffer as db
from diskbuffer.store.system.files import Files
from soak.experience import Experience, Feeder, steps_of

Stores = tuple[Experience, Path, Path]
CASES = {
    "packed": ((34, 33), None),
    "flat ring": ((20,), 120),
}
DIRECTORIES = ("_segments/length", "_segments", "_segments/sealed", "_segments/checksum", "row_checksum", "action", "value")
GROUP, COPY, STATE, LENGTH = "zarr.json", "_segments/length/group.json", "_segments/length/state.json", "_segments/length/c.0.0"


def copied(path: Path, to: Path) -> Path:
    """Copy a store whose sealer may put files in place meanwhile."""
    for _ in range(20):
        shutil.rmtree(to, ignore_errors=True)
        with contextlib.suppress(shutil.Error):
            return Path(shutil.copytree(path, to))
    raise AssertionError("files come and go for ever")


@pytest.fixture(scope="module", params=["packed, closed", "packed, power loss", "flat ring, closed", "flat ring, killed"])
def stores(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Stores:
    """Make a store as it was after a flush, and as it was later, after another; both closed, or as a kill leaves them."""
    kind, how = request.param.split(", ")
    shape, capacity = CASES[kind]
    base, world = tmp_path_factory.mktemp("stores"), Experience(2, shape=shape)
    with world.open(base / "store", capacity, segment_rows=16) as buffer:
        feed = Feeder(world, buffer)
        feed.add(53)
        buffer.columns.write("value", steps_of(buffer), steps_of(buffer).astype(np.float32))
        buffer.episodes[:1].set_tag("first")
        buffer.flush(recompress=True)
        buffer.flush()
        if how != "closed":
            copied(base / "store", base / "old")
    if how == "closed":
        copied(base / "store", base / "old")
    with world.open(base / "store", segment_rows=16) as buffer:
        feed = Feeder(world, buffer)
        feed.add(90)
        buffer.flush(recompress=True)
        buffer.columns.write("value", steps_of(buffer), steps_of(buffer).astype(np.float32) + 1)
        buffer.columns.write("later", steps_of(buffer), np.ones(len(steps_of(buffer)), np.float32))
        over = buffer.episodes[buffer.episodes.ending != "running"]
        over[-2:].set_tag("second")
        buffer.flush()
        if how != "closed":
            copied(base / "store", base / "new")
    if how == "closed":
        copied(base / "store", base / "new")
    if how == "power loss":
        for name in ("old", "new"):
            (base / name / "elsewhere").touch()  # which `on_its_machine` looks for
    return world, base / "old", base / "new"


@pytest.fixture(autouse=True)
def on_its_machine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a store be looked at after another boot, where that is what it is about."""
    if "stores" in request.fixturenames and "power loss" in request.node.callspec.id:
        monkeypatch.setattr(Files, "boot_id", lambda self: "another")


def put_back(old: Path, path: Path, name: str) -> None:
    if (old / name).is_dir():
        shutil.rmtree(path / name)
        shutil.copytree(old / name, path / name)
    else:
        shutil.copy(old / name, path / name)


def told(path: Path, mode: Any) -> dict[str, Any]:
    """Return all that a store tells."""
    with db.ReplayBuffer(path, mode=mode, threads=1) as buffer:
        steps = steps_of(buffer)
        batch = buffer.at(steps)
        later = ("value", "later", "tag") if lost_power(path) else ()  # which may be older ones after a power loss
        found = {name: np.asarray(values).tolist() for name, values in batch.items() if name not in later}
        return found | {"tags": buffer.episodes.tag_names, "columns": list(buffer.columns)}


def names_that_differ(old: Path, new: Path) -> list[str]:
    names = [str(file.relative_to(old)) for file in old.rglob("*") if file.is_file() and "writer." not in file.name]
    return [name for name in names if (new / name).exists() and (old / name).read_bytes() != (new / name).read_bytes()]


def lost_power(path: Path) -> bool:
    return (path / "elsewhere").exists()


def assert_repaired(world: Experience, path: Path, new: Path, *, most: int) -> None:
    """Assert that a repair leaves a store that is whole, and loses `most` steps at most."""
    with db.ReplayBuffer(new, mode="r") as buffer:
        before = steps_of(buffer)
    db.check(path, repair=True, progress=False)
    assert db.check(path, progress=False).ok
    with db.ReplayBuffer(path) as buffer:
        steps = steps_of(buffer)
        assert len(np.setdiff1d(before, steps)) <= most
        for name, values in buffer.at(steps).items():
            if name == "action":
                assert (values.numpy() == world.actions(0, steps // 2) + steps % 2).all()
            if name == "value":
                assert np.isin(values.numpy() - steps, (0, 1)).sum() + (values.numpy() == 0).sum() >= len(steps)
        Feeder(world, buffer).add(40)
        buffer.flush(recompress=True)
    assert db.check(path, progress=False).ok


@pytest.mark.some(3)
def test_an_older_file_put_back_is_told_or_does_no_harm(
    stores: Stores, tmp_path: Path, amount: Callable[[int, int], int]
) -> None:
    _, old, new = stores
    expected, path = told(shutil.copytree(new, tmp_path / "expected"), "r"), tmp_path / "store"
    names = names_that_differ(old, new)
    for name in names[:: amount(8, 1)]:
        shutil.copytree(new, path)
        put_back(old, path, name)
        with contextlib.suppress(db.CorruptionError):
            assert told(path, "r") == expected, name
        shutil.rmtree(path)


@pytest.mark.some(2)
@pytest.mark.parametrize("name", DIRECTORIES)
def test_a_directory_of_older_files_put_back_is_told_and_repaired(name: str, stores: Stores, tmp_path: Path) -> None:
    world, old, new = stores
    expected = told(shutil.copytree(new, tmp_path / "expected"), "r")
    for mode in ("r", "a"):
        path = tmp_path / f"store {mode}"
        shutil.copytree(new, path)
        put_back(old, path, name)
        with contextlib.suppress(db.CorruptionError):
            # A copy that was made of an open store, and is elsewhere now, looks the same: it opens, and a check tells.
            assert told(path, mode) == expected or (lost_power(new) and name in ("_segments", "_segments/length"))
    path = tmp_path / "store"
    shutil.copytree(new, path)
    put_back(old, path, name)
    if name.startswith(("_segments/length", "row", "action")) or name == "_segments":
        assert not db.check(path, progress=False).ok
    assert_repaired(world, path, new, most=0 if name.startswith(("_segments", "value")) else 1000)


@pytest.mark.some(2)
def test_an_older_description_put_back_takes_nothing_with_it(stores: Stores, tmp_path: Path) -> None:
    _, old, new = stores
    expected = told(shutil.copytree(new, tmp_path / "expected"), "r")
    for name in (GROUP, COPY):
        path = tmp_path / name.replace("/", " ")
        shutil.copytree(new, path)
        put_back(old, path, name)
        report = db.check(path, progress=False)
        assert any(str(problem.path).endswith("zarr.json") and "older" in problem.what for problem in report.problems), str(
            report
        )
        assert told(path, "r") == expected
        assert told(path, "a") == expected
        assert db.check(path, progress=False).ok
        put_back(old, path, name)
        assert db.check(path, repair=True, progress=False).dropped == 0
        assert db.check(path, progress=False).ok
        assert told(path, "r") == expected


def test_an_older_description_and_its_older_copy_are_told(stores: Stores, tmp_path: Path) -> None:
    world, old, new = stores
    path = tmp_path / "store"
    shutil.copytree(new, path)
    put_back(old, path, GROUP)
    put_back(old, path, COPY)
    for mode in ("r", "a"):
        with pytest.raises(db.CorruptionError, match=r"zarr\.json.*group\.json.*older"):
            db.ReplayBuffer(path, mode=mode)
    assert not db.check(path, progress=False).ok
    assert_repaired(world, path, new, most=0)


@pytest.mark.some(4)
@pytest.mark.parametrize("name", [LENGTH, STATE, "_segments/length"])
def test_an_older_table_of_lengths_put_back_after_a_flush_is_told(name: str, stores: Stores, tmp_path: Path) -> None:
    world, old, new = stores
    path = tmp_path / "store"
    shutil.copytree(new, path)
    put_back(old, path, name)
    if name == LENGTH or not lost_power(new):
        for mode in ("r", "a"):
            with pytest.raises(db.CorruptionError, match="_segments"):
                db.ReplayBuffer(path, mode=mode)
    assert not db.check(path, progress=False).ok
    assert_repaired(world, path, new, most=0)


@pytest.mark.some(2)
def test_a_store_that_went_back_to_a_mark_is_not_older(stores: Stores, tmp_path: Path) -> None:
    world, _, new = stores
    path = tmp_path / "store"
    shutil.copytree(new, path)
    with db.ReplayBuffer(path) as buffer:
        buffer.copies.mark("here")
        Feeder(world, buffer).add(40)
        buffer.columns.write("last", steps_of(buffer)[:1], np.ones(1, np.float32))
        buffer.copies.snapshot(tmp_path / "snapshot")
    for _ in range(2):
        with db.ReplayBuffer(path, mark="here") as buffer:
            assert "last" not in buffer.columns
            Feeder(world, buffer).add(10)
    for there in (path, tmp_path / "snapshot"):
        assert db.check(there, progress=False).ok
        for mode in ("r", "a"):
            db.ReplayBuffer(there, mode=mode).close()
