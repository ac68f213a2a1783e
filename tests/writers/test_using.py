"""A directory of several writers, used as one is: opened in every way, described, checked, pickled, forked, taken away."""

from __future__ import annotations

import itertools
import json
import multiprocessing
import pickle
import shutil
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import diskbuffer as db
from diskbuffer.commands.check import check
from diskbuffer.commands.info import info
from diskbuffer.store.format.layout import MULTI_WRITER, checksum_of_json
from diskbuffer.store.system.files import Files
from diskbuffer.writers import description
from tests.writers.test_multi_writer import Writer


@pytest.fixture
def writers(tmp_path: Path) -> Iterator[list[Writer]]:
    found = [Writer(tmp_path / "all", f"w{n}", n + 1, (5,), 1000, 1) for n in range(2)]
    for n, writer in enumerate(found):
        writer.extend(0, 10 + n, itertools.count(100 * n), ends=True)
    yield found
    for writer in found:
        writer.buffer.close()


COLUMNS = {"obs": db.Column((5,), "int32"), "action": db.Column((), "int64")}
REFUSED: list[tuple[type[Exception], str, Callable[[Path], object]]] = [
    (db.InputError, "give writer=NAME", lambda path: db.ReplayBuffer(path)),
    (db.InputError, "give writer=NAME", lambda path: db.ReplayBuffer(path, mode="r+")),
    (db.LockedError, "being written to by", lambda path: db.ReplayBuffer(path / "w0")),
    (db.InputError, "a name of letters", lambda path: db.ReplayBuffer(path, writer="../w0")),
    (db.InputError, "a name of letters", lambda path: db.ReplayBuffer(path, writer="_shared")),
    (db.errors.NotAStoreError, "no store of a writer", lambda path: db.ReplayBuffer(path, writer="other", mode="r")),
    (
        db.errors.SchemaError,
        "obs: stored int32",
        lambda path: db.ReplayBuffer(path, columns=COLUMNS | {"obs": db.Column((6,), "int32")}, writer="other"),
    ),
    (db.errors.SchemaError, "frame_stack", lambda path: db.ReplayBuffer(path, frame_stack=3, writer="other")),
    (
        db.errors.SchemaError,
        "has 2 environments",
        lambda path: db.ReplayBuffer(path, n_envs=3, autoreset="next_step", columns=COLUMNS, writer="w1"),
    ),
    (db.errors.NotAStoreError, "the store of one writer", lambda path: db.ReplayBuffer(path / "w0", writer="other")),
    (db.InputError, "the first has to give", lambda path: db.ReplayBuffer(path.parent / "none", writer="first")),
    (db.InputError, "room for 1024", lambda path: db.ReplayBuffer(path, n_envs=1022, autoreset="next_step", writer="other")),
]


@pytest.mark.some(4)
@pytest.mark.parametrize(("kind", "text", "call"), REFUSED, ids=[text for _, text, _ in REFUSED])
def test_what_does_not_fit_is_refused(
    writers: list[Writer], kind: type[Exception], text: str, call: Callable[[Path], object]
) -> None:
    with pytest.raises(kind, match=text):
        call(writers[0].root)
    with db.ReplayBuffer(writers[0].root, mode="r") as all_writers:
        assert len(all_writers) == 21


def test_a_learner_may_come_first_and_a_writer_may_leave_out_what_others_gave(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "all", "first", 1, (34, 33), 500, 2)
    with db.ReplayBuffer(tmp_path / "all", mode="r") as all_writers:
        assert len(all_writers) == 0
        with pytest.raises(db.errors.EmptyBufferError):
            all_writers.sample(3)
        writer.extend(0, 20, itertools.count(), ends=True)
        with db.ReplayBuffer(tmp_path / "all", writer="second") as second:
            assert second.frame_stack == 2
            assert second.columns == writer.buffer.columns
            second.extend(obs=np.zeros((4, 34, 33), np.int32), action=[1, 2, 3], reward=np.zeros(3))
            all_writers.refresh()
            assert len(all_writers) == 23
    writer.buffer.close()


def _write(root: Path, begin: Any) -> None:
    begin.wait()
    with db.ReplayBuffer(root, columns=COLUMNS, writer="w0") as buffer:
        buffer.extend(obs=np.zeros((4, 5), np.int32), action=[1, 2, 3], reward=np.zeros(3))


@pytest.mark.parametrize("writer", [None, "w0"])
def test_a_learner_waits_for_the_first_writer(writer: str | None, tmp_path: Path) -> None:
    begin, root = threading.Event(), tmp_path / "all"
    thread = threading.Thread(target=_write, args=(root, begin))
    thread.start()
    with pytest.raises(db.errors.NotAStoreError, match=r"wait=60"):
        db.ReplayBuffer(root, mode="r", writer=writer)
    begin.set()
    with db.ReplayBuffer(root, mode="r", writer=writer, wait=60) as learner, pickle.loads(pickle.dumps(learner)) as again:
        thread.join()
        again.refresh()
        assert len(again) == 3


