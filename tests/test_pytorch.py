"""Batches through PyTorch's `DataLoader`, as numpy arrays, and through DLPack."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import diskbuffer as db
from diskbuffer.adapters.pytorch import BatchDataset, as_numpy

if TYPE_CHECKING:
    from tests.conftest import Experience, Feeder


@pytest.fixture
def made(tmp_path: Path, experience: type[Experience], feeder: type[Feeder]) -> tuple[Experience, Path]:
    world = experience(2)
    with world.open(tmp_path / "store") as buffer:
        feeder(world, buffer).add(100)
    return world, tmp_path / "store"


@pytest.mark.parametrize("workers", [0, 2])
def test_a_data_loader_gets_so_many_batches(workers: int, made: tuple[Any, Path]) -> None:
    world, path = made
    found = list(DataLoader(BatchDataset(path, 16, db.Uniform(3), batches=7), batch_size=None, num_workers=workers))
    assert len(found) == 7
    for batch in found:
        assert batch["reward"].shape == (16,)
        world.check_batch(batch)
    drawn = [tuple(batch["steps"].tolist()) for batch in found]
    assert len(set(drawn)) == 7


def test_an_open_buffer_is_used_itself_and_its_draws_go_on(made: tuple[Any, Path]) -> None:
    _, path = made
    with db.ReplayBuffer(path) as buffer:
        mine = db.Uniform(5)
        loader = DataLoader(BatchDataset(buffer, 8, mine), batch_size=None)
        first = [batch["steps"] for batch in itertools.islice(loader, 5)]
        assert mine.batches == 5
        expected = [buffer.sample(8, sampler)["steps"] for sampler in [db.Uniform(5)] for _ in range(5)]
        assert all(torch.equal(a, b) for a, b in zip(first, expected, strict=True))


def test_batches_as_numpy_share_their_memory(made: tuple[Any, Path]) -> None:
    _, path = made
    with db.ReplayBuffer(path, mode="r") as buffer:
        batch = buffer.sample(4)
        arrays = as_numpy(batch)
        assert arrays["obs"].shape == tuple(batch["obs"].shape)
        assert np.shares_memory(arrays["reward"], batch["reward"].numpy())


IN_JAX = """
import sys
import jax, numpy as np
import diskbuffer as db

with db.ReplayBuffer(sys.argv[1], mode="r") as buffer:
    batch = buffer.sample(4)
    found = jax.dlpack.from_dlpack(batch["obs"].contiguous())
    np.testing.assert_array_equal(np.asarray(found), batch["obs"].numpy())
"""


def test_jax_takes_batches_through_dlpack(made: tuple[Any, Path]) -> None:
    """In a process of its own: JAX objects to every fork of a process that has imported it, and other tests fork."""
    subprocess.run([sys.executable, "-c", IN_JAX, str(made[1])], check=True, timeout=120)
