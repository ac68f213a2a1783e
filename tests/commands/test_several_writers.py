"""Commands on a directory of several writers' stores."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

import diskbuffer as db
from diskbuffer.inspect.page.app import create_app
from diskbuffer.inspect.page.watched import Watched
from tests.commands.test_commands import Told
from tests.inspect.stores import COLUMNS, frames_of


def add(buffer: db.ReplayBuffer, number: int, length: int, env: int) -> None:
    ends = np.arange(length) == length - 1
    columns: dict[str, Any] = {"obs": frames_of(number, length), "action": np.full(length, number), "reward": np.ones(length)}
    buffer.extend(**columns, terminated=ends, truncated=ends & False, env=env)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    for name, first in (("a", 0), ("b", 10)):
        with db.ReplayBuffer(
            tmp_path / "all", writer=name, columns=COLUMNS, n_envs=2, autoreset="next_step", frame_stack=3
        ) as buffer:
            for n in range(3):
                add(buffer, first + n, 20 + first + n, n % 2)
    return tmp_path / "all"


def test_a_directory_of_several_writers_is_looked_into_as_one(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with db.ReplayBuffer(directory, mode="r") as buffer:
        episodes = buffer.episodes[:]
    rows = Told(capsys, "episodes", directory, "--json").json()
    assert sorted(row["episode"] for row in rows) == sorted(episodes.id.tolist())
    for row in rows:
        shown = Told(capsys, "show", directory, str(row["episode"]), "--json").json()
        assert shown["columns"]["action"] == [shown["columns"]["action"][0]] * row["length"]
        assert row["length"] == 20 + shown["columns"]["action"][0]
    image = directory.parent / "newest.png"
    assert Told(capsys, "show", directory, "--out", image).code == 0
    assert image.stat().st_size > 1000
    stats = Told(capsys, "stats", directory, "--json").json()
    assert stats["looked_at"]["steps"] == sum(row["length"] for row in rows)
    assert stats["endings"] == {"terminated": 6}


@pytest.mark.nightly
def test_damage_of_one_of_several_writers_is_told(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert Told(capsys, "info", directory).code == 0
    table = next((directory / "a" / "_segments" / "length").glob("c*"))
    table.write_bytes(b"\0" * table.stat().st_size)
    told = Told(capsys, "info", directory)
    assert (told.code, "This store is damaged" in told.err, f"Run: diskbuffer check {directory}/a" in told.err) == (1, True, True)
    assert Told(capsys, "info", directory, "--json").code == 1


def test_a_directory_of_several_writers_is_tagged_beside_them(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with db.ReplayBuffer(directory, writer="a", columns=COLUMNS, n_envs=2, autoreset="next_step", frame_stack=3) as writer:
        assert "2 episodes tagged" in Told(capsys, "tag", directory, "long", "--where", "length > 30").out
        add(writer, 3, 25, 1)
    rows = Told(capsys, "episodes", directory, "--where", "tag == 'long'", "--json").json()
    assert sorted(row["length"] for row in rows) == [31, 32]


@pytest.mark.nightly
def test_a_snapshot_of_several_writers_is_another_such_directory(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Told(capsys, "tag", directory, "long", "--where", "length > 30")
    copy = directory.parent / "copy"
    with db.ReplayBuffer(directory, writer="b", columns=COLUMNS, n_envs=2, autoreset="next_step", frame_stack=3) as writer:
        add(writer, 13, 15, 1)
        assert Told(capsys, "snapshot", directory, copy).out.strip() == str(copy)
        add(writer, 14, 15, 1)
    rows = {row["episode"]: row for row in Told(capsys, "episodes", copy, "--json").json()}
    assert len(rows) == 7
    assert sorted(row["length"] for row in rows.values() if row["tag"] == "long") == [31, 32]
    with db.ReplayBuffer(directory, mode="r") as one, db.ReplayBuffer(copy, mode="r") as other:
        for episode in other.episodes:
            assert (one.episode(episode.id)["obs"] == other.episode(episode)["obs"]).all()
    with db.ReplayBuffer(
        copy, writer="b", columns=COLUMNS, n_envs=2, autoreset="next_step", frame_stack=3
    ) as writer:  # it goes on by itself
        add(writer, 15, 15, 0)
    assert len(Told(capsys, "episodes", copy, "--json").json()) == len(Told(capsys, "episodes", directory, "--json").json()) == 8
    assert Told(capsys, "check", copy).code == 0


@pytest.mark.nightly
def test_a_copy_of_several_writers_is_one_store(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert Told(capsys, "copy", directory, directory.parent / "one", "--quiet").code == 0
    with db.ReplayBuffer(directory.parent / "one", mode="r") as buffer:
        assert sorted(buffer.episodes.length.tolist()) == [20, 21, 22, 30, 31, 32]
    line = ("copy", directory, directory.parent / "few", "--capacity", "60", "--quiet")
    assert Told(capsys, *line).code == 0
    with db.ReplayBuffer(directory.parent / "few", mode="r") as buffer:
        assert 40 <= len(buffer) <= 60


def test_the_page_shows_all_writers_as_one(directory: Path) -> None:
    with db.ReplayBuffer(directory, mode="r") as buffer:
        episodes, steps, capacity = buffer.episodes.id, len(buffer), buffer.capacity
        buffer.columns.write("weight", buffer.steps(), np.ones(steps))
        buffer.copies.mark("first")
    watched = Watched(directory)
    with TestClient(create_app(watched), base_url="http://127.0.0.1:8460") as client:
        assert client.get("/api/state").json()["steps"] == steps
        overview = client.get("/api/overview").json()
        assert (overview["summary"]["steps"], overview["summary"]["capacity"]) == (steps, capacity)
        assert overview["summary"]["environments"] == 4
        assert ["marks", "first"] in overview["facts"]
        assert {part["name"]: part["disk_bytes"] for part in overview["columns"]}["weight"] > 0
        rows = client.get("/api/episodes", params={"where": "length > 30"}).json()["rows"]
        assert sorted(row["length"] for row in rows) == [31, 32]
        assert sorted(client.get("/api/timeline").json()["episode"]) == sorted(episodes.tolist())
        for row in rows:
            episode = client.get("/api/episode", params={"id": row["episode"]}).json()
            assert episode["length"] == row["length"]
            picture = client.get("/frame.png", params={"step": episode["start"], "column": "obs", "stack": "1"})
            assert picture.headers["content-type"] == "image/png"
        assert "findings" in client.get("/api/findings").json()
        with db.ReplayBuffer(directory, writer="c") as writer:  # comes while it is shown
            add(writer, 20, 40, 0)
        watched.look(at_once=True)
        assert client.get("/api/overview").json()["summary"]["episodes"] == len(episodes) + 1