def test_a_directory_that_the_first_writer_is_making_has_nothing_yet(tmp_path: Path) -> None:
    root = tmp_path / "all"
    (root / "_shared").mkdir(parents=True)
    (root / "zarr.json.0123abcd.tmp").touch()
    with pytest.raises(db.errors.NotAStoreError, match=r"nothing is yet"):
        db.ReplayBuffer(root, mode="r")
    begin = threading.Event()
    begin.set()
    thread = threading.Thread(target=_write, args=(root, begin))
    thread.start()
    with db.ReplayBuffer(root, mode="r", wait=60) as learner:
        thread.join()
        learner.refresh()
        assert len(learner) == 3


def test_a_learner_may_open_a_directory_before_a_writer_has_joined(writers: list[Writer], tmp_path: Path) -> None:
    files = Files(tmp_path / "new")
    files.make_directory(".")
    description.describe(files, replace(description.read_description(Files(writers[0].root)), writers=()))
    begin = threading.Event()
    begin.set()
    with db.ReplayBuffer(files.root, mode="r") as learner:
        assert len(learner) == 0
        _write(files.root, begin)
        learner.refresh()
        assert len(learner) == 3


def test_it_is_pickled_and_a_fork_reads_it(writers: list[Writer]) -> None:
    with db.ReplayBuffer(writers[0].root, mode="r", seed=1) as all_writers:
        with pickle.loads(pickle.dumps(all_writers)) as again:
            assert again.sample(8)["steps"].tolist() == all_writers.sample(8)["steps"].tolist()
        with multiprocessing.get_context("fork").Pool(1) as pool:
            assert pool.apply(_length, (all_writers,)) == 21
    pickled = pickle.dumps(writers[0].buffer)
    writers[0].buffer.close()
    with pickle.loads(pickled) as again:
        again.extend(obs=np.zeros((3, 5), np.int32), action=[1, 2], reward=np.zeros(2))
    writers[0].open()


def _length(buffer: db.ReplayBuffer) -> int:
    return len(buffer)


def test_it_is_described_and_checked(writers: list[Writer], capsys: pytest.CaptureFixture[str]) -> None:
    root = writers[0].root
    assert info(str(root)) == 0
    shown = capsys.readouterr().out
    assert "2 writers, 21 steps" in shown
    assert "w1" in shown
    assert info(str(root), json=True) == 0
    told = json.loads(capsys.readouterr().out)
    assert {name: one["steps"] for name, one in told["writers"].items()} == {"w0": 10, "w1": 11}
    with db.ReplayBuffer(root, mode="r") as all_writers:
        assert all_writers.check(progress=False).ok
        assert {name for name, _ in zarr.open_group(all_writers.path, mode="r").groups()} == {"w0", "w1"}
        assert all_writers.stats()["steps"] == all_writers.stats()["added"] == 21
    for writer in writers:
        writer.buffer.close()
    file = next((root / "w1" / "action").glob("c.*"))
    file.write_bytes(b"\x07" + file.read_bytes()[1:])
    assert check(str(root), quiet=True) == 1
    assert check(str(root), quiet=True, repair=True) == 0
    assert check(str(root), quiet=True) == 0


def test_a_store_or_the_directory_may_be_taken_away(writers: list[Writer]) -> None:
    with db.ReplayBuffer(writers[0].root, mode="r") as all_writers:
        writers[1].buffer.close()
        shutil.rmtree(writers[0].root / "w1")
        all_writers.refresh()
        assert len(all_writers) == 10
        writers[1].open()
        writers[1].extend(1, 5, itertools.count(), ends=True)
        all_writers.refresh()
        assert len(all_writers) == 15
        for writer in writers:
            writer.buffer.close()
        writers[0].root.rename(writers[0].root.with_name("moved"))
        with pytest.raises(db.errors.NotAStoreError, match="moved, removed"):
            all_writers.refresh()
    for writer in writers:
        writer.root = writer.root.with_name("moved")
        writer.open()


def test_a_damaged_description_is_an_error(writers: list[Writer]) -> None:
    group = writers[0].root / "zarr.json"
    group.write_text(group.read_text().replace('"w1"', '"w2"'))
    with pytest.raises(db.CorruptionError, match="checksum"):
        db.ReplayBuffer(writers[0].root, mode="r")


@pytest.mark.parametrize("which", ["directory", "stores"])
def test_a_newer_format_is_refused(writers: list[Writer], which: str) -> None:
    group = writers[0].root / "zarr.json"
    metadata = json.loads(group.read_text())
    found = metadata["attributes"][MULTI_WRITER]
    (found if which == "directory" else found["common"])["format"] = 99
    found["checksum"] = checksum_of_json({name: value for name, value in found.items() if name != "checksum"})
    group.write_text(json.dumps(metadata))
    with pytest.raises(db.errors.FormatError, match=r"format 99.*newer diskbuffer"):
        db.ReplayBuffer(writers[0].root, mode="r")
