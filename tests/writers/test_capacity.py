"""The capacity of each writer, and writers that nobody comes back to."""

from __future__ import annotations

import itertools
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import diskbuffer as db
from diskbuffer import editing
from diskbuffer.commands.cli import main
from diskbuffer.store.copies.backup import back_up
from diskbuffer.store.system.files import Files
from diskbuffer.writers import marking
from tests.support.specimens import adopt
from tests.writers.test_multi_writer import Writer


def filled(root: Path, name: str, capacity: int | None, numbers: itertools.count[int]) -> Writer:
    writer = Writer(root, name, 1, (5,), capacity, 1, segment_rows=32)
    for _ in range(20):
        writer.extend(0, 30, numbers, ends=True)
    return writer


def test_each_writer_keeps_its_own_newest_steps(tmp_path: Path) -> None:
    root, numbers = tmp_path / "all", itertools.count()
    writers = [filled(root, f"w{n}", capacity, numbers) for n, capacity in enumerate((128, 256, None))]  # the last as the first
    with db.ReplayBuffer(root, mode="r") as every:
        for n, (writer, capacity) in enumerate(zip(writers, (128, 256, 128), strict=True)):
            assert writer.buffer.capacity == capacity
            assert capacity <= len(writer.buffer) < capacity + 2 * 32
            newest = writer.buffer.at(writer.buffer.steps())["action"]
            assert newest.tolist() == list(range(600 * (n + 1) - len(newest), 600 * (n + 1)))
        assert len(every) == sum(len(writer.buffer) for writer in writers)
        assert every.capacity == every.stats()["capacity"] == 512
        writers[0].buffer.close()
        writers[1].extend(0, 1000, numbers, ends=True)  # which takes nothing of one that is gone
        every.refresh()
        with db.ReplayBuffer(root, mode="r", writer="w0") as gone:
            assert len(every) == len(gone) + sum(len(writer.buffer) for writer in writers[1:])
        writers[2].buffer.resize(None)
        writers[2].extend(0, 1000, numbers, ends=True)
        every.refresh()
        assert every.stats()["capacity"] is None
        assert len(writers[2].buffer) > 1000
    for writer in writers:
        writer.buffer.close()
    with pytest.raises(db.errors.SchemaError, match="stored 256, asked for 128"):
        db.ReplayBuffer(root, 128, writer="w1")
    with db.ReplayBuffer(root, writer="w2") as again:
        assert again.capacity is None


