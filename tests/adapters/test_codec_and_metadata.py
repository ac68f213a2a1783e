"""Adapters make their stores with the codecs and the metadata that they are given, and go on with them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

import diskbuffer as db

pytestmark = pytest.mark.filterwarnings("ignore")  # of other libraries
SPACE, ACTIONS = spaces.Box(0, 255, (64, 64), np.uint8), spaces.Discrete(3)
FRAME = np.arange(64 * 64, dtype=np.uint8).reshape(64, 64)


def stable_baselines3(path: Path, **how: Any) -> None:
    from diskbuffer.adapters.sb3 import DiskReplayBuffer

    buffer = DiskReplayBuffer(100, SPACE, ACTIONS, "cpu", path=path, **how)
    buffer.add(FRAME[None], FRAME[None], np.zeros((1, 1)), np.zeros(1), np.zeros(1), [{}])
    buffer.close()


def stable_baselines3_rollouts(path: Path, **how: Any) -> None:
    import torch

    from diskbuffer.adapters.sb3 import DiskRolloutBuffer

    buffer = DiskRolloutBuffer(100, SPACE, ACTIONS, "cpu", path=path, **how)
    for n in range(2):
        buffer.add(FRAME[None], np.zeros((1, 1)), np.zeros(1), np.array([n == 0]), torch.zeros(1), torch.zeros(1))
    buffer.close()


def tianshou(path: Path, **how: Any) -> None:
    from tianshou.data import Batch

    from diskbuffer.adapters.tianshou import DiskReplayBuffer

    buffer = DiskReplayBuffer(100, path=path, **how)
    buffer.add(Batch(obs=FRAME, act=0, rew=0.0, terminated=False, truncated=False, obs_next=FRAME, info={}))
    buffer.close()


def torchrl(path: Path, **how: Any) -> None:
    import torch
    from tensordict import TensorDict

    from diskbuffer.adapters.torchrl import DiskStorage

    storage, frames = DiskStorage(100, path, **how), torch.from_numpy(FRAME)[None]
    ends = {name: torch.zeros(1, 1, dtype=torch.bool) for name in ("done", "terminated")} | {"reward": torch.zeros(1, 1)}
    storage.set([len(storage)], TensorDict({"obs": frames, "next": TensorDict({"obs": frames, **ends}, [1])}, [1]))
    storage.close()


ADAPTERS = (stable_baselines3, stable_baselines3_rollouts, tianshou, torchrl)


@pytest.mark.parametrize("record", ADAPTERS)
def test_a_store_is_made_with_them(record: Callable[..., None], tmp_path: Path) -> None:
    record(tmp_path / "store", codec="lz4hc:4", metadata={"run": 3})
    record(tmp_path / "store", codec="lz4hc:4", metadata={"run": 3})  # as every run of a script asks for it
    record(tmp_path / "store")
    with db.ReplayBuffer(tmp_path / "store", mode="r") as buffer:
        observations = {path: column.codec for path, column in buffer.columns.items() if path.split("/")[0] == "obs"}
        assert set(observations.values()) == {"lz4hc:4"}
        assert buffer.metadata == {"run": 3}


@pytest.mark.parametrize("record", ADAPTERS)
def test_what_cannot_be_is_told_before_anything_is_written(record: Callable[..., None], tmp_path: Path) -> None:
    with pytest.raises(db.InputError, match="codec must be 'none', 'lz4'"):
        record(tmp_path / "store", codec="gzip")
    with pytest.raises(db.InputError, match="metadata must consist of strings"):
        record(tmp_path / "store", metadata={"made by": object()})
    with pytest.raises(db.InputError, match=r"codec= names 'pixels', and there is no such column; there are .*obs"):
        record(tmp_path / "store", codec={"pixels": "lz4"})
    assert not (tmp_path / "store").exists()
