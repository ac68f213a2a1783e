"""Links: those in a store are refused, as it may be a stranger's; those above it are the user's own."""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import diskbuffer as db
from soak import links
from soak.workers import Pool
from tests.support.experience import Experience, Feeder


@pytest.fixture
def store(tmp_path: Path) -> Path:
    world = Experience()
    with world.open(tmp_path / "store", segment_rows=16) as buffer:
        Feeder(world, buffer).add(50)
    return tmp_path / "store"


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    """A directory of the victim's, with all kinds of names."""
    place = tmp_path / "mine"
    for name in (".config", ".git", ".thesis.old"):
        (place / name).mkdir(parents=True)
        (place / name / "file").write_text("mine")
    for name in ("c.0", "photo.png", "x.tmp", "zarr.json", ".bashrc"):
        (place / name).write_text("mine")
    return place


def untouched(place: Path, work: Callable[[], Any]) -> None:
    """Do something; nothing in a directory may be opened or changed."""
    before, watch = links.contents(place), links.Watch(place)
    try:
        with pytest.raises(db.CorruptionError, match="link"):
            work()
        assert watch.seen() == []
    finally:
        watch.close()
    assert links.contents(place) == before


@pytest.mark.some(2)
@pytest.mark.parametrize("name", [links.MARKS, "_segments/length/limiter", "obs/c.99.0", "action/more", "another"])
def test_a_check_tells_of_every_link(name: str, store: Path, mine: Path) -> None:
    (store / name).symlink_to(mine)
    report = db.check(store, progress=False)
    assert [(problem.path, "link" in problem.what) for problem in report.problems] == [(store / name, True)]
    (store / name).unlink()
    assert db.check(store, progress=False).ok


def test_a_check_tells_of_links_within_marks(store: Path, mine: Path) -> None:
    with db.ReplayBuffer(store) as buffer:
        buffer.copies.mark("mark")
    (store / links.MARKS / "mark" / "action" / "mine").symlink_to(mine)
    report = db.check(store, progress=False)
    assert [problem.path for problem in report.problems] == [store / links.MARKS / "mark" / "action" / "mine"]


def test_a_check_of_several_writers_tells_of_links_beside_their_stores(tmp_path: Path, mine: Path) -> None:
    columns = {"obs": db.Column(), "action": db.Column()}
    with db.ReplayBuffer(tmp_path / "all", 100, columns=columns, writer="one") as buffer:
        buffer.extend(obs=np.zeros(11), action=np.zeros(10), reward=np.zeros(10))
    with db.ReplayBuffer(tmp_path / "all", mode="r") as buffer:
        assert buffer.check(progress=False).ok
        (tmp_path / "all" / "_shared" / "marks").symlink_to(mine)
        report = buffer.check(progress=False)
    assert [problem.path for problem in report.problems] == [tmp_path / "all" / "_shared" / "marks"]


@pytest.mark.some(2)
@pytest.mark.parametrize("how", ["open", "open to go back", "read a mark", "mark", "repair", "marks"])
def test_a_directory_of_marks_that_is_a_link_is_not_followed(how: str, store: Path, mine: Path) -> None:
    def make_a_mark() -> None:
        with db.ReplayBuffer(store) as buffer:
            (store / links.MARKS).symlink_to(mine)
            buffer.copies.mark("new")

    if how != "mark":
        shutil.copytree(store, mine / "one")
        (store / links.MARKS).symlink_to(mine)
    works: dict[str, Callable[[], Any]] = {
        "open": lambda: db.ReplayBuffer(store),
        "open to go back": lambda: db.ReplayBuffer(store, mark="one"),
        "read a mark": lambda: db.ReplayBuffer(store, mark="one", mode="r"),
        "mark": make_a_mark,
        "repair": lambda: (db.check(store, repair=True, progress=False), db.ReplayBuffer(store)),
        "marks": lambda: db.marks(store),
    }
    untouched(mine, works[how])


@pytest.mark.parametrize("name", ["value", "priority"])
def test_a_column_that_is_to_be_and_is_a_link_is_not_emptied(name: str, store: Path, mine: Path) -> None:
    (store / name).symlink_to(mine)
    with db.ReplayBuffer(store) as buffer:

        def write() -> None:
            if name == "value":
                buffer.columns.write("value", np.arange(3), np.ones(3))
            else:
                buffer.sample(4, db.Prioritized(seed=0))

        untouched(mine, write)
        assert len(buffer.sample(8)["steps"]) == 8
        buffer.columns.write("another", np.arange(3), np.ones(3))


