"""Loaders that see by themselves what a writer elsewhere has added."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import diskbuffer as db
from tests.support.experience import Experience, Feeder

AN_HOUR = 3600.0


def newest(loader: Any, batches: int) -> int:
    return max(int(batch["steps"].max()) for batch in itertools.islice(loader, batches))


@pytest.mark.parametrize("mixed", [False, True])
def test_a_loader_of_a_reader_sees_new_steps_if_it_is_asked_to(mixed: bool, tmp_path: Path) -> None:
    world = Experience(1)
    with world.open(tmp_path / "store") as writer, db.ReplayBuffer(tmp_path / "store", mode="r", seed=1) as reader:
        feed = Feeder(world, writer)
        feed.add(20)
        reader.refresh()
        source = db.Mixture([(reader, 1.0)]) if mixed else reader
        feed.add(200)
        for never in (None, AN_HOUR):
            assert newest(source.loader(32, refresh_every=never), 5) < 25
        loop = iter(source.loader(32, refresh_every=0))
        assert newest(loop, 5) > 25
        feed.add(800)
        assert newest(loop, 20) > 300
        for batch in itertools.islice(loop, 5):
            batch.pop("part", None)
            world.check_batch(batch)


def test_it_drops_what_was_evicted_and_begins_on_an_empty_store(tmp_path: Path) -> None:
    world = Experience(2)
    with world.open(tmp_path / "store", 100, segment_rows=8) as writer, db.ReplayBuffer(tmp_path / "store", mode="r") as reader:
        feed = Feeder(world, writer)
        with pytest.raises(db.errors.EmptyBufferError):
            next(iter(reader.loader(16, refresh_every=0)))
        feed.add(30)
        loop = iter(reader.loader(16, db.Uniform(1, replace=False), refresh_every=0, prefetch=1))
        for _ in range(10):
            feed.add(30)
            next(loop)  # begun before
            batch = next(loop)
            assert np.isin(batch["steps"].numpy(), writer.steps()).all()
            world.check_batch(batch)


def test_it_does_nothing_where_the_buffer_is_the_one_that_writes(tmp_path: Path) -> None:
    world = Experience(1)
    with world.open(tmp_path / "store", seed=5) as buffer:
        Feeder(world, buffer).add(50)
        index = buffer._reader.index
        newest(buffer.loader(16, refresh_every=0), 3)
        assert buffer._reader.index is index


@pytest.mark.parametrize("seconds", [-1, float("nan"), "1", True])
def test_what_are_no_seconds_is_refused(seconds: Any, tmp_path: Path) -> None:
    with Experience(1).open(tmp_path / "store") as buffer:
        Feeder(Experience(1), buffer).add(5)
        for source in (buffer, db.Mixture([(buffer, 1.0)])):
            with pytest.raises(db.InputError, match="refresh_every must be seconds"):
                source.loader(4, refresh_every=seconds)
