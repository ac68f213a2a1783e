"""Passes over everything, in order and shuffled: nothing skipped, nothing twice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import diskbuffer as db
from tests.support.experience import Experience, Feeder


@pytest.mark.some(3)
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("merge_last", [False, True])
@pytest.mark.parametrize("size", [1, 7, 32, 100, 1000])
def test_every_step_comes_once(shuffle: bool, merge_last: bool, size: int, tmp_path: Path) -> None:
    world = Experience(2, 20, (9,))
    with world.open(tmp_path / "store", 80, segment_rows=8, frame_stack=2) as buffer:
        Feeder(world, buffer).add(73)
        steps = buffer.steps()
        batches = buffer.batches(size, shuffle, merge_last, seed=1)
        sizes, found = [], []
        for batch in batches:
            world.check_batch(batch, 2)
            sizes.append(len(batch["steps"]))
            found += batch["steps"].tolist()
        assert len(batches) == len(sizes)
        assert all(n == size for n in sizes[:-1])
        if merge_last:
            assert size <= sizes[-1] < 2 * size or sizes == [len(steps)]
        else:
            assert sizes[-1] <= size
        assert (found == steps.tolist()) != shuffle
        assert sorted(found) == sorted(steps.tolist())
        again = [step for batch in batches for step in batch["steps"].tolist()]
        assert again == found
        other = [step for batch in buffer.batches(size, True) for step in batch["steps"].tolist()]
        assert other != found
        assert sorted(other) == sorted(found)


def test_what_is_added_meanwhile_is_not_part_of_it_and_what_is_evicted_may_drop_out(tmp_path: Path) -> None:
    world = Experience(2, 20, (9,))
    with world.open(tmp_path / "store", 200, segment_rows=8) as buffer:
        feed = Feeder(world, buffer)
        feed.add(110)
        begin, found = buffer.steps(), []
        for batch in buffer.batches(8, shuffle=True, prefetch=2):
            world.check_batch(batch)
            found += batch["steps"].tolist()
            feed.add(2)
        assert len(set(found)) == len(found)
        assert set(found) <= set(begin.tolist())
        assert set(found) >= set(begin.tolist()) & set(buffer.steps().tolist())
        assert len(found) < len(begin)


def test_an_empty_buffer_has_no_batches_and_bad_sizes_are_refused(tmp_path: Path) -> None:
    with Experience().open(tmp_path / "store") as buffer:
        assert list(buffer.batches(8)) == []
        assert len(buffer.batches(8)) == 0
        with pytest.raises(db.InputError, match="batch_size"):
            buffer.batches(0)
        with pytest.raises(db.InputError, match="seed"):
            buffer.batches(8, seed=-1)


def test_a_reader_beside_a_writer_passes_over_what_it_sees(tmp_path: Path) -> None:
    world = Experience(2, 20, (9,))
    with world.open(tmp_path / "store", segment_rows=8) as buffer:
        feed = Feeder(world, buffer)
        feed.add(50)
        with db.ReplayBuffer(tmp_path / "store", mode="r") as reader:
            feed.add(10)
            found = np.concatenate([batch["steps"].numpy() for batch in reader.batches(16)])
            assert len(found) == 100


# Passes over what a sampler can draw


@pytest.mark.some(3)
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("merge_last", [False, True])
@pytest.mark.parametrize(
    "make",
    [
        lambda some: db.Slices(5),
        lambda some: db.Slices(4, burn_in=2),
        lambda some: db.Slices(9, strict=False),
        lambda some: db.Slices(6, crossing=True),
        lambda some: db.Slices(5, episodes=some),
        lambda some: db.Uniform(n_step=3),
        lambda some: db.Uniform(episodes=some),
    ],
    ids=["slices", "burn-in", "padded", "crossing", "selected", "n-step", "selected steps"],
)
def test_every_sample_of_a_sampler_comes_once(make: Any, merge_last: bool, shuffle: bool, tmp_path: Path) -> None:
    world = Experience(2, 20, (9,))
    with world.open(tmp_path / "store", 120, segment_rows=8) as buffer:
        Feeder(world, buffer).add(91)
        sampler, drawing = make(buffer.episodes[::2]), make(buffer.episodes[::2])
        state = sampler.state_dict()
        batches = buffer.batches(16, shuffle, merge_last, sampler=sampler, seed=1)
        burn_in = getattr(sampler.form, "burn_in", 0)
        found, alike = [], dict[int, Any]()
        for batch in batches:
            steps = batch["steps"][:, burn_in] if batch["steps"].ndim == 2 else batch["steps"]
            found.append(steps.tolist())
            alike |= {int(step): {name: value[i] for name, value in batch.items()} for i, step in enumerate(steps)}
        flat = [step for some in found for step in some]
        assert len(set(flat)) == len(flat)
        assert len(batches) == len(found)
        assert all(len(some) == 16 for some in found[:-1])
        assert 16 <= len(found[-1]) < 32 if merge_last else len(found[-1]) <= 16
        assert (flat == sorted(flat, key=lambda step: (step % 2, step))) != shuffle
        drawn = {int(step) for _ in range(300) for step in buffer.draw(16, drawing)["steps"]}
        assert drawn == set(flat)
        for batch in [buffer.sample(16, drawing) for _ in range(5)]:  # what a sample is of is the same
            steps = batch["steps"][:, burn_in] if batch["steps"].ndim == 2 else batch["steps"]
            for i, step in enumerate(steps.tolist()):
                for name, value in batch.items():
                    np.testing.assert_array_equal(value[i], alike[step][name], err_msg=name)
        assert sampler.state_dict() == state


def test_a_pass_over_sequences_beside_an_agent_and_what_cannot_be(tmp_path: Path) -> None:
    world = Experience(2, 20, (9,))
    with world.open(tmp_path / "store", 200, segment_rows=8) as buffer:
        feed = Feeder(world, buffer)
        feed.add(110)
        found, batches = list[int](), buffer.batches(8, True, sampler=db.Slices(5), prefetch=2)
        for batch in batches:
            found += batch["steps"][:, 0].tolist()
            feed.add(2)
        assert len(set(found)) == len(found)
        assert list(buffer.batches(8, sampler=db.Slices(100))) == []
        for sampler in (db.Prioritized(), db.Hindsight(lambda batch: batch["reward"])):
            with pytest.raises(db.InputError, match="Uniform, Slices or Windows"):
                buffer.batches(8, sampler=sampler)
        with pytest.raises(db.InputError, match="one of them"):
            buffer.batches(8, sampler=db.Slices(3), steps=buffer.steps())
