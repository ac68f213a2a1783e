"""Stores that are copied to a bucket and back: a real server, which may refuse to go on in the middle."""

from __future__ import annotations

import itertools
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import obstore
import pytest
import torch

import diskbuffer as db
from diskbuffer import editing
from diskbuffer.commands.app import run
from diskbuffer.errors import MissingPackageError, NotAStoreError, SourceError, UnreachableError
from tests.s3_server import BUCKET, S3Server, never
from tests.support.specimens import adopt

_NUMBERS = itertools.count()
_COLUMNS = {
    "flat": {"obs/arm%20joints": db.Column((3,), "float32"), "action": db.Column((), "int64")},
    "pictures": {"obs": db.Column((34, 33), "uint8"), "action": db.Column((2,), "float32")},
}


@pytest.fixture(scope="module")
def one_server() -> Iterator[S3Server]:
    server = S3Server()
    yield server
    server.stop()


@pytest.fixture
def server(one_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    for name, value in one_server.environment().items():
        monkeypatch.setenv(name, value)
    yield one_server
    one_server.refuses = never


@pytest.fixture
def url() -> str:
    """Return where nothing is yet."""
    return f"s3://{BUCKET}/some/store-{next(_NUMBERS)}"


def make(path: Path, kind: str = "pictures", **options: Any) -> Path:
    columns, random = _COLUMNS[kind], np.random.default_rng(5)
    with db.ReplayBuffer(path, columns=columns, segment_rows=64, **options) as buffer:
        for _ in range(4):
            numbers, action = random.normal(size=(51, 3)).astype(np.float32), columns["action"]
            obs = {"arm joints": numbers} if kind == "flat" else random.integers(0, 99, (51, 34, 33)).astype(np.uint8)
            actions = np.zeros((50, *action.shape), action.np_dtype)
            buffer.extend(obs=obs, action=actions, reward=random.normal(size=50), new_episode=True)
        buffer.cut_off()
    return path


def same(one: Path, other: Path) -> None:
    """Compare all steps of two stores, and check the other."""
    assert db.check(other, progress=False).ok
    with db.ReplayBuffer(one, mode="r") as first, db.ReplayBuffer(other, mode="r") as second:
        assert (first.steps() == second.steps()).all()
        batches = [buffer.at(buffer.steps()) for buffer in (first, second)]
    for name, values in batches[0].items():
        if isinstance(values, dict):
            assert all(torch.equal(part, batches[1][name][key]) for key, part in values.items())
        else:
            assert torch.equal(values, batches[1][name]), name


def files(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}


def after(requests: int, method: str) -> Callable[[str, str], bool]:
    """Refuse all requests of a method after so many."""
    left = itertools.count(requests, -1)
    return lambda asked, path: asked == method and "some/" in path and next(left) <= 0


@pytest.mark.some(1)
@pytest.mark.parametrize("kind", _COLUMNS)
def test_a_store_goes_to_a_bucket_and_back(kind: str, server: S3Server, url: str, tmp_path: Path) -> None:
    store = make(tmp_path / "store", kind)
    assert editing.copy(store, url, progress=False) == url
    assert editing.copy(url, tmp_path / "back", progress=False) == tmp_path / "back"
    assert files(store) == files(tmp_path / "back")
    same(store, tmp_path / "back")
    assert sorted(os.listdir(tmp_path)) == ["back", "store"]


@pytest.mark.nightly
def test_the_stores_of_several_writers_go_by_the_command(
    server: S3Server, url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for writer in ("one", "two"):
        make(tmp_path / "all", writer=writer)
    assert run(["copy", str(tmp_path / "all"), url, "--quiet"]) == 0
    assert run(["copy", url, str(tmp_path / "back"), "--quiet"]) == 0
    assert capsys.readouterr().out == f"{url}\n{tmp_path / 'back'}\n"
    same(tmp_path / "all", tmp_path / "back")


@pytest.mark.nightly
@pytest.mark.parametrize("requests", [0, 1, 7, -1])
def test_a_copy_up_that_was_cut_short_is_no_store(requests: int, server: S3Server, url: str, tmp_path: Path) -> None:
    store = make(tmp_path / "store")
    server.refuses = after(requests % len(files(store)), "PUT")  # -1: all but the last file arrive
    with pytest.raises(UnreachableError, match=r"could not write s3://runs/some/.* There is no new store"):
        editing.copy(store, url, progress=False)
    server.refuses = never
    with pytest.raises(NotAStoreError, match="there is no store at s3://"):
        editing.copy(url, tmp_path / "back", progress=False)
    assert sorted(os.listdir(tmp_path)) == ["store"]
    editing.copy(store, url, progress=False)
    editing.copy(url, tmp_path / "back", progress=False)
    same(store, tmp_path / "back")


@pytest.mark.nightly
@pytest.mark.parametrize("requests", [1, 2, 9])  # the first lists
def test_a_copy_down_that_was_cut_short_leaves_nothing(requests: int, server: S3Server, url: str, tmp_path: Path) -> None:
    store = make(tmp_path / "store")
    editing.copy(store, url, progress=False)
    server.refuses = after(requests, "GET")
    with pytest.raises(UnreachableError, match="There is no new store"):
        editing.copy(url, tmp_path / "back", progress=False)
    assert os.listdir(tmp_path) == ["store"]
    server.refuses = never
    editing.copy(url, tmp_path / "back", progress=False)
    same(store, tmp_path / "back")


@pytest.mark.nightly
def test_a_copy_down_that_was_stopped_begins_anew(
    server: S3Server, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, gets, get = make(tmp_path / "store"), itertools.count(), obstore.get
    editing.copy(store, url, progress=False)

    def stop(client: Any, name: str) -> Any:
        if next(gets) == 5:
            raise KeyboardInterrupt
        return get(client, name)

    with monkeypatch.context() as patched:
        patched.setattr(obstore, "get", stop)
        with pytest.raises(KeyboardInterrupt):
            editing.copy(url, tmp_path / "back", progress=False)
    assert os.listdir(tmp_path) == ["store"]
    editing.copy(url, tmp_path / "back", progress=False)
    assert sorted(os.listdir(tmp_path)) == ["back", "store"]
    same(store, tmp_path / "back")


@pytest.mark.nightly
def test_what_was_written_to_meanwhile_is_no_store(server: S3Server, url: str, tmp_path: Path) -> None:
    store, puts = make(tmp_path / "store"), itertools.count()

    def write(method: str, path: str) -> bool:
        if method == "PUT" and next(puts) == 3:
            with db.ReplayBuffer(store) as buffer:
                buffer.extend(obs=np.zeros((6, 34, 33), np.uint8), action=np.zeros((5, 2), np.float32), reward=np.zeros(5))
        return False

    server.refuses = write
    with pytest.raises(db.LockedError, match="written to while it was copied"):
        editing.copy(store, url, progress=False)
    with pytest.raises(NotAStoreError):
        editing.copy(url, tmp_path / "back", progress=False)


@pytest.mark.nightly
def test_what_was_replaced_meanwhile_is_not_copied_down(server: S3Server, url: str, tmp_path: Path) -> None:
    editing.copy(make(tmp_path / "store"), url, progress=False)
    once = itertools.count()

    def replace(method: str, path: str) -> bool:
        if method == "GET" and path.endswith("zarr.json") and next(once) == 0:
            server.put(f"{url.removeprefix(f's3://{BUCKET}/')}/obs/more", b"new")
        return False

    server.refuses = replace
    with pytest.raises(db.CorruptionError, match="replaced"):
        editing.copy(url, tmp_path / "back", progress=False)
    assert os.listdir(tmp_path) == ["store"]


def test_only_a_closed_store_is_copied_up(server: S3Server, url: str, tmp_path: Path) -> None:
    store = make(tmp_path / "store")
    with db.ReplayBuffer(store):
        shutil.copytree(store, tmp_path / "unclosed")
        adopt(tmp_path / "unclosed")
        with pytest.raises(db.LockedError, match="being written to"):
            editing.copy(store, url, progress=False)
    with pytest.raises(db.InputError, match="was not closed"):
        editing.copy(tmp_path / "unclosed", url, progress=False)
    make(tmp_path / "all", writer="one")
    with db.ReplayBuffer(tmp_path / "all", mode="r") as learner:
        learner.columns.write("value", learner.steps(), np.ones(len(learner)))
        with pytest.raises(db.LockedError, match="being written to"):
            editing.copy(tmp_path / "all", url, progress=False)
    with pytest.raises(NotAStoreError):
        editing.copy(tmp_path / "nothing", url, progress=False)
    (store / "obs" / "more").symlink_to(tmp_path)
    with pytest.raises(SourceError, match="link"):
        editing.copy(store, url, progress=False)
    with pytest.raises(NotAStoreError):
        editing.copy(url, tmp_path / "back", progress=False)


@pytest.mark.nightly
def test_nothing_is_overwritten(server: S3Server, url: str, tmp_path: Path) -> None:
    store = make(tmp_path / "store")
    editing.copy(store, url, progress=False)
    with pytest.raises(db.InputError, match="something at"):
        editing.copy(store, url, progress=False)
    before = files(store)
    with pytest.raises(db.InputError, match="something at"):
        editing.copy(url, store, progress=False)
    assert files(store) == before
    server.put("other/notes.txt", b"mine")
    with pytest.raises(db.InputError, match=r"such as notes\.txt"):
        editing.copy(store, f"s3://{BUCKET}/other", progress=False)


@pytest.mark.some(1)
@pytest.mark.parametrize("name", ["../../evil", "obs/../../../evil", "/evil", "obs//evil", "obs/./evil", "zarr.json/evil"])
def test_names_that_lead_elsewhere_are_refused(name: str, server: S3Server, url: str, tmp_path: Path) -> None:
    editing.copy(make(tmp_path / "store"), url, progress=False)
    server.put(f"{url.removeprefix(f's3://{BUCKET}/')}/{name}", b"evil")
    with pytest.raises(db.CorruptionError, match="cannot be"):
        editing.copy(url, tmp_path / "in" / "here", progress=False)
    assert sorted(os.listdir(tmp_path)) == ["store"]


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["../evil", "/evil", "obs/../../evil", "obs/.", "obs/a\0b"])
def test_names_that_another_obstore_lets_through_are_refused(
    name: str, server: S3Server, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    editing.copy(make(tmp_path / "store"), url, progress=False)
    one = {"path": name, "size": 3, "e_tag": "a", "last_modified": None}
    list_all = obstore.list
    monkeypatch.setattr(obstore, "list", lambda client: [*list_all(client), [one]])
    with pytest.raises(db.CorruptionError, match="cannot be"):
        editing.copy(url, tmp_path / "in" / "here", progress=False)
    assert sorted(os.listdir(tmp_path)) == ["store"]


@pytest.mark.nightly
def test_objects_that_stand_for_directories_are_passed_by(server: S3Server, url: str, tmp_path: Path) -> None:
    store = make(tmp_path / "store")
    prefix = url.removeprefix(f"s3://{BUCKET}/")
    server.put(f"{prefix}/")
    editing.copy(store, url, progress=False)
    server.put(f"{prefix}/obs/")
    editing.copy(url, tmp_path / "back", progress=False)
    same(store, tmp_path / "back")


def test_calls_that_do_not_fit(server: S3Server, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = make(tmp_path / "store")
    with pytest.raises(db.InputError, match="copy it down first"):
        editing.copy(url, tmp_path / "new", where="return > 1", progress=False)
    with pytest.raises(db.InputError, match="copy it down first"):
        editing.copy(store, url, capacity=100, progress=False)
    with pytest.raises(db.InputError, match="copy it down first"):
        editing.copy(store, url, rename={"action": "move"}, progress=False)
    with pytest.raises(db.InputError, match="s3://BUCKET/PATH"):
        editing.copy(store, f"s3://{BUCKET}/", progress=False)
    with pytest.raises(db.InputError, match="is a URL"):
        editing.copy(url, url, progress=False)
    with pytest.raises(UnreachableError, match="could not list"):
        editing.copy(store, "s3://nobodys/store", progress=False)
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(MissingPackageError, match="obstore"):
        editing.copy(store, url, progress=False)
