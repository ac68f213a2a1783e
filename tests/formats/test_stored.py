"""A store as a source of episodes: with little memory, and beside a writer."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import diskbuffer as db
from diskbuffer.formats import export, stored
from diskbuffer.formats.stored import StoreSource
from tests.formats import episodes as made

EXPORT = """
import sys
from diskbuffer.formats import export
export("webdataset", *sys.argv[1:], progress=False)
print(*sorted({"numba", "torch", "zarr", "llvmlite"} & sys.modules.keys()))
"""


def read(source: StoreSource, column: str) -> None:
    for one in source.episodes():
        one.columns[column][:]


@pytest.mark.nightly
def test_an_export_imports_neither_numba_nor_torch(tmp_path: Path) -> None:
    """They take 250 MB, half of what an export may take."""
    store = made.store_of(tmp_path / "store", made.some(3))
    command = [sys.executable, "-c", EXPORT, str(store), str(tmp_path / "out")]
    assert subprocess.check_output(command, text=True) == "\n"


def mapped(store: Path) -> int:
    """Return how many files of columns are mapped into this process."""
    files = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if f" {store}/" in line}
    return sum(not file.startswith(f"{store}/_") for file in files)


@pytest.mark.nightly
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_maps_that_are_let_go_while_it_is_read_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    episodes = made.some(12, longest=60)
    store = made.store_of(tmp_path / "store", episodes, segment_rows=64)
    monkeypatch.setattr(stored, "MAPPED", 2000)
    source, held = StoreSource(store), [0]
    found = []
    for one in source.episodes():
        columns = {}
        for name, rows in one.columns.items():
            blocks = [rows[first : first + 7] for first in range(0, rows.shape[0], 7)]
            columns[name] = np.concatenate(blocks)
            held.append(mapped(store))
        found.append({**columns, "steps": one.steps, "tag": one.tag, "stream": one.stream})
    made.assert_same(found, made.expected(episodes))
    segments = -(-sum(one.steps + 1 for one in episodes) // 64)
    assert segments > 4
    assert max(held) <= 2 * len(source.contents.columns)  # two segments at a time, though all of them were read
    source.close()
    assert not mapped(store)


def test_an_episode_that_is_evicted_before_its_turn_is_an_error(tmp_path: Path) -> None:
    columns = {"obs": db.Column((2,), "float32")}
    steps = {"obs": np.zeros((21, 2), np.float32), "reward": np.zeros(20, np.float32), "truncated": np.arange(20) == 19}
    with db.ReplayBuffer(tmp_path / "store", 100, columns=columns, segment_rows=64) as buffer:
        for _ in range(5):
            buffer.extend(**steps)
        source = StoreSource(tmp_path / "store")
        assert source.contents.episodes == 5
        for _ in range(10):
            buffer.extend(**steps)
        with pytest.raises(db.errors.EvictedError, match="evicted"):
            read(source, "obs")


def test_a_store_that_went_back_to_a_mark_is_no_source_any_more(tmp_path: Path) -> None:
    store = made.store_of(tmp_path / "store", made.some(2))
    with db.ReplayBuffer(store) as buffer:
        buffer.copies.mark("here")
    source = StoreSource(store)
    db.ReplayBuffer(store, mode="r+", mark="here").close()
    with pytest.raises(db.CorruptionError, match="went back to a mark"):
        read(source, "action")


@pytest.mark.parametrize("column", ["action", "truncated"])  # what is read later, and what lists the episodes
def test_a_damaged_store_is_not_exported(tmp_path: Path, column: str) -> None:
    store = made.store_of(tmp_path / "store", made.some(2))
    with next((store / column).glob("c.*")).open("r+b") as file:
        file.truncate(1)
    with pytest.raises(db.CorruptionError):
        export("webdataset", store, tmp_path / "out", progress=False)
    assert not (tmp_path / "out").exists()


def test_the_stores_of_several_writers_are_one_source(tmp_path: Path) -> None:
    episodes = [made.some(3, seed) for seed in (0, 1)]
    for writer, some in zip(("a", "b"), episodes, strict=True):
        made.store_of(tmp_path / "store", some, writer=writer)
    found = made.read(tmp_path / "store")
    assert len(found) == 6
    for stream, some in enumerate(episodes):
        mine = [{**one, "stream": 0} for one in found if one["stream"] == stream]
        made.assert_same(mine, made.expected(some))
