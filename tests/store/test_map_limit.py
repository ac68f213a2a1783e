"""More files than a process may map: refused in words, before anything is written."""

from __future__ import annotations

import gc
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import diskbuffer as db
from diskbuffer.store.opening import open_store
from diskbuffer.store.system import map_limit

_COLUMNS = {"obs": db.Column((2,), "float32"), "action": db.Column((), "int64")}


@pytest.fixture
def limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Return what makes the limit one at which this process can map some 2,000 files more."""

    def set_it() -> None:
        gc.collect()
        most = len(Path("/proc/self/maps").read_text().splitlines()) + map_limit._SPARE + 2000
        (tmp_path / "limit").write_text(str(most))
        monkeypatch.setattr(map_limit, "_LIMIT", tmp_path / "limit")

    return set_it


@pytest.mark.some(1)
@pytest.mark.parametrize("writer", [None, "a"])
def test_what_cannot_be_mapped_is_refused_before_anything_is_written(
    tmp_path: Path, limit: Callable[[], None], writer: str | None
) -> None:
    limit()
    too_much: list[dict[str, Any]] = [{"n_envs": 200, "autoreset": "next_step"}, {"capacity": 20_000, "segment_rows": 64}]
    for options in too_much:
        with pytest.raises(db.InputError, match=r"files that are mapped.*can map \d,\d+ more.*vm\.max_map_count.*segment_rows"):
            db.ReplayBuffer(tmp_path / "store", columns=_COLUMNS, writer=writer, **options)
        assert not (tmp_path / "store").exists()
    db.ReplayBuffer(tmp_path / "store", 20_000, columns=_COLUMNS, segment_rows=256, writer=writer).close()


@pytest.mark.nightly
def test_a_store_that_cannot_be_mapped_here_is_refused(tmp_path: Path, limit: Callable[[], None]) -> None:
    for n in range(3):
        db.ReplayBuffer(tmp_path / "several", columns=_COLUMNS, n_envs=50, autoreset="next_step", writer=f"w{n}").close()
    with db.ReplayBuffer(tmp_path / "read", columns=_COLUMNS, segment_rows=8) as buffer:
        buffer.extend(np.zeros((2401, 2), np.float32), np.zeros(2400, int), np.zeros(2400))
    db.ReplayBuffer(tmp_path / "written", 2400, columns=_COLUMNS, segment_rows=8).close()
    stores = tmp_path / "written", tmp_path / "read"
    before = {path: path.read_bytes() for store in stores for path in store.rglob("*") if path.is_file()}
    limit()
    with pytest.raises(db.InputError, match="several cannot be read: for 3 writers with 150 environments"):
        db.ReplayBuffer(tmp_path / "several", mode="r")
    with pytest.raises(db.InputError, match="files that are mapped"):
        db.ReplayBuffer(tmp_path / "read", mode="r")
    for store in stores:
        with pytest.raises(db.InputError, match="files that are mapped"):
            db.ReplayBuffer(store, mode="r+")
    assert {path: path.read_bytes() for path in before} == before
    assert db.check(tmp_path / "read", progress=False).problems == []


def test_more_writers_than_descriptors_are_refused(tmp_path: Path) -> None:
    db.ReplayBuffer(tmp_path / "store", columns=_COLUMNS).close()
    layout = open_store(tmp_path / "store", writable=False).layout
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (400, hard))
    try:
        map_limit.refuse_too_many_stores(tmp_path, layout, 200)
        with pytest.raises(db.InputError, match=r"201 writers' stores, each of which takes a file descriptor.*400"):
            map_limit.refuse_too_many_stores(tmp_path, layout, 201)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_the_forecast_is_what_is_mapped(tmp_path: Path) -> None:
    """Of a ring that has wrapped, whose every segment was read."""
    with db.ReplayBuffer(tmp_path / "store", 3200, columns=_COLUMNS, segment_rows=32) as buffer:
        for _ in range(5):
            buffer.extend(np.zeros((1001, 2), np.float32), np.zeros(1000, int), np.zeros(1000))
        buffer.flush(recompress=True)
        for _ in buffer.batches(512):
            pass
        mapped = sum(str(tmp_path) in line for line in Path("/proc/self/maps").read_text().splitlines())
        assert 0.9 < mapped / map_limit.files_of(buffer._store.layout) < 1.05
