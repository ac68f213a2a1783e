"""A run that is stopped and resumed sees the batches of one that was not: with an agent that adds between them, too."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import diskbuffer as db
from tests.support.experience import Experience, Feeder

SAMPLERS: dict[str, Callable[[], db.Sampler]] = {
    "uniform": lambda: db.Uniform(1),
    "n-step": lambda: db.Uniform(2, n_step=3),
    "recent": lambda: db.Uniform(3, max_age=30),
    "slices": lambda: db.Slices(5, 4),
    "padded": lambda: db.Slices(9, 5, strict=False, burn_in=3),
    "crossing": lambda: db.Slices(9, 6, crossing=True),
    "epochs": lambda: db.Uniform(7, replace=False),
}


def run(buffer: db.ReplayBuffer, feed: Feeder, batches: Iterator[Any], rounds: int) -> list[Any]:
    """Add and learn in turn."""
    found = []
    for _ in range(rounds):
        batch = next(batches)
        found.append({name: value.clone() for name, value in batch.items()})
        feed.add(3)
    return found


@pytest.mark.some(1)
@pytest.mark.parametrize("prefetch", [0, 1, 4])
@pytest.mark.parametrize("name", SAMPLERS)
def test_the_same_batches(name: str, prefetch: int, tmp_path: Path) -> None:
    world = Experience(2, 20, (9,))

    def open_(which: str) -> db.ReplayBuffer:
        return world.open(tmp_path / which, 150, frame_stack=2, segment_rows=16)

    def batches(buffer: db.ReplayBuffer, sampler: db.Sampler) -> Iterator[Any]:
        if not prefetch:
            return (buffer.sample(16, sampler) for _ in itertools.count())
        return iter(buffer.loader(16, sampler, prefetch=prefetch, threads=2))

    sampler = SAMPLERS[name]()
    with open_("whole") as buffer:
        feed = Feeder(world, buffer)
        feed.add(60)
        expected = run(buffer, feed, batches(buffer, sampler), 60)
    found: list[Any] = []
    state: Any = None
    for part, rounds in enumerate((7, 20, 33)):
        with open_("parts") as buffer:
            feed = Feeder(world, buffer)
            if not part:
                feed.add(60)
            sampler = SAMPLERS[name]()
            if state is not None:
                sampler.load_state_dict(json.loads(json.dumps(state)))
            loop = batches(buffer, sampler)
            found += run(buffer, feed, loop, rounds)
            state = sampler.state_dict()
            loop.close()  # type: ignore[attr-defined]
            assert sampler.state_dict() == state
    for a, b in zip(expected, found, strict=True):
        assert a.keys() == b.keys()
        assert [key for key in a if not torch.equal(a[key], b[key])] == []


def test_a_loop_that_is_left_and_entered_again_does_not_change_what_comes(tmp_path: Path) -> None:
    world = Experience(1, 20, (9,))
    with world.open(tmp_path / "store") as buffer:
        feed = Feeder(world, buffer)
        feed.add(60)
        loader, sampler = buffer.loader(8, db.Uniform(3)), db.Uniform(3)
        one = buffer.loader(8, sampler)
        expected = [batch["steps"].tolist() for batch in itertools.islice(loader, 9)]
        found = [batch["steps"].tolist() for _ in range(3) for batch in itertools.islice(one, 3)]
        assert found == expected
        ahead = len(sampler.state_dict()["ahead"])
        assert ahead == 3
        batch = buffer.sample(8, sampler)["steps"].tolist()  # the first of those that were left
        assert batch == next(iter(loader))["steps"].tolist()
        assert len(sampler.state_dict()["ahead"]) == 2
        buffer.sample(5, sampler)  # others are of no use
        assert not sampler.state_dict()["ahead"]
        assert sampler.batches == 13


def test_what_was_drawn_ahead_and_evicted_since_is_drawn_anew(tmp_path: Path) -> None:
    world = Experience(2, 20, (9,))
    with world.open(tmp_path / "store", 100, segment_rows=8) as buffer:
        feed = Feeder(world, buffer)
        feed.add(60)
        sampler = db.Uniform(5)
        loader = buffer.loader(16, sampler)
        next(iter(loader))
        feed.add(300)
        for batch in itertools.islice(loader, 5):
            world.check_batch(batch)
        damaged: list[dict[str, Any]] = [{"ahead": 3}, {"ahead": [{}]}, {"seed": -1}, {"batches": "x"}]
        damaged.append({"ahead": [{"streams": ["int64", [1], [0]]}]})
        for state in damaged:
            with pytest.raises(db.InputError, match="sampler's"):
                sampler.load_state_dict({**sampler.state_dict(), **state})
        lists = {name: ["int64", [16], [2**60] * 16] for name in ("streams", "positions", "starts", "ends")}
        sampler.load_state_dict({"seed": 1, "batches": 0, "ahead": [lists]})  # a stranger's
        world.check_batch(buffer.sample(16, sampler))


@pytest.mark.some(1)
@pytest.mark.parametrize("kind", ["hindsight", "burn-in"])
def test_what_belongs_to_a_sample_is_there_or_the_sample_is_drawn_anew(kind: str, tmp_path: Path) -> None:
    """One long episode, whose start is evicted while batches wait: goals and burn-in are evicted before the step itself."""
    columns = {"action": db.Column((), "int64"), "obs/observation": db.Column((), "int64")}
    columns |= {f"obs/{name}_goal": db.Column((), "int64") for name in ("achieved", "desired")}
    with db.ReplayBuffer(tmp_path / "store", 128, columns=columns, segment_rows=16, frame_stack=3) as buffer:

        def add(first: int, n: int) -> None:
            rows = np.arange(first, first + n + 1)
            obs = {"observation": rows, "achieved_goal": rows, "desired_goal": np.full(n + 1, -1)}
            buffer.extend(obs, rows[:-1], np.zeros(n))

        add(0, 300)
        sampler: db.Sampler = db.Slices(4, 1, burn_in=12)
        if kind == "hindsight":
            sampler = db.Hindsight(lambda batch: batch["obs"]["desired_goal"][:, -1], "episode", 1.0, seed=1)
        first, n = 300, 0
        for batch in itertools.islice(buffer.loader(48, sampler, prefetch=4), 60):
            steps = batch["steps"]
            if kind == "hindsight":
                goals = batch["obs"]["desired_goal"][:, -1]
                assert ((goals > 0) & (goals <= first)).all()
                assert (batch["reward"] == goals).all()
            else:
                rows = steps[:, 12:13] + torch.arange(-12, 4)
                mask = batch["mask"]
                stacks = rows[:, :, None] + torch.arange(-2, 1)
                assert (batch["obs"]["observation"][mask] == stacks[mask]).all()
                n += int((~mask).sum())
            add(first, 10)
            first += 10
        assert n or kind == "hindsight"
        state = sampler.state_dict()
        assert len(state["ahead"]) == 4
        for other in (
            db.Slices(9, crossing=True),
            db.Hindsight(lambda batch: batch) if kind == "burn-in" else db.Slices(4, burn_in=2),
        ):
            with pytest.raises(db.InputError, match="sampler's state"):  # of samples of another kind
                other.load_state_dict(state)
        longer = db.Slices(15, 1)
        longer.load_state_dict(state)
        assert (buffer.sample(48, longer)["obs"]["observation"][:, :, -1] >= 0).all()