def test_a_writer_that_was_removed_is_gone_for_good(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root, numbers = tmp_path / "all", itertools.count()
    first, second = (filled(root, name, None, numbers) for name in ("first", "second"))
    with db.ReplayBuffer(root, mode="r") as every, db.ReplayBuffer(root, mode="r") as learner:
        learner.columns.write("score", learner.steps(), np.ones(1200))
        of_first, of_second = every.steps()[:600], every.steps()[600:]
        with pytest.raises(db.LockedError, match="being written to"):
            db.remove_writer(root, "first")
        first.buffer.close()
        db.remove_writer(root, "first")
        assert not (root / "first").exists()
        learner.refresh()
        learner.flush()
        again = filled(root, "first", None, numbers)  # of the same name
        for reader in (every, learner):
            reader.refresh()
            assert len(reader) == 1200
            assert not set(reader.steps().tolist()) & set(of_first.tolist())
            assert set(reader.steps().tolist()) > set(of_second.tolist())
            assert sorted(reader.at(reader.steps())["action"].tolist()) == list(range(600, 1800))
            with pytest.raises(db.InputError, match="no step"):
                reader.at(of_first)
        assert learner.at(learner.steps(), columns=["score"])["score"].sum() == 600
    assert (root / "_shared/columns/score/second").is_dir()
    again.buffer.close()
    assert main(["remove-writer", str(root), "first"]) == 0
    assert not (root / "_shared/columns/score/first").exists()
    assert main(["remove-writer", str(root), "first"]) == 2
    assert "has no writer 'first'; it has second" in capsys.readouterr().err
    with pytest.raises(db.errors.NotAStoreError, match="no stores of several writers"):
        db.remove_writer(root / "second", "first")
    second.buffer.close()
    with db.ReplayBuffer(root, mode="r") as every:
        assert sorted(every.at(every.steps())["action"].tolist()) == list(range(600, 1200))
        every.copies.snapshot(tmp_path / "copy")
        assert every.check(progress=False).ok
    with db.ReplayBuffer(tmp_path / "copy", mode="r") as copy:
        assert len(copy) == 600


KILLED = """
import os, shutil, sys
import diskbuffer as db
from diskbuffer.writers import removing
from tests.support.specimens import adopt
setattr(shutil if sys.argv[2] == "rmtree" else removing, sys.argv[2], lambda *_, **how: os._exit(9))
db.remove_writer(sys.argv[1], "first")
"""


@pytest.mark.parametrize("call", ["discard", "rmtree"])
def test_what_a_kill_left_of_a_writer_that_was_being_removed_is_no_writers(call: str, tmp_path: Path) -> None:
    root, numbers = tmp_path / "all", itertools.count()
    filled(root, "first", None, numbers).buffer.close()
    assert subprocess.run([sys.executable, "-c", KILLED, str(root), call], check=False).returncode == 9
    assert (root / "first").is_dir() == (call == "discard")
    with db.ReplayBuffer(root, mode="r") as every:
        assert len(every) == 0
        again = filled(root, "first", None, numbers)
        every.refresh()
        assert sorted(every.at(every.steps())["action"].tolist()) == list(range(600, 1200))
        again.buffer.close()
        assert not (root / "_shared/removed").exists()


def test_a_writer_that_is_removed_beside_readers_is_to_them_evicted(tmp_path: Path) -> None:
    root, numbers = tmp_path / "all", itertools.count()
    for name in ("first", "second"):
        filled(root, name, None, numbers).buffer.close()
    readers = [db.ReplayBuffer(root, mode="r", seed=0) for _ in range(4)]
    batches = iter(readers[3].loader(16))
    next(batches)
    evicted = readers[0].steps()[:600]
    db.remove_writer(root, "first")
    assert set(readers[0].sample(64)["action"].tolist()) <= set(range(600, 1200))
    assert len(readers[1].draw(64)["steps"]) == 64
    assert len(readers[2].episodes) == 20
    with pytest.raises(db.InputError, match="no step"):
        readers[0].at(evicted)
    for _ in range(20):
        next(batches)
    for reader in readers:
        reader.close()


@pytest.mark.parametrize("copied", [0, 1])
def test_a_writer_that_is_removed_while_a_mark_is_made_is_not_in_it(
    copied: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, numbers = tmp_path / "all", itertools.count()
    for name in ("first", "second"):
        filled(root, name, None, numbers).buffer.close()
    copy, link = back_up, Files.link

    def linked(files: Files, *rest: Any) -> bool:
        remove()
        return link(files, *rest)

    def removed_meanwhile(source: Files, files: Files) -> None:
        if copied:
            monkeypatch.setattr(Files, "link", linked)
        else:
            remove()
        copy(source, files)

    def remove() -> None:
        monkeypatch.setattr(Files, "link", link)
        if (root / "first").exists():
            db.remove_writer(root, "first")

    monkeypatch.setattr(marking, "back_up", removed_meanwhile)
    with db.ReplayBuffer(root, mode="r") as learner:
        learner.copies.mark("m")
    with db.ReplayBuffer(root, mode="r", mark="m") as marked:
        assert len(marked) == 600
        assert marked.check(progress=False).ok


@pytest.mark.parametrize("there", ["zarr.json", "file", "full", "copied"])
def test_a_name_at_which_something_else_is_becomes_no_writer(there: str, tmp_path: Path) -> None:
    root = tmp_path / "all"
    filled(root, "first", None, itertools.count()).buffer.close()
    (root / "file").touch()
    (root / "full/of").mkdir(parents=True)
    shutil.copytree(root / "first", root / "copied")
    with pytest.raises(db.errors.NotAStoreError):
        db.ReplayBuffer(root, writer=there)
    with db.ReplayBuffer(root, mode="r") as every:
        assert len(every) == 600


def test_stores_are_written_to_where_they_are_whole_alone(tmp_path: Path) -> None:
    root, one = tmp_path / "all", tmp_path / "one"
    writer = filled(root, "first", None, itertools.count())
    with db.ReplayBuffer(root, mode="r") as every:
        every.copies.mark("m")
        every.copies.snapshot(tmp_path / "made")
    shutil.copytree(root / "first", one)
    adopt(one)
    with db.ReplayBuffer(one) as buffer:
        buffer.copies.mark("m")
    kept = root / "_shared/marks/m"
    marks: list[tuple[Path, dict[str, Any]]] = [
        (one / "_segments/length/marks/m", {}),
        (kept / "first", {}),
        (kept, {"writer": "first"}),
        (kept, {"writer": "actor-*"}),
    ]
    for path, how in marks:
        with pytest.raises(db.errors.ReadOnlyError, match="in the marks of"):
            db.ReplayBuffer(path, **how)
    with pytest.raises(db.errors.ReadOnlyError, match="in the marks of"):
        db.remove_writer(kept, "first")
    for place in (root / "x", root / "_shared/x", root / "first/x", one / "x"):
        with pytest.raises(db.InputError, match="is inside of"):
            db.ReplayBuffer(place, columns={"obs": db.Column((5,), "uint8"), "action": db.Column((), "int64")})
        with pytest.raises(db.InputError, match="is inside of"):
            writer.buffer.copies.snapshot(place)
        with pytest.raises(db.InputError, match="is inside of"):
            editing.copy(one, place, where="length > 1", progress=False)
    writer.buffer.close()
    with db.ReplayBuffer(root / "first") as by_its_path:
        assert len(by_its_path) == 600
    with db.ReplayBuffer(root, mode="r", mark="m") as marked:
        assert len(marked) == 600
