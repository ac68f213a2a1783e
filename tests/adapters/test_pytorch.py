"""Batches through PyTorch's `DataLoader`, as numpy arrays, and through DLPack."""

from __future__ import annotations

import itertools
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import diskbuffer as db
from diskbuffer.adapters.pytorch import BatchDataset, StepDataset
from tests.support.experience import Experience, Feeder


@pytest.fixture
def made(tmp_path: Path) -> tuple[Experience, Path]:
    world = Experience(2)
    with world.open(tmp_path / "store") as buffer:
        Feeder(world, buffer).add(100)
    return world, tmp_path / "store"


def forked(workers: int) -> dict[str, Any]:
    """Return arguments for workers that are forks: where TorchRL is imported they start anew, which takes seconds."""
    return {"num_workers": workers, "multiprocessing_context": "fork" if workers else None}


@pytest.mark.parametrize("workers", [0, 2])
def test_a_data_loader_gets_so_many_batches(workers: int, made: tuple[Any, Path]) -> None:
    world, path = made
    dataset = BatchDataset(path, 16, db.Uniform(3), batches=7)
    found = list(DataLoader(dataset, batch_size=None, **forked(workers)))
    assert len(found) == 7
    for batch in found:
        assert batch["reward"].shape == (16,)
        world.check_batch(batch)
    drawn = [tuple(batch["steps"].tolist()) for batch in found]
    assert len(set(drawn)) == 7


@pytest.mark.parametrize("workers", [0, 2])
def test_a_data_loader_gets_windows_of_some_columns(workers: int, made: tuple[Any, Path]) -> None:
    _, path = made
    windows = db.Windows({"obs": (-1, 0), "action": range(3), "reward": (0,)}, 3, padding="edge")
    dataset = BatchDataset(path, 16, windows, columns=["action", "reward"], batches=5)
    with db.ReplayBuffer(path, mode="r") as buffer:
        for batch in DataLoader(dataset, batch_size=None, **forked(workers)):
            assert batch.keys() == {"action", "reward", "mask", "steps"}
            expected = buffer.at(batch["steps"], columns=["action"])["action"]
            assert (batch["action"][:, 0] == expected).all()
            assert batch["mask"]["action"][:, 0].all()


def test_an_open_buffer_is_used_itself_and_its_draws_go_on(made: tuple[Any, Path]) -> None:
    _, path = made
    with db.ReplayBuffer(path) as buffer:
        mine = db.Uniform(5)
        loader = DataLoader(BatchDataset(buffer, 8, mine), batch_size=None)
        first = [batch["steps"] for batch in itertools.islice(loader, 5)]
        assert mine.batches == 5
        expected = [buffer.sample(8, sampler)["steps"] for sampler in [db.Uniform(5)] for _ in range(5)]
        assert all(torch.equal(a, b) for a, b in zip(first, expected, strict=True))


def names_of(batches: Any) -> list[list[int]]:
    return [batch["steps"].tolist() for batch in batches]


@pytest.mark.parametrize(
    "sampler", [db.Uniform(5, n_step=3), db.Slices(4, seed=5), db.Uniform(5, replace=False)], ids=["uniform", "slices", "epochs"]
)
def test_a_pickled_dataset_draws_on_with_its_sampler_as_it_was(sampler: db.Sampler, made: tuple[Any, Path]) -> None:
    _, path = made
    with db.ReplayBuffer(path, mode="r") as buffer:
        dataset = BatchDataset(buffer, 8, sampler, batches=3)
        list(dataset)
        copied = pickle.loads(pickle.dumps(dataset))
        mine, theirs = list(dataset), list(copied)
        assert names_of(mine) == names_of(theirs)
        assert mine[0].keys() == theirs[0].keys()
        assert sampler.batches == 6


@pytest.mark.nightly
@pytest.mark.parametrize("context", ["fork", pytest.param("spawn", marks=pytest.mark.nightly)])
def test_workers_draw_with_a_sampler_that_was_used_each_on_its_own(context: str, made: tuple[Any, Path]) -> None:
    _, path = made
    with db.ReplayBuffer(path) as buffer:
        sampler = db.Slices(4, seed=5)
        dataset = BatchDataset(buffer, 8, sampler, batches=6)
        list(dataset)
        loader = DataLoader(dataset, batch_size=None, num_workers=2, multiprocessing_context=context)
        torch.manual_seed(3)
        first = list(loader)
        second = list(loader)
        assert all(batch["obs"].shape[:2] == (8, 4) for batch in first + second)
        assert len({str(names) for names in names_of(first + second)}) == 12
        torch.manual_seed(3)
        assert names_of(loader) == names_of(first)
        assert sampler.batches == 6


