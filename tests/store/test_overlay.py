"""A store in a lower layer of an overlay file system, as in an image: what is written to is copied up."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import diskbuffer as db
from tests.support.experience import Experience, Feeder


@pytest.fixture
def layers(tmp_path: Path) -> Iterator[tuple[Path, Path]]:
    """Yield a directory, and where it will be seen, with a layer above it, once `mount` has run."""
    for name in ("lower", "upper", "work", "merged"):
        (tmp_path / name).mkdir()
    yield tmp_path / "lower", tmp_path / "merged"
    if sys.platform == "linux":
        ctypes.CDLL(None).umount2(os.fsencode(tmp_path / "merged"), 2)


def mount(merged: Path) -> None:
    base = merged.parent
    options = f"lowerdir={base}/lower,upperdir={base}/upper,workdir={base}/work"
    if subprocess.run(["mount", "-t", "overlay", "overlay", "-o", options, str(merged)], capture_output=True).returncode:
        pytest.skip("needs the right to mount an overlay file system")


@pytest.mark.some(1)
@pytest.mark.parametrize("capacity", [None, 300])
def test_rows_that_were_there_are_read_by_the_writer(layers: tuple[Path, Path], capacity: int | None) -> None:
    lower, merged = layers
    world = Experience(2)
    with world.open(lower / "store", capacity, segment_rows=64) as buffer:
        adding = Feeder(world, buffer)
        adding.add(230)
        buffer.columns.write("value", buffer.steps(), np.ones(len(buffer), np.float32))
    mount(merged)
    with world.open(merged / "store", capacity) as buffer:
        world.check(buffer)
        adding = Feeder(world, buffer)
        for _ in range(6):
            adding.add(60)
            world.check(buffer)
        buffer.columns.write("value", buffer.steps()[-20:], np.full(20, 2, np.float32))
        assert (buffer.at(buffer.steps()[-20:])["value"] == 2).all()
        assert buffer.check(progress=False).problems == []
    assert db.check(merged / "store", progress=False).problems == []
    assert db.check(lower / "store", progress=False).problems == []  # nobody touched it


def test_readers_that_were_open_before_the_writer_see_what_it_does(layers: tuple[Path, Path]) -> None:
    lower, merged = layers
    world = Experience(2)
    with world.open(lower / "store", 300, segment_rows=64) as buffer:
        Feeder(world, buffer).add(230)
    mount(merged)
    with db.ReplayBuffer(merged / "store", mode="r") as reader, db.ReplayBuffer(merged / "store", mode="r") as cold:
        world.check(reader)
        with world.open(merged / "store") as buffer:
            adding = Feeder(world, buffer)
            for _ in range(8):
                adding.add(60)
                for one in (reader, cold):
                    world.check_batch(one.sample(64))
                    one.refresh()
                    assert len(one) == len(buffer)
                    world.check(one)
            buffer.flush(recompress=True)
            reader.refresh()
            world.check(reader)
        reader.refresh()
        world.check(reader)
