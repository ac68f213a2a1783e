"""Other names for columns, and tags."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import diskbuffer as db
from diskbuffer import editing
from tests.editing import stores


@pytest.mark.some(1)
@pytest.mark.parametrize(
    ("kind", "old", "name"),
    [("dict", "obs/camera", "obs/wrist%20camera"), ("dict", "action/move", "action/velocity"), ("frames", "obs", "obs/pixels")],
)
def test_a_renamed_column_has_the_same_values(kind: str, old: str, name: str, tmp_path: Path) -> None:
    made = stores.make(tmp_path / "store", 25, columns=stores.COLUMNS[kind], frame_stack=3)
    editing.copy(made.path, tmp_path / "new", rename={old: name}, progress=False)
    wanted = stores.episodes(made.path)
    assert wanted
    for one in wanted:
        one[name] = one.pop(old)
    stores.assert_same(stores.episodes(tmp_path / "new"), wanted)
    assert db.check(tmp_path / "new", progress=False).ok


@pytest.mark.nightly
def test_a_derived_column_is_renamed(tmp_path: Path) -> None:
    made = stores.make(tmp_path / "store", 11, columns=stores.COLUMNS["vectors"])
    with db.ReplayBuffer(made.path) as buffer:
        buffer.columns.write("value", buffer.steps(), np.arange(len(buffer), dtype=np.float64))
        wanted = len(buffer)
    editing.copy(made.path, tmp_path / "new", rename={"value": "critic"}, progress=False)
    with db.ReplayBuffer(tmp_path / "new", mode="r") as buffer:
        assert "value" not in buffer.columns.derived
        assert buffer.at(buffer.steps(), columns=["critic"])["critic"].tolist() == list(range(wanted))


@pytest.mark.nightly
def test_names_go_with_all_else_that_a_copy_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other options are by the old names. Columns may change places, also after a copy that left them was interrupted."""
    alike = {"left": db.Column((), "int8"), "right": db.Column((), "int8")}
    made = stores.make(tmp_path / "store", 25, columns={**stores.COLUMNS["dict"], **alike}, capacity=None)
    options: dict[str, Any] = {"codec": {"obs/camera": "zstd:3"}, "where": "length > 3", "progress": False}
    options["columns"] = ["obs/camera", "action/grip", "left", "right"]
    with monkeypatch.context() as patched:
        patched.setattr(db.ReplayBuffer, "flush", interrupted)
        with pytest.raises(KeyboardInterrupt):
            editing.copy(made.path, tmp_path / "new", rename={"obs/camera": "obs/wrist"}, **options)
    names = {"obs/camera": "obs/wrist", "left": "right", "right": "left"}
    with pytest.raises(db.InputError, match="or begin anew: restart=True"):
        editing.copy(made.path, tmp_path / "new", rename=names, **options)
    editing.copy(made.path, tmp_path / "new", rename=names, restart=True, **options)
    wanted = [one for one in stores.episodes(made.path) if len(one["reward"]) > 3]
    assert wanted
    for one in wanted:
        for gone in ("obs/arm%20joints", "action/move", "priority", "advantage"):
            one.pop(gone, None)
        one.update({name: one.pop(old) for old, name in names.items()})
    stores.assert_same(stores.episodes(tmp_path / "new"), wanted)
    with db.ReplayBuffer(tmp_path / "new", mode="r") as buffer:
        assert buffer.columns["obs/wrist"].codec == "zstd:3"


def interrupted(*_: Any, **__: Any) -> None:
    raise KeyboardInterrupt


@pytest.mark.some(2)
@pytest.mark.parametrize(
    ("old", "name", "message"),
    [
        ("none", "x", "no column 'none'"),
        ("reward", "score", "every store has"),
        ("action/move", "terminated", "every store has"),
        ("action/move", "tag", "every store has"),
        ("action/move", "reward/x", "every store has"),
        ("obs/camera", "camera", "observations are"),
        ("action/move", "obs/move", "observations are"),
        ("action/move", "action/grip", "2 columns"),
        ("action/move", "action", "inside another"),
        ("action/move", "_hidden", "identifier"),
        ("value", "a/b", "nested"),
    ],
)
def test_names_that_cannot_be_are_refused(old: str, name: str, message: str, tmp_path: Path) -> None:
    with db.ReplayBuffer(tmp_path / "store", columns=stores.COLUMNS["dict"]) as buffer:
        stores.add_episode(buffer, 3, np.random.default_rng(0), "truncated")
        buffer.columns.write("value", buffer.steps(), np.zeros(3))
    with pytest.raises(db.errors.SchemaError, match=message):
        editing.copy(tmp_path / "store", tmp_path / "new", rename={old: name}, progress=False)
    assert [file.name for file in tmp_path.iterdir()] == ["store"]


def test_tags_are_given_in_place(tmp_path: Path) -> None:
    with db.ReplayBuffer(tmp_path / "store", columns=stores.COLUMNS["vectors"]) as buffer:
        for n in range(5):
            stores.add_episode(buffer, n + 1, np.random.default_rng(n), "truncated" if n < 4 else "running")
    assert editing.tag(tmp_path / "store", "long", "length > 2") == 2  # the last one is not over
    assert editing.tag(tmp_path / "store", "all") == 4
    assert editing.tag(tmp_path / "store", None, "length == 1") == 1
    with db.ReplayBuffer(tmp_path / "store") as buffer:
        assert buffer.episodes.tag.tolist() == ["", "all", "all", "all", ""]
        with pytest.raises(db.LockedError):
            editing.tag(tmp_path / "store", "x")
    for tag, where, message in (
        ("x", "length > 100", "for which that holds"),
        ("x", "ending == 'running'", "over"),
        ("", None, "a tag"),
    ):
        with pytest.raises(db.InputError, match=message):
            editing.tag(tmp_path / "store", tag, where)
