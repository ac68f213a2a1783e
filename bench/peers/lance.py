"""Lance's tables, which LeRobot can keep its data sets in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from bench.peers.peer import FramesPeer
from bench.transitions import Transitions


class Lance(FramesPeer):
    """`LanceDataset.take` of single frames, which are bytes of a fixed length.

    LeRobot stores videos there, which lose what was seen; these frames come back as they were. Tried, and slower: frames as lists
    of a fixed size, 2 to 5 times; whole stacks, a little; older versions of the format.
    """

    name, where, needs = "Lance", "disk", (("lance", "pylance"), ("pyarrow", "pyarrow"))
    slow = True

    def __init__(self, transitions: Transitions, directory: Path, seed: int) -> None:
        import lance
        import pyarrow

        self._transitions, self._rng = transitions, np.random.default_rng(seed)
        frames = np.ascontiguousarray(transitions.frames)
        n, width = len(frames), frames[0].nbytes
        obs = pyarrow.FixedSizeBinaryArray.from_buffers(pyarrow.binary(width), n, [None, pyarrow.py_buffer(frames)])
        action, reward = np.append(transitions.action, 0), np.append(transitions.reward, np.float32(0))
        flags = np.zeros(n, np.bool_)
        table = pyarrow.table({"obs": obs, "action": action, "reward": reward, "terminated": flags, "truncated": flags})
        self._table = lance.write_dataset(table, directory / "table", data_storage_version="2.1")
        self._window = np.arange(-transitions.first, 2)

    def sample(self, size: int) -> Any:
        """Draw steps; stacks of obs and next_obs are views of one tensor."""
        drawn = self._rng.integers(self._transitions.first, self._transitions.n, size)
        taken = self._table.take((drawn[:, None] + self._window).ravel(), columns=["obs"])["obs"].combine_chunks()
        bytes_of = np.frombuffer(taken.buffers()[1], np.uint8)
        frames = bytes_of.view(self._transitions.frames.dtype).reshape(size, -1, *self._transitions.frames.shape[1:])
        flat = self._table.take(drawn, columns=["action", "reward", "terminated", "truncated"])
        tensors = {name: torch.from_numpy(flat[name].to_numpy()) for name in flat.column_names}
        return torch.from_numpy(frames), tensors
