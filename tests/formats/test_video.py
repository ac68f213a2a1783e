"""Movies of episodes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import diskbuffer as db
from diskbuffer.formats import export
from tests.formats import episodes as made
from tests.formats import interrupted

av = pytest.importorskip("av")
COLUMNS = {
    "obs/camera": db.Column((32, 49, 3), "uint8"),
    "obs/state": db.Column((2,)),
    "action": db.Column((2,)),
    "reward": db.Column(),
}


def a_store(path: Path, n: int) -> Path:
    episodes = made.some(n, 2, COLUMNS, longest=30, tag="good")
    for number, one in enumerate(episodes):
        rows = np.arange(one.steps + 1)[:, None, None, None]
        y, x, _ = np.mgrid[:32, :49, :3]
        one.columns["obs/camera"][:] = (x * 4 + y * 2 + rows * 3 + number * 20) % 200  # type: ignore[index]
    return made.store_of(path, episodes, COLUMNS)


def assert_shows(path: Path, store: Path) -> None:
    wanted = made.read(store)
    assert sorted(file.name for file in path.iterdir()) == sorted(
        f"{n:06}.{of}" for n in range(len(wanted)) for of in ("json", "mp4")
    )
    for number, one in enumerate(wanted):
        told = json.loads((path / f"{number:06}.json").read_text())
        assert told["steps"] == one["steps"]
        assert told["tag"] == "good"
        np.testing.assert_array_equal(np.array(told["rewards"], np.float32), one["reward"])
        with av.open(path / f"{number:06}.mp4") as film:
            frames = np.stack([frame.to_ndarray(format="rgb24") for frame in film.decode(video=0)])
        assert frames.shape == (one["steps"] + 1, 32, 50, 3)
        assert abs(frames[:, :, :49].astype(int) - one["obs/camera"]).mean() < 12


def test_a_movie_of_each_episode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("diskbuffer.formats.rows.BLOCK", 20_000)
    store = a_store(tmp_path / "store", 4)
    with pytest.raises(db.errors.LossError, match="columns: obs/state, action") as raised:
        export("video", store, tmp_path / "out", progress=False)
    assert "pictures: obs/camera" in str(raised.value)
    export("video", store, tmp_path / "out", allow_loss=["columns", "pictures"], progress=False)
    assert_shows(tmp_path / "out", store)
    with pytest.raises(db.InputError, match="there are obs/camera"):
        export("video", store, tmp_path / "other", column="obs/state", allow_loss=["columns", "pictures"], progress=False)


@pytest.mark.nightly
def test_an_export_to_a_full_disk_goes_on(tmp_path: Path) -> None:
    store = a_store(tmp_path / "store", 5)
    interrupted.fill_the_disk_and_go_on("video", store, tmp_path / "out", 3, allow_loss=["columns", "pictures"])
    assert_shows(tmp_path / "out", store)


@pytest.mark.nightly
def test_an_export_that_is_killed_goes_on(tmp_path: Path, any_seed: int) -> None:
    store = a_store(tmp_path / "store", 5)
    losses = ["columns", "pictures"]
    for _ in interrupted.killed_and_finished("export", "video", store, tmp_path / "out", any_seed, allow_loss=losses):
        assert_shows(tmp_path / "out", store)
