"""Lance's tables, which LeRobot can keep its data sets in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from bench.peers.peer import FramesPeer


class Lance(FramesPeer):
    """`LanceDataset.take` of single frames, which are bytes of a fixed length.

    Tried, and slower: frames as lists of a fixed size, 2 to 5 times; whole stacks, a little; older versions of the format.
    """

    name, where, needs, slow = "Lance", "disk", ("pylance", "pyarrow"), True

    def fill(self, directory: Path) -> None:
        """Write a table."""
        import lance
        import pyarrow

        frames = np.ascontiguousarray(self._transitions.frames)
        n, width = len(frames), frames[0].nbytes
        obs = pyarrow.FixedSizeBinaryArray.from_buffers(pyarrow.binary(width), n, [None, pyarrow.py_buffer(frames)])
        action, reward = np.append(self._transitions.action, 0), np.append(self._transitions.reward, np.float32(0))
        flags = np.zeros(n, np.bool_)
        table = pyarrow.table({"obs": obs, "action": action, "reward": reward, "terminated": flags, "truncated": flags})
        self._table = lance.write_dataset(table, directory / "table", data_storage_version="2.1")

    def sample(self, size: int) -> Any:
        """Draw steps."""
        drawn, window = self.draw(size)
        taken = self._table.take(window.ravel(), columns=["obs"])["obs"].combine_chunks()
        bytes_of, like = np.frombuffer(taken.buffers()[1], np.uint8), self._transitions.frames
        frames = bytes_of.view(like.dtype).reshape(*window.shape, *like.shape[1:])
        flat = self._table.take(drawn, columns=["action", "reward", "terminated", "truncated"])
        return torch.from_numpy(frames), {name: torch.from_numpy(flat[name].to_numpy()) for name in flat.column_names}