@pytest.mark.nightly
def test_whatever_name_in_a_store_leads_elsewhere_nothing_there_is_touched(tmp_path: Path) -> None:
    with Pool("soak.links", tmp_path, 1, timeout=60.0) as pool:
        row, cases = links.campaign(pool, 40, 0)
        assert (row.done, row.broken) == (40, 0), str(row)
        assert {answer["class"] for _, answer in cases} == {"refused", "read"}


def test_what_watches_sees_what_is_opened_made_and_removed(mine: Path) -> None:
    watch = links.Watch(mine)
    (mine / "c.0").read_text()
    assert any("c.0 opened" in told for told in watch.seen())
    (mine / ".git" / "file").unlink()
    assert any("removed" in told for told in watch.seen())
    list(mine.iterdir())
    assert watch.seen()
    watch.close()


# Links of the user's own


@pytest.mark.some(1)
@pytest.mark.parametrize("where", ["above", "far above", "the path", "to nothing", "relative"])
def test_links_above_a_store_are_the_users_own(where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, world = tmp_path / "elsewhere", Experience()
    (real / "a" / "b").mkdir(parents=True)
    runs = tmp_path / "runs"
    match where:
        case "above":
            runs.symlink_to(real)
            path = runs / "store"
        case "far above":
            runs.symlink_to(real)
            path = runs / "a" / "b" / "c" / "store"
        case "the path":
            runs.symlink_to(real / "a" / "b")
            path = runs
        case "to nothing":
            runs.symlink_to(real / "new")
            path = runs
        case _:
            monkeypatch.chdir(tmp_path)
            runs.symlink_to("elsewhere/a")
            path = Path("runs/store")
    with world.open(path, segment_rows=16) as buffer:
        feed = Feeder(world, buffer)
        feed.add(40)
        buffer.copies.mark("one")
        buffer.columns.write("value", np.arange(3), np.ones(3))
        assert buffer.path == path.absolute()
        copy = tmp_path / "elsewhere" / "copy" if where == "the path" else path.with_name("copy")
        buffer.copies.snapshot(copy)
        other = pickle.loads(pickle.dumps(buffer))
        with other:
            assert world.check(other) == 40
        feed.add(5)
        buffer.flush(recompress=True)
        assert "obs" in zarr.open_group(buffer.path, mode="r")
    assert path.resolve() != path.absolute()
    assert db.check(path, progress=False).ok
    with db.ReplayBuffer(copy) as buffer:
        assert world.check(buffer) == 40
    with db.ReplayBuffer(path, mark="one") as buffer:
        assert world.check(buffer) == 40
    with db.ReplayBuffer(path, mode="r") as buffer:
        assert world.check(buffer) == 40
        assert buffer.copies.marks == ("one",)
    assert not list(tmp_path.rglob("*.new"))


def test_a_snapshot_may_be_made_where_a_link_leads_to_an_empty_directory(tmp_path: Path) -> None:
    world = Experience()
    (tmp_path / "real").mkdir()
    (tmp_path / "copy").symlink_to(tmp_path / "real")
    with world.open(tmp_path / "store") as buffer:
        Feeder(world, buffer).add(20)
        buffer.copies.snapshot(tmp_path / "copy")
    with db.ReplayBuffer(tmp_path / "real") as buffer:
        assert world.check(buffer) == 20


def test_a_link_above_that_leads_elsewhere_later_does_not_move_the_writer(tmp_path: Path) -> None:
    world = Experience()
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    (tmp_path / "latest").symlink_to("one")
    with world.open(tmp_path / "latest" / "store", segment_rows=16) as buffer:
        feed = Feeder(world, buffer)
        feed.add(30)
        (tmp_path / "latest").unlink()
        (tmp_path / "latest").symlink_to("two")
        feed.add(100)
        buffer.flush()
    with db.ReplayBuffer(tmp_path / "one" / "store") as buffer:
        assert world.check(buffer) == 130
    assert list((tmp_path / "two").iterdir()) == []
