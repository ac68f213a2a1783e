"""Batches that could not be delivered: the next are those of a run in which nothing failed, and states say so."""

from __future__ import annotations

import gc
import itertools
import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

import diskbuffer as db

_COLUMNS = {"obs": db.Column((3,), "float32"), "action": db.Column((), "int64")}
_SAMPLERS: dict[str, Callable[[], db.Sampler]] = {
    "uniform": lambda: db.Uniform(1),
    "epochs": lambda: db.Uniform(1, replace=False),
    "slices": lambda: db.Slices(4, 1),
    "prioritized": lambda: db.Prioritized(seed=1),
}


class _TransformError(Exception):
    pass


@pytest.fixture
def buffer(tmp_path: Path) -> Iterator[db.ReplayBuffer]:
    with db.ReplayBuffer(tmp_path / "store", columns=_COLUMNS, seed=3) as buffer:
        buffer.extend(np.arange(903, dtype=np.float32).reshape(301, 3), np.arange(300), np.zeros(300))
        yield buffer


class Sometimes:
    """A transform that fails now and then, as drawn with a seed."""

    def __init__(self, seed: int) -> None:
        self._random, self._lock = random.Random(seed), threading.Lock()

    def __call__(self, batch: Any) -> Any:
        with self._lock:
            fails = self._random.random() < 0.3
        if fails:
            raise _TransformError
        return batch["steps"].tolist()


def undisturbed(buffer: db.ReplayBuffer, sampler: db.Sampler, batches: int) -> list[Any]:
    return [buffer.sample(8, sampler)["steps"].tolist() for _ in range(batches)]


@pytest.mark.parametrize("name", _SAMPLERS)
def test_a_transform_that_raises_takes_no_batch_from_sample(buffer: db.ReplayBuffer, name: str) -> None:
    expected, sampler, found = undisturbed(buffer, _SAMPLERS[name](), 20), _SAMPLERS[name](), list[Any]()
    if name == "prioritized":
        sampler.column = "other"  # type: ignore[attr-defined]
    transform = Sometimes(5)
    while len(found) < 20:
        try:
            found.append(buffer.sample(8, sampler, transform=transform))
        except _TransformError:
            assert sampler.state_dict()["batches"] == len(found)
    assert found == expected
    assert sampler.batches == 20


def test_a_batch_that_fails_while_it_is_copied_is_the_next_one(buffer: db.ReplayBuffer, monkeypatch: pytest.MonkeyPatch) -> None:
    expected, sampler = undisturbed(buffer, db.Uniform(1), 20), db.Uniform(1)
    found = undisturbed(buffer, sampler, 18)  # so many that it is seen that the store is in memory

    def fail(*_: Any, **__: Any) -> Any:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr("diskbuffer.reading.batch_reader.as_batch", fail)
        with pytest.raises(MemoryError):
            buffer.sample(8, sampler)
    state = sampler.state_dict()
    assert (state["batches"], len(state["ahead"])) == (18, 1)
    buffer.extend(np.zeros((401, 3), np.float32), np.zeros(400), np.zeros(400))  # of which another batch would be drawn
    found += undisturbed(buffer, sampler, 1)
    assert found == expected[:19]
    assert sampler.state_dict()["ahead"] == []


@pytest.mark.some(2)
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("name", ["uniform", "epochs", "slices"])
def test_a_state_after_failures_gives_the_batches_of_a_run_without(buffer: db.ReplayBuffer, name: str, threads: int) -> None:
    """Through loops that fail, are left, and begin anew from a state that was saved in between, and calls of `sample`."""
    expected, sampler, found = undisturbed(buffer, _SAMPLERS[name](), 40), _SAMPLERS[name](), list[Any]()
    transform, rng = Sometimes(8), random.Random(9)
    while len(found) < 40:
        try:
            for steps in itertools.islice(buffer.loader(8, sampler, transform=transform, threads=threads), rng.randrange(6)):
                found.append(steps)
            found.append(buffer.sample(8, sampler, transform=transform))
        except _TransformError:
            pass
        state = sampler.state_dict()
        assert state["batches"] == len(found)
        if rng.random() < 0.5:
            sampler = _SAMPLERS[name]()
            sampler.load_state_dict(state)
    assert found[:40] == expected


def test_a_pass_goes_on_at_the_batch_that_a_transform_refused(buffer: db.ReplayBuffer) -> None:
    transform, found = Sometimes(4), list[int]()
    batches, state = buffer.batches(32, transform=transform), dict[str, Any]()
    while True:
        batches.load_state_dict(state)
        try:
            for steps in batches:
                found += cast(Any, steps)
        except _TransformError:
            state = batches.state_dict()
            continue
        break
    assert found == list(range(300))


def test_what_a_limiter_counts_was_delivered(tmp_path: Path) -> None:
    limiter = db.SampleToInsertRatio(4.0, min_size=1, error_buffer=1000, timeout=1)
    with db.ReplayBuffer(tmp_path / "store", columns=_COLUMNS, limiter=limiter) as buffer:
        buffer.extend(np.zeros((301, 3), np.float32), np.arange(300), np.zeros(300))
        buffer.sample(8)
        for _ in range(5):
            with pytest.raises(_TransformError):
                buffer.sample(8, transform=_raise)
        with pytest.raises(_TransformError):
            next(iter(buffer.loader(8, transform=_raise)))
        assert buffer.stats()["limiter"]["samples"] == 8


def _raise(_: Any) -> Any:
    raise _TransformError


def test_a_loop_that_one_of_its_own_threads_collects_leaves_what_it_drew_ahead(buffer: db.ReplayBuffer) -> None:
    expected, sampler = undisturbed(buffer, db.Uniform(1), 4), db.Uniform(1)
    held, may_go_on = list[Any](), threading.Event()

    def transform(batch: Any) -> Any:
        if len(begun) > 1:
            may_go_on.wait(60)
            held.clear()  # the last reference to the loop
            gc.collect()
            left.set()
        begun.append(batch)
        return batch["steps"].tolist()

    begun, left = list[Any](), threading.Event()
    loop = iter(buffer.loader(8, sampler, prefetch=3, transform=transform, transform_threads=1))
    assert next(loop) == expected[0]
    held.append(loop)
    del loop
    may_go_on.set()
    assert left.wait(60)
    for thread in [thread for thread in threading.enumerate() if thread.name.startswith("diskbuffer-transform")]:
        thread.join(60)
    assert sampler.state_dict()["batches"] == 1
    assert [buffer.sample(8, sampler)["steps"].tolist() for _ in range(3)] == expected[1:]
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("diskbuffer-transform")]
