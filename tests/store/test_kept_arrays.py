"""Arrays that are kept with marks and snapshots: they come back as they were, and go where the steps go."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import diskbuffer as db
from diskbuffer import editing
from diskbuffer.store.copies.arrays import FILE
from diskbuffer.store.system.files import Files

COLUMNS = {"obs": db.Column((), "int64"), "action": db.Column((), "int64")}
ARRAYS: dict[str, Any] = {
    "mean": np.arange(12, dtype=">f8").reshape(3, 4)[:, ::2],
    "count": 7,
    "none": np.zeros((0, 3), np.uint8),
    "flags": np.array([True, False]),
    "one/π": np.float32(1.5),
}


def assert_equal(found: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        wanted = np.asarray(value)
        assert found[name].dtype == wanted.dtype.newbyteorder("<")
        np.testing.assert_array_equal(found[name], wanted)


def extend(buffer: db.ReplayBuffer, n: int) -> None:
    buffer.extend(np.arange(n + 1), np.arange(n), np.ones(n))


def test_arrays_go_where_the_mark_goes(tmp_path: Path) -> None:
    store = tmp_path / "store"
    with db.ReplayBuffer(store, columns=COLUMNS) as buffer:
        extend(buffer, 10)
        buffer.copies.mark("with", arrays=ARRAYS)
        extend(buffer, 10)
        buffer.copies.mark("without")
        assert buffer.copies.arrays() == buffer.copies.arrays("without") == {}
        assert_equal(buffer.copies.arrays("with"), ARRAYS)
        buffer.copies.snapshot(tmp_path / "snapshot", arrays={"other": 1})
        with pytest.raises(db.InputError, match="no mark 'never'"):
            buffer.copies.arrays("never")
    with db.ReplayBuffer(tmp_path / "snapshot", mode="r") as buffer:
        assert_equal(buffer.copies.arrays(), {"other": 1})
    with db.ReplayBuffer(store, mark="with", mode="r") as buffer:
        assert_equal(buffer.copies.arrays(), ARRAYS)
    with db.ReplayBuffer(store, mark="with") as buffer:
        assert len(buffer) == 10
        assert_equal(buffer.copies.arrays(), ARRAYS)
        buffer.copies.snapshot(tmp_path / "second")
    with db.ReplayBuffer(store, mode="r") as buffer:
        buffer.copies.snapshot(tmp_path / "third")
    editing.copy(store, tmp_path / "fourth", where="length > 0", progress=False)
    for copied in ("second", "third", "fourth"):
        with db.ReplayBuffer(tmp_path / copied) as buffer:
            assert_equal(buffer.copies.arrays(), ARRAYS)
    with db.ReplayBuffer(store, mark="without") as buffer:
        assert buffer.copies.arrays() == {}
        assert buffer.check(progress=False).ok


def test_arrays_of_several_writers_marks(tmp_path: Path) -> None:
    root = tmp_path / "all"
    with db.ReplayBuffer(root, columns=COLUMNS, writer="actor") as writer:
        extend(writer, 10)
        with db.ReplayBuffer(root, mode="r") as learner:
            learner.copies.mark("here", arrays=ARRAYS)
            assert_equal(learner.copies.arrays("here"), ARRAYS)
            learner.copies.snapshot(tmp_path / "snapshot", arrays=ARRAYS)
    for place, mark in ((root, "here"), (tmp_path / "snapshot", None)):
        with db.ReplayBuffer(place, mode="r", mark=mark) as learner:
            assert_equal(learner.copies.arrays(), ARRAYS)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ([1], "must be a mapping of names to arrays, found list"),
        ({1: 2}, "must be a mapping of names to arrays"),
        ({"a": object()}, r"arrays\['a'\] must be an array of numbers, found dtype object; nothing is pickled"),
        ({"a": "text"}, "must be an array of numbers"),
        ({"a": [[1], [1, 2]]}, r"arrays\['a'\]: expected an array or a tensor of numbers, found list"),
        ({"a": np.zeros(2**20 + 1)}, "at most 8,388,608 bytes together, found 8,388,616"),
    ],
)
def test_what_is_no_array_is_refused(arrays: Any, message: str, tmp_path: Path) -> None:
    with db.ReplayBuffer(tmp_path / "store", columns=COLUMNS) as buffer:
        with pytest.raises(db.InputError, match=message):
            buffer.copies.mark("here", arrays=arrays)
        with pytest.raises(db.InputError, match=message):
            buffer.copies.snapshot(tmp_path / "snapshot", arrays=arrays)
        assert buffer.copies.marks == ()
    assert not (tmp_path / "snapshot").exists()


def test_damaged_arrays_are_an_error(tmp_path: Path) -> None:
    with db.ReplayBuffer(tmp_path / "store", columns=COLUMNS) as buffer:
        buffer.copies.snapshot(tmp_path / "snapshot", arrays={"a": np.arange(3)})
    file = tmp_path / "snapshot" / FILE
    whole = json.loads(file.read_text())
    for wrong in (b"", b"[]", b"{}", file.read_bytes().replace(b'"a"', b'"b"'), json.dumps({**whole, "checksum": 0}).encode()):
        Files(tmp_path / "snapshot").replace_contents(FILE, wrong)
        with (
            db.ReplayBuffer(tmp_path / "snapshot", mode="r") as buffer,
            pytest.raises(db.CorruptionError, match="is damaged"),
        ):
            buffer.copies.arrays()
    with pytest.raises(db.CorruptionError, match="is damaged"), db.ReplayBuffer(tmp_path / "snapshot", mode="r") as buffer:
        buffer.copies.snapshot(tmp_path / "another")
    assert not (tmp_path / "another").exists()
    assert [problem.path.name for problem in db.check(tmp_path / "snapshot", progress=False).problems] == ["arrays.json"]
    assert not db.check(tmp_path / "snapshot", repair=True, progress=False).ok
    assert db.check(tmp_path / "snapshot", progress=False).ok
    with db.ReplayBuffer(tmp_path / "snapshot", mode="r") as buffer:
        assert buffer.copies.arrays() == {}
