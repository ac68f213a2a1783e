"""A process of LeRobot's own data set and loader. It runs in an environment of LeRobot's, and imports nothing of ours.

    python lerobot_process.py DIRECTORY BATCH WORKERS

Every line of standard input is how many batches to take; every answer is a line of JSON after ``> ``: the seconds that took.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from typing import Any


def batches(directory: str, batch: int, workers: int) -> Iterator[dict[str, Any]]:
    """Yield windows without end: two frames of each camera, and sixteen actions."""
    import torch
    from lerobot.datasets.lerobot_dataset import LeRobotDataset, LeRobotDatasetMetadata

    known = LeRobotDatasetMetadata("bench/windows", root=directory)
    offsets = {**dict.fromkeys(known.camera_keys, (-1, 0)), "action": range(-1, 15)}
    times = {name: [offset / known.fps for offset in every] for name, every in offsets.items()}
    data = LeRobotDataset("bench/windows", root=directory, delta_timestamps=times, video_backend="pyav")
    while True:
        yield from torch.utils.data.DataLoader(data, batch, shuffle=True, num_workers=workers, drop_last=True)


def main(directory: str, batch: str, workers: str) -> None:
    """Answer."""
    taken = batches(directory, int(batch), int(workers))
    for line in sys.stdin:
        begin = time.perf_counter()
        for _ in range(int(line)):
            assert next(taken)["action"].shape[:2] == (int(batch), 16)
        print("> " + json.dumps(time.perf_counter() - begin), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
