"""LeRobot's own library opens what we export, and we read what it makes. Needs its environment: ``make interop``."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import diskbuffer as db
from diskbuffer.formats import export, import_
from diskbuffer.formats.lerobot.features import planned
from tests.formats import episodes as made
from tests.formats.test_lerobot import COLUMNS, FINAL, GOLDEN, assert_as_lerobot_reads

PYTHON = Path(sys.prefix) / "interop" / "lerobot" / "bin" / "python"
MAKE = GOLDEN.with_name("make.py")
READ = """
import sys
sys.path.insert(0, {directory!r})
import make, numpy
from pathlib import Path
numpy.savez({out!r}, **make.read(Path({root!r}), {backend!r}))
"""

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(not PYTHON.exists(), reason=f"needs an environment with lerobot at {PYTHON}: make interop"),
]


def lerobot(path: Path, *arguments: str) -> None:
    """Run Python in LeRobot's environment."""
    environment = os.environ | {"HF_HOME": str(path / "home"), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run([PYTHON, *arguments], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]


def read(root: Path, path: Path, backend: str) -> dict[str, Any]:
    """Return what LeRobot reads of a data set."""
    out = str(path / "read.npz")
    lerobot(path, "-c", READ.format(directory=str(MAKE.parent), out=out, root=str(root), backend=backend))
    return dict(np.load(out))


def has_torchcodec() -> bool:
    """Tell whether torchcodec finds FFmpeg's libraries."""
    code = "from torchcodec.decoders import VideoDecoder"
    return subprocess.run([PYTHON, "-c", code], capture_output=True, check=False).returncode == 0


@pytest.mark.parametrize(("pictures", "backend"), [("lossless", "pyav"), ("lossless", "torchcodec"), ("image", "pyav")])
def test_lerobot_reads_what_was_exported(tmp_path: Path, pictures: str, backend: str) -> None:
    if backend == "torchcodec" and not has_torchcodec():
        pytest.skip("torchcodec finds no libraries of FFmpeg")
    columns = {name: column for name, column in COLUMNS.items() if name != "large"}  # torch has no uint64 above 2**63
    tags = ("", "pick it", "lège")
    episodes = [one for n, tag in enumerate(tags) for one in made.some(3, seed=n, columns=columns, tag=tag)]
    made.store_of(tmp_path / "store", episodes, columns)
    with db.ReplayBuffer(tmp_path / "store") as buffer:
        buffer.episodes[:2].set_values(success=[True, False])  # in a column of ours, which LeRobot does not know
    root = export("lerobot", tmp_path / "store", tmp_path / "data", allow_loss=FINAL, progress=False, pictures=pictures)
    found, stored = read(root, tmp_path, backend), made.read(tmp_path / "store")
    with db.ReplayBuffer(tmp_path / "store", mode="r") as buffer:
        features = planned({path: buffer.columns[path] for path in columns}, "image" if pictures == "image" else "video")
    assert len(features) == len(columns)
    for feature in features:
        rows = np.concatenate([one[feature.path][: one["steps"]] for one in stored])
        if feature.pixels is not None:
            pixels = feature.pixels.from_rows(rows)
            wanted = np.broadcast_to(pixels[..., None], (*pixels.shape, feature.shape[2])) if feature.pixels.grey else pixels
        else:
            wanted = feature.numbers(rows)
            if feature.shape == (1,):
                wanted = wanted[:, 0]
            if wanted.dtype.kind in "fi":  # LeRobot makes these two of all
                wanted = wanted.astype(np.float32 if wanted.dtype.kind == "f" else np.int64)
        assert found[feature.name].shape == wanted.shape, feature.name
        np.testing.assert_array_equal(found[feature.name], wanted, feature.name)
    assert found["task"].tolist() == [one["tag"] for one in stored for _ in range(one["steps"])]
    assert found["next.done"].tolist() == [flag for one in stored for flag in (one["terminated"] | one["truncated"]).tolist()]


def test_what_lerobot_makes_now_is_read_as_it_reads_it(tmp_path: Path) -> None:
    lerobot(tmp_path, str(MAKE), str(tmp_path))
    import_("lerobot", tmp_path / "data_set", tmp_path / "store", progress=False)
    assert_as_lerobot_reads(made.read(tmp_path / "store"), dict(np.load(tmp_path / "expected.npz")))


def test_lerobot_adds_episodes_to_what_was_exported(tmp_path: Path) -> None:
    """Its own statistics, of all episodes, are put together with ours."""
    columns = {
        "obs/state": db.Column((3,), "float32"),
        "action": db.Column((2,), "float32"),
        "obs/images/top": db.Column((64, 80, 3), "uint8"),
    }
    columns["reward"] = db.Column((), "float32")
    made.store_of(tmp_path / "store", made.some(3, columns=columns), columns)
    with db.ReplayBuffer(tmp_path / "store") as buffer:
        buffer.episodes.set_values(success=True)
    # 0.6 does not edit lossless videos
    root = export("lerobot", tmp_path / "store", tmp_path / "data", allow_loss=FINAL, progress=False, pictures="video")
    code = f"""
import numpy as np
from lerobot.datasets.lerobot_dataset import LeRobotDataset
from lerobot.datasets.dataset_tools import delete_episodes
made = LeRobotDataset("tests/x", root={str(root)!r}, video_backend="pyav")
fewer = delete_episodes(made, [1], output_dir={str(tmp_path / "fewer")!r}, repo_id="tests/y")
assert fewer.meta.total_episodes == 2
"""
    lerobot(tmp_path, "-c", code)
    import_("lerobot", tmp_path / "fewer", tmp_path / "again", progress=False)
    found, stored = made.read(tmp_path / "again"), made.read(tmp_path / "store")
    for one, other in zip(found, [stored[0], stored[2]], strict=True):
        np.testing.assert_array_equal(one["action"], other["action"])
        assert one["obs/images/top"].shape == other["obs/images/top"].shape
