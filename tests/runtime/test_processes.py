"""Buffers that go to other processes: pickled, and opened again there, or forked with everything that threads were at."""

from __future__ import annotations

import contextlib
import copy
import gc
import itertools
import multiprocessing
import os
import pickle
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import diskbuffer as db
from tests.support.experience import Experience, Feeder
from tests.support.in_fork import in_fork

pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")


# Pickling


@pytest.mark.parametrize(
    "how", [lambda b: pickle.loads(pickle.dumps(b)), copy.deepcopy, copy.copy], ids=["pickle", "deep", "copy"]
)
def test_a_copy_is_opened_again_with_its_draws(how: Callable[[db.ReplayBuffer], db.ReplayBuffer], tmp_path: Path) -> None:
    world = Experience(2)
    with world.open(tmp_path / "store", frame_stack=3, padding="zeros", threads=1, seed=5) as buffer:
        feed = Feeder(world, buffer)
        feed.add(50)
        buffer.sample(8)
        other = how(buffer)
        with pytest.raises(db.errors.ReadOnlyError):  # as this process writes to it
            other.flush()
        assert (other.frame_stack, other.stats()["threads"]) == (3, 1)
        for _ in range(3):
            a, b = buffer.sample(8), other.sample(8)
            assert all(torch.equal(a[name], b[name]) for name in a)
        feed.add(10)
        other.refresh()
        assert len(other) == 120
        other.close()
        state = pickle.dumps(buffer)
    with pytest.raises(db.errors.ClosedError):
        how(buffer)
    with pickle.loads(state) as again:  # nobody holds it now
        Feeder(world, again).add(5)
        assert (len(again), again.frame_stack) == (130, 3)
        assert again.sample(8)["obs"].shape == (8, 3, 34, 33)


def test_a_mark_that_is_read_is_opened_again_and_none_is_gone_back_to_twice(tmp_path: Path) -> None:
    world, path = Experience(), tmp_path / "store"
    with world.open(path) as buffer:
        feed = Feeder(world, buffer)
        feed.add(30)
        buffer.copies.mark("one")
        feed.add(30)
        with db.ReplayBuffer(path, mark="one", mode="r") as reader, pickle.loads(pickle.dumps(reader)) as again:
            assert len(again) == world.check(again) == 30
    with db.ReplayBuffer(path, mark="one") as buffer:
        Feeder(world, buffer).add(7)
        state = pickle.dumps(buffer)
    with pickle.loads(state) as again:
        assert len(again) == 37


class Steps(torch.utils.data.IterableDataset[Any]):
    """What users give to a DataLoader."""

    def __init__(self, buffer: db.ReplayBuffer) -> None:
        self.buffer = buffer

    def __iter__(self) -> Any:
        for _ in range(3):
            yield self.buffer.sample(4)["steps"]


@pytest.mark.nightly
def test_workers_that_are_spawned_sample(tmp_path: Path) -> None:
    world = Experience()
    with world.open(tmp_path / "store", seed=3) as buffer:
        Feeder(world, buffer).add(50)
        loader = torch.utils.data.DataLoader(Steps(buffer), batch_size=None, num_workers=1, multiprocessing_context="spawn")
        found = torch.stack(list(loader))
        assert torch.equal(found, torch.stack([buffer.sample(4)["steps"] for _ in range(3)]))


# Forks


def test_forks_in_the_middle_of_everything_sample(tmp_path: Path, amount: Callable[[int, int], int]) -> None:
    world = Experience(2, shape=(64, 64))
    with world.open(tmp_path / "store", 400, segment_rows=16, threads=2, frame_stack=2) as buffer:
        feed = Feeder(world, buffer)
        feed.add(300)
        world.check(buffer)
        stopped, errors = threading.Event(), list[BaseException]()

        def run(work: Callable[[], object]) -> None:
            try:
                while not stopped.is_set():
                    work()
                    time.sleep(0.002)
            except BaseException as error:  # noqa: BLE001
                errors.append(error)

        def load(batches: int = 20) -> None:
            for batch in itertools.islice(buffer.loader(32, threads=2), batches):
                world.check_batch(batch, 2)

        def child() -> None:
            for n in range(10):
                world.check_batch(buffer.sample(64, db.Uniform(n)), 2)
            with contextlib.suppress(db.InputError):  # the parent may have evicted them since
                world.check_batch(buffer.at(buffer.steps()[-10:]), 2)
            load(2)
            with pytest.raises(db.LockedError):
                buffer.add(*[np.zeros(2)] * 6)
            buffer.stats()
            buffer.refresh()
            world.check_batch(buffer.sample(64), 2)
            buffer.close()

        works = [
            feed.add,
            load,
            lambda: buffer.sample(256),
            lambda: buffer.sample(64, db.Slices(5)),
            lambda: len(buffer.episodes),
        ]
        threads = [threading.Thread(target=run, args=(work,)) for work in works]
        for thread in threads:
            thread.start()
        try:
            forks_made = amount(2, 30)
            assert [in_fork(child) for _ in range(forks_made)] == [0] * forks_made
        finally:
            stopped.set()
            for thread in threads:
                thread.join()
        assert not errors
        world.check(buffer)
    with db.ReplayBuffer(tmp_path / "store") as buffer:
        world.check(buffer)


