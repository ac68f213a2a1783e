"""Shards of WebDataset."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import diskbuffer as db
from diskbuffer.formats import export
from tests.formats import episodes as made
from tests.formats import interrupted


def read(path: Path) -> list[dict[str, Any]]:
    """Return the samples of all shards, read without any of our code."""
    found: dict[str, dict[str, Any]] = {}
    for shard in sorted(path.glob("*.tar")):
        with tarfile.open(shard) as tar:
            for member in tar:
                key, name = member.name.split(".", 1)
                file = tar.extractfile(member)
                assert file is not None
                data = file.read()
                found.setdefault(key, {})[name] = json.loads(data) if name == "json" else np.load(io.BytesIO(data))
    return [found[key] for key in sorted(found)]


def assert_holds(found: list[dict[str, Any]], store: Path) -> None:
    wanted = made.read(store)
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        told = one.pop("json")
        assert [told[name] for name in ("steps", "tag", "stream")] == [other[name] for name in ("steps", "tag", "stream")]
        assert told["ending"] == (
            "terminated" if other["terminated"][-1] else "truncated" if other["truncated"][-1] else "cut off"
        )
        columns = {name: value for name, value in other.items() if isinstance(value, np.ndarray)}
        assert one.keys() == {f"{name.replace('/', '.')}.npy" for name in columns}
        for name, value in columns.items():
            array = one[f"{name.replace('/', '.')}.npy"]
            assert array.dtype == value.dtype
            np.testing.assert_array_equal(array, value)


def a_store(path: Path, longest: int = 40) -> Path:
    episodes = [one for n in range(4) for one in made.some(5, n, longest=longest, stream=n % 2, tag=f"tag {n}")]
    return made.store_of(path, episodes, n_envs=2)


def test_a_sample_is_an_episode_bit_by_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("diskbuffer.formats.rows.BLOCK", 5000)
    store = a_store(tmp_path / "store", 400)
    export("webdataset", store, tmp_path / "out", shard_mb=1, progress=False)
    assert len(list((tmp_path / "out").iterdir())) > 2
    assert_holds(read(tmp_path / "out"), store)
    with pytest.raises(db.InputError, match="shard_mb"):
        export("webdataset", store, tmp_path / "other", shard_mb=0, progress=False)


@pytest.mark.nightly
def test_an_export_to_a_full_disk_goes_on(tmp_path: Path) -> None:
    store = a_store(tmp_path / "store", 400)
    interrupted.fill_the_disk_and_go_on("webdataset", store, tmp_path / "out", 14, shard_mb=1)
    assert_holds(read(tmp_path / "out"), store)


@pytest.mark.nightly
def test_an_export_that_is_killed_goes_on(tmp_path: Path, any_seed: int) -> None:
    store = a_store(tmp_path / "store", 400)
    for _ in interrupted.killed_and_finished("export", "webdataset", store, tmp_path / "out", any_seed, shard_mb=1):
        assert_holds(read(tmp_path / "out"), store)
