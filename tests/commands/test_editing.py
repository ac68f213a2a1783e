"""The commands that edit stores, as users call them."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import diskbuffer as db
from diskbuffer.commands.cli import main
from tests.editing import stores


class Told:
    """What a command said."""

    def __init__(self, capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> None:
        capsys.readouterr()
        self.code = main([str(argument) for argument in arguments])
        self.out, self.err = capsys.readouterr()
        assert "Traceback" not in self.out + self.err


@pytest.fixture
def store(tmp_path: Path) -> Path:
    with db.ReplayBuffer(tmp_path / "store", columns=stores.COLUMNS["frames"]) as buffer:
        for n in range(6):
            stores.add_episode(buffer, n + 5, np.random.default_rng(n), "terminated" if n % 2 else "truncated")
    return tmp_path / "store"


def lengths(path: Path) -> list[int]:
    with db.ReplayBuffer(path, mode="r") as buffer:
        return [int(n) for n in buffer.episodes.length]


def test_each_command_makes_its_store(store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def run(*arguments: str | Path) -> None:
        told = Told(capsys, *arguments)
        assert told.code == 0, told.err
        assert str(tmp_path) in told.out or "episode" in told.out

    run("tag", store, "long", "--where", "length > 7")
    run("tag", store, "--remove", "--where", "length == 10")
    options = [
        "--codec",
        "obs=zstd:1",
        "--chunk-rows",
        "2",
        "--capacity",
        "100",
        "--columns",
        "obs",
        "--columns",
        "action",
        "--quiet",
    ]
    run("copy", store, tmp_path / "copy", "--where", "tag == 'long'", "--frame-stack", "2", *options)
    assert lengths(tmp_path / "copy") == [8, 9]
    with db.ReplayBuffer(tmp_path / "copy", mode="r", frame_stack=2, chunk_rows=2) as buffer:
        assert buffer.columns["obs"].codec == "zstd:1"
        assert buffer.capacity == 100
        assert "skill" not in buffer.columns
    run("copy", tmp_path / "copy", tmp_path / "all", "--capacity", "all")
    with db.ReplayBuffer(tmp_path / "all", mode="r") as buffer:
        assert buffer.capacity is None
    run("copy", store, tmp_path / "e", "--where", "length < 7", "--quiet")
    run("copy", store, tmp_path / "f", "--where", "not length < 7", "--quiet")
    assert (lengths(tmp_path / "e"), lengths(tmp_path / "f")) == ([5, 6], [7, 8, 9, 10])
    run("merge", tmp_path / "e", tmp_path / "f", store, tmp_path / "merged", "--quiet")
    assert lengths(tmp_path / "merged") == [5, 6, 7, 8, 9, 10] * 2
    run("copy", store, tmp_path / "renamed", "--rename", "skill=option", "--rename", "obs=obs/pixels", "--quiet")
    with db.ReplayBuffer(tmp_path / "renamed", mode="r") as buffer:
        assert {"option", "obs/pixels"} <= set(buffer.columns)
        assert not {"skill", "obs"} & set(buffer.columns)


def test_what_is_wrong_is_told_in_a_sentence(store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    new = tmp_path / "new"
    wrong: dict[str, list[str | Path]] = {
        "COLUMN=CODEC": ["copy", store, new, "--codec", "obs"],
        "a number of steps, or all": ["copy", store, new, "--capacity", "many"],
        "no such episode": ["copy", store, new, "--where", "length > 100"],
        "two or more stores": ["merge", store, new],
        "give a tag, or --remove": ["tag", store],
        "give --where CONDITION": ["tag", store, "good"],
        "OLD=NEW": ["copy", store, new, "--rename", "skill"],
        "given twice for skill": ["copy", store, new, "--rename", "skill=a", "--rename", "skill=b"],
        "no column": ["copy", store, new, "--rename", "none=some"],
        "already": ["copy", store, tmp_path / "full", "--where", "length > 1"],
    }
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    for message, arguments in wrong.items():
        told = Told(capsys, *arguments)
        assert told.code == 2
        assert message in told.err
    assert sorted(file.name for file in tmp_path.iterdir()) == ["full", "store"]


@pytest.mark.nightly
def test_the_documentations_code_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = Path(__file__).parents[2] / "docs" / "editing.md"
    (code,) = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "editing.md", "exec"), {})
    assert lengths(tmp_path / "runs" / "long") == [40, 60]
    assert lengths(tmp_path / "runs" / "short") == [5]


def test_tagging_beside_a_writer_says_who_can(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with db.ReplayBuffer(store, mode="r+"):
        told = Told(capsys, "tag", store, "good", "--all")
    assert told.code == 2
    assert "call set_tag of buffer.episodes there" in told.err
    assert "mode=" not in told.err
    assert Told(capsys, "tag", store, "good", "--all").code == 0