def test_a_loop_over_a_loader_goes_on_in_a_fork(tmp_path: Path) -> None:
    world = Experience()
    with world.open(tmp_path / "store") as buffer:
        Feeder(world, buffer).add(50)
        loop, same = iter(buffer.loader(8, db.Uniform(1))), iter(buffer.loader(8, db.Uniform(1)))
        for _ in range(3):
            next(loop)
            next(same)

        def go_on() -> None:
            for _ in range(20):
                assert torch.equal(next(loop)["steps"], next(same)["steps"])
            loop.close()  # type: ignore[attr-defined]

        def leave() -> None:
            loop.close()  # type: ignore[attr-defined]

        for work in (go_on, leave, go_on):
            assert in_fork(work) == 0
        go_on()
        same.close()  # type: ignore[attr-defined]


def test_a_fork_leaves_the_lock_to_its_parent_and_does_not_keep_it(tmp_path: Path) -> None:
    world, path = Experience(), tmp_path / "store"
    held = [world.open(path)]
    Feeder(world, held[0]).add(10)

    def let_go() -> None:
        held[0].close()
        held.clear()
        gc.collect()

    assert in_fork(let_go) == 0
    with pytest.raises(db.LockedError):
        world.open(path)
    begun, end = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(end)
        os.read(begun, 1)  # lives until its parent lets it go
        os._exit(0)
    held[0].close()
    world.open(path).close()  # though the fork lives
    os.write(end, b"x")
    os.waitpid(pid, 0)
    os.close(begun)
    os.close(end)


def test_a_fork_sees_what_its_parent_did_when_refreshed_and_never_wrong_data(tmp_path: Path) -> None:
    """A parent evicts and fills slots again, which its fork has not mapped yet."""
    world = Experience()
    with world.open(tmp_path / "store", 100, segment_rows=8) as buffer:
        feed = Feeder(world, buffer)
        feed.add(100)
        buffer.flush(recompress=True)  # so that its files are not mapped
        context = multiprocessing.get_context("fork")
        go, done = context.Event(), context.Event()

        def child() -> None:
            known = buffer.steps()
            world.check_batch(buffer.at(known[-20:]))
            go.set()
            assert done.wait(60)
            with pytest.raises(db.InputError):  # it was looked for, and found to be evicted
                buffer.at(known[:8])
            assert world.check(buffer) >= 100
            assert buffer.episodes.start.max() > 400
            with pytest.raises(db.LockedError):
                buffer.sample(4, db.Prioritized())

        process = context.Process(target=child)
        process.start()
        assert go.wait(60)
        feed.add(400)
        done.set()
        process.join(60)
        assert process.exitcode == 0


def test_a_sampler_with_priorities_does_not_write_in_a_fork(tmp_path: Path) -> None:
    world, sampler = Experience(), db.Prioritized(seed=1)
    with world.open(tmp_path / "store") as buffer:
        feed = Feeder(world, buffer)
        feed.add(50)
        batch = buffer.sample(8, sampler)
        feed.add(20)

        def child() -> None:
            for call in (lambda: buffer.sample(8, sampler), lambda: sampler.update(batch["steps"], np.ones(8))):
                with pytest.raises(db.LockedError):
                    call()

        assert in_fork(child) == 0
        assert (buffer.at(buffer.steps(), columns=["priority"])["priority"][-10:] == 0).all()
        buffer.sample(8, sampler)