@pytest.mark.nightly
def test_workers_without_replacement_see_every_step_once_in_each(made: tuple[Any, Path]) -> None:
    _, path = made
    with db.ReplayBuffer(path) as buffer:
        steps = len(buffer)
        sampler = db.Uniform(5, replace=False)
        buffer.sample(steps // 3, sampler)
        dataset = BatchDataset(buffer, steps // 4, sampler, batches=8)
        found = names_of(DataLoader(dataset, batch_size=None, **forked(2)))
        for worker in (0, 1):
            drawn = [name for names in found[worker::2] for name in names]
            assert len({*drawn}) == len(drawn) == steps // 4 * 4


@pytest.mark.nightly
@pytest.mark.parametrize("context", ["fork", pytest.param("spawn", marks=pytest.mark.nightly)])
@pytest.mark.parametrize("persistent", [False, True])
def test_workers_and_later_epochs_see_what_a_living_writer_adds(context: str, persistent: bool, tmp_path: Path) -> None:
    world = Experience(2)
    with world.open(tmp_path / "store", 120, segment_rows=16) as buffer:
        feed = Feeder(world, buffer)
        feed.add(100)
        dataset = BatchDataset(tmp_path / "store", 64, refresh_every=2, batches=80)
        loader = DataLoader(
            dataset, batch_size=None, num_workers=2, multiprocessing_context=context, persistent_workers=persistent
        )
        newest = []
        for _ in range(2):
            before, seen = int(buffer.steps([0])[0]), 0
            for n, batch in enumerate(loader):
                world.check_batch(batch)
                seen = max(seen, int(batch["steps"].max()))
                if n % 8 == 0:
                    feed.add(10)
            assert seen > before  # within an epoch
            newest.append(seen)
            feed.add(100)
        assert newest[1] > newest[0] + 200  # of two environments


def test_without_workers_what_came_since_is_seen(tmp_path: Path) -> None:
    world = Experience(1)
    with world.open(tmp_path / "store", segment_rows=16) as buffer:
        feed = Feeder(world, buffer)
        feed.add(30)
        dataset = BatchDataset(tmp_path / "store", 64, batches=8)
        stays = BatchDataset(tmp_path / "store", 64, batches=8, refresh_every=None)
        assert max(map(max, names_of([*dataset, *stays]))) < 31
        feed.add(100)
        assert max(map(max, names_of(dataset))) > 60
        assert max(map(max, names_of(stays))) < 31


# Steps by number


@pytest.mark.some(2)
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("by_path", [False, True])
def test_steps_by_number_are_each_read_once(workers: int, by_path: bool, tmp_path: Path) -> None:
    world = Experience(2)
    with world.open(tmp_path / "store", segment_rows=16, frame_stack=2) as buffer:
        Feeder(world, buffer).add(40)
        dataset = StepDataset(tmp_path / "store" if by_path else buffer)
        assert len(dataset) == len(buffer) == 80
        loader = torch.utils.data.DataLoader(dataset, 16, shuffle=True, **forked(workers))
        seen: list[int] = []
        for batch in loader:
            world.check_batch(batch, 2)
            seen += batch["steps"].tolist()
        assert sorted(seen) == sorted(buffer.steps().tolist())
        one = dataset[3]
        assert one["obs"].shape == batch["obs"].shape[1:]
        assert int(one["steps"]) == buffer.steps()[3]
        assert dataset[-1]["steps"] == buffer.steps()[-1]
        np.testing.assert_array_equal(dataset[10:20]["steps"], buffer.steps()[10:20])
        assert set(StepDataset(buffer, columns=["reward"])[0]) == {"reward", "steps"}
        with pytest.raises(db.InputError, match="no column 'nope'"):
            StepDataset(buffer, columns=["nope"])
        for wrong in (80, -81, "first"):
            with pytest.raises(IndexError):
                dataset[wrong]
