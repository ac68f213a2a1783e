"""What is in the golden files."""

from __future__ import annotations

from typing import Any

import numpy as np


def episodes() -> list[dict[str, Any]]:
    """Return the arrays of each episode, by name."""
    random = np.random.default_rng(7)
    found = []
    for number, steps in enumerate((4, 9, 1, 6)):
        y, x = np.mgrid[:12, :12]
        pictures = [np.stack([x * 9 + step, y * 9 + number * 20, (x + y) * 5], -1) for step in range(steps)]
        episode = {"img": np.array(pictures).astype(np.uint8)}
        episode["state"] = random.normal(size=(steps, 5)).astype(np.float32)
        episode["action"] = random.normal(size=(steps, 2)).astype(np.float32)
        for name, n, dtype in (
            ("eef_pos", 3, "f4"),
            ("eef_rot_axis_angle", 3, "f4"),
            ("gripper_width", 1, "f4"),
            ("demo_start_pose", 6, "f8"),
        ):
            episode[f"robot0_{name}"] = random.normal(size=(steps, n)).astype(dtype)
        found.append(episode)
    return found
