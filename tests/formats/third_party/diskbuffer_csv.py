"""Episodes as CSV files, a row a step: four numbers of an observation, an action, a reward, and whether it terminated."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from diskbuffer import Column
from diskbuffer.plugin import Contents, EpisodeData, Format, Reader, Rows


class CsvSource:
    def __init__(self, path: Path) -> None:
        self._files = sorted(path.glob("*.csv"))
        columns = {"obs": Column((4,)), "action": Column((), "int64"), "reward": Column()}
        self.contents, self.losses = Contents(columns, len(self._files), final=False), dict[str, str]()

    def episodes(self) -> Iterator[EpisodeData]:
        for file in self._files:
            rows = np.loadtxt(file, delimiter=",", ndmin=2, dtype=np.float32)
            obs, action, reward, terminated = np.split(rows, [4, 5, 6], axis=1)
            columns: Mapping[str, Rows] = {"obs": obs, "action": action[:, 0].astype(np.int64), "reward": reward[:, 0]}
            yield EpisodeData({**columns, "terminated": terminated[:, 0] > 0}, len(rows))

    def close(self) -> None:
        """Do nothing: each file is closed once it is read."""


def count_steps(path: str, /) -> int:
    """Count the steps of a store."""
    print(int(Reader(path).counts()[0].sum()))
    return 0


CSV = Format("csv", "episodes as CSV files", read=CsvSource)
