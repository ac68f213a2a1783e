"""Make a data set with LeRobot's own library, and write down what that library reads of it.

    ENVIRONMENT/bin/python make.py DIRECTORY

in an environment with lerobot 0.4.4 makes DIRECTORY/data_set and DIRECTORY/expected.npz: every feature of every step, pictures as
bytes, (n, H, W, C), and the tasks. `data_set.tar.xz` has both.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

STEPS, TASKS = (5, 7, 3), ("pick up the cube", "place it", "pick up the cube")
FEATURES: dict[str, dict[str, Any]] = {
    "observation.images.top": {"dtype": "video", "shape": (64, 80, 3), "names": ["height", "width", "channels"]},
    "observation.images.wrist": {"dtype": "image", "shape": (3, 12, 16), "names": ["channels", "height", "width"]},
    "observation.state": {"dtype": "float32", "shape": (3,), "names": ["x", "y", "z"]},
    "observation.map": {"dtype": "float32", "shape": (2, 4), "names": None},
    "action": {"dtype": "float32", "shape": (2,), "names": ["left", "right"]},
    "next.reward": {"dtype": "float32", "shape": (1,), "names": None},
    "next.done": {"dtype": "bool", "shape": (1,), "names": None},
    "phase": {"dtype": "int64", "shape": (1,), "names": None},
}


def frame(step: int, last: bool, random: np.random.Generator) -> dict[str, Any]:
    """Return the values of a step."""
    top = np.full((64, 80, 3), (40, 90, 160))
    top[8 + 4 * step : 24 + 4 * step, 16:48] = (220, 60, 30 * step)
    return {
        "observation.images.top": top.astype(np.uint8),
        "observation.images.wrist": random.integers(0, 256, (3, 12, 16), dtype=np.uint8),
        "observation.state": random.normal(size=3).astype(np.float32),
        "observation.map": random.normal(size=(2, 4)).astype(np.float32),
        "action": random.normal(size=2).astype(np.float32),
        "next.reward": np.array([step / 3], np.float32),
        "next.done": np.array([last]),
        "phase": np.array([step % 2]),
    }


def make(directory: Path) -> None:
    """Make the data set, and what is expected of it."""
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    root, random = directory / "data_set", np.random.default_rng(0)
    made = LeRobotDataset.create("tests/golden", 10, FEATURES, root=root, robot_type="arm")
    for steps, task in zip(STEPS, TASKS, strict=True):
        for step in range(steps):
            made.add_frame({**frame(step, step == steps - 1, random), "task": task})
        made.save_episode()
    made.finalize()
    np.savez(directory / "expected.npz", **read(root))


def read(root: Path, backend: str = "pyav") -> dict[str, Any]:
    """Return what LeRobot reads: by feature, (n, ...)."""
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    found: dict[str, list[Any]] = {}
    opened = LeRobotDataset("tests/golden", root=root, video_backend=backend)
    cameras = opened.meta.camera_keys
    for n in range(len(opened)):
        for name, value in opened[n].items():
            if name in cameras:
                pixels = np.rint(value.numpy() * 255).astype(np.uint8)
                found.setdefault(name, []).append(np.moveaxis(pixels, 0, -1))
            else:
                found.setdefault(name, []).append(value if isinstance(value, str) else value.numpy())
    return {name: np.array(values) for name, values in found.items()}


if __name__ == "__main__":
    make(Path(sys.argv[1]))
