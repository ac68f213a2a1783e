"""LeRobot's data sets, version 3: parquet, and pictures in MP4 or in the parquet files.

The layout is that of `lerobot.datasets` 0.4: `meta/info.json`, `meta/tasks.parquet`, `meta/stats.json`,
`meta/episodes/chunk-000/file-000.parquet`, `data/chunk-000/file-000.parquet`, `videos/KEY/chunk-000/file-000.mp4`.
"""

from __future__ import annotations

from diskbuffer.formats.lerobot.reader import LeRobotSource
from diskbuffer.formats.lerobot.writer import LeRobotWriter, losses
from diskbuffer.plugin import Format

LEROBOT = Format("lerobot", "LeRobot v3: parquet and MP4", LeRobotSource, LeRobotWriter, losses, values=True)
