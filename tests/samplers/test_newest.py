"""The newest steps are in every batch; the others are drawn as without them."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import diskbuffer as db
from diskbuffer.index.fields import ENDED, HEAD
from diskbuffer.index.index import Index
from diskbuffer.samplers.population import Everything
from tests.amounts import examples
from tests.chi_square import assert_uniform

COLUMNS = {"obs": db.Column((), "int64"), "action": db.Column((), "int64")}


def add(buffer: db.ReplayBuffer, env: int, n: int) -> None:
    first = int(buffer.counts()[1].sum()) * 2
    buffer.extend(np.arange(first, first + n + 1), np.zeros(n), np.zeros(n), env=env)


@examples(100, 3000)
@given(steps=st.lists(st.integers(0, 9), min_size=1, max_size=5), wanted=st.integers(0, 30), seed=st.integers(0, 9))
def test_the_newest_of_each_environment_come_before_the_second_newest_of_any(steps: list[int], wanted: int, seed: int) -> None:
    index = Index(len(steps), 1024, 0)
    for stream, n in enumerate(steps):
        index.add_slot(stream, stream)
        index.start_episodes(stream, np.array([0]))
        index.table[stream, [HEAD, ENDED]] = n, False
    streams, positions, *_ = Everything().newest(index, wanted, np.random.default_rng(seed))
    ages = np.array(steps)[streams] - 1 - positions
    assert len(set(zip(streams.tolist(), ages.tolist(), strict=True))) == len(streams) == min(wanted, sum(steps))
    every = sorted(age for n in steps for age in range(n))
    assert sorted(ages.tolist()) == every[:wanted]


KINDS: dict[str, dict[str, Any]] = {
    "uniform": {},
    "n-step": {"n_step": 3},
    "epochs": {"replace": False},
    "young": {"max_age": 40},
}


@pytest.mark.some(1)
@pytest.mark.parametrize("kind", KINDS)
def test_the_newest_are_in_every_batch_and_the_others_drawn_as_before(kind: str, tmp_path: Path) -> None:
    with db.ReplayBuffer(tmp_path / "store", columns=COLUMNS, n_envs=3, autoreset="next_step", segment_rows=16) as buffer:
        sampler, others = db.Uniform(1, newest=2, **KINDS[kind]), list[int]()
        for n in range(300):
            if n % 30 == 0:
                for env, more in enumerate((13, 8, 10)):
                    add(buffer, env, more)
                newest = {int(buffer.steps([0], env)[0]) for env in range(3)}
                seen = set[int]()
            batch = buffer.sample(16, sampler)
            first = batch["steps"][:2].tolist()
            assert len(set(first)) == 2
            assert set(first) <= newest  # of two of the three environments
            seen |= set(first)
            assert n % 30 < 29 or seen == newest
            others += batch["steps"][2:].tolist() if n >= 270 else []
        if kind != "epochs":  # in which each comes once
            others += [int(step) for _ in range(200) for step in buffer.draw(256, sampler)["steps"][2:]]
            there = buffer.steps()
            if kind == "young":
                there = np.concatenate([buffer.steps(np.arange(40), env) for env in range(3)])
            assert_uniform(np.array(others), there)
        else:
            drawn = np.concatenate([buffer.draw(16, sampler)["steps"][2:] for _ in range(200)])
            assert np.bincount(drawn).max() <= 14 * 200 // len(buffer) + 2


def test_a_resumed_run_has_the_same_batches_and_a_batch_that_is_mended_keeps_its_size(tmp_path: Path) -> None:
    def run(path: Path, parts: list[int]) -> list[list[int]]:
        found, state = list[list[int]](), None
        for rounds in parts:
            with db.ReplayBuffer(path, 100, columns=COLUMNS, n_envs=2, autoreset="next_step", segment_rows=8) as buffer:
                sampler = db.Uniform(5, newest=3)
                if state is None:
                    add(buffer, 0, 30)
                else:
                    sampler.load_state_dict(json.loads(state))
                for batch in itertools.islice(buffer.loader(8, sampler, prefetch=3), rounds):
                    found.append(batch["steps"].tolist())
                    add(buffer, len(found) % 2, 40)  # so that what was drawn ahead is evicted, also what was newest
                    assert set(found[-1]) <= set(range(2 * 70 * 40))
                state = json.dumps(sampler.state_dict())
        return found

    whole = run(tmp_path / "whole", [25])
    assert {len(batch) for batch in whole} == {8}
    assert run(tmp_path / "parts", [9, 4, 12]) == whole


def test_what_cannot_be_is_told_and_few_steps_are_filled_up(tmp_path: Path) -> None:
    with db.ReplayBuffer(tmp_path / "store", columns=COLUMNS) as buffer:
        with pytest.raises(db.errors.EmptyBufferError):
            buffer.sample(8, db.Uniform(newest=1))
        add(buffer, 0, 2)
        assert sorted(set(buffer.sample(8, db.Uniform(1, newest=5))["steps"].tolist())) == [0, 1]
        with pytest.raises(db.InputError, match="newest=9 steps cannot all be in a batch of 8"):
            buffer.sample(8, db.Uniform(newest=9))
        with pytest.raises(db.InputError, match="newest= cannot be combined with episodes="):
            db.Uniform(newest=1, episodes=buffer.episodes)
        assert [len(batch["steps"]) for batch in buffer.batches(8, sampler=db.Uniform(newest=1))] == [2]
    for wrong in (-1, 1.5, True, "x"):
        with pytest.raises(db.InputError, match="newest"):
            db.Uniform(newest=wrong)  # type: ignore[arg-type]
