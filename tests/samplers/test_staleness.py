"""Steps that are too old are never drawn, all others evenly: by how many came after them, and by a column."""

from __future__ import annotations

import copy
import itertools
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

import diskbuffer as db
from tests.amounts import examples
from tests.chi_square import assert_uniform

Int64 = npt.NDArray[np.int64]
COLUMNS = {"obs": db.Column((), "int64"), "action": db.Column((), "int64")}


def open_(path: Path, dtype: str = "int64", **options: Any) -> db.ReplayBuffer:
    extra = {"version": db.Column((), dtype, allow_nan=True)}
    return db.ReplayBuffer(path, columns=COLUMNS, extra=extra, **{"segment_rows": 8, **options})


def add(buffer: db.ReplayBuffer, env: int, versions: Any) -> None:
    n = len(versions)
    obs = np.arange(n + 1) + int(buffer.counts()[1].sum()) * 2  # goes on nowhere: every call is an episode
    zeros = np.zeros(n)
    buffer.extend(obs, zeros, zeros, env=env, version=np.asarray(versions))


def all_that(buffer: db.ReplayBuffer, sampler: db.Sampler | None = None) -> Int64:
    """Return the steps that a sampler can draw, from a pass over them."""
    burn_in = 0 if sampler is None else getattr(sampler.form, "burn_in", 0)
    found = [batch["steps"].numpy() for batch in buffer.batches(256, sampler=sampler, prefetch=1)]
    return np.concatenate([np.empty(0, np.int64), *(steps if steps.ndim == 1 else steps[:, burn_in] for steps in found)])


def young_by_hand(buffer: db.ReplayBuffer, streams: int, most: float, column: bool) -> Int64:
    """Return the steps that are young enough, from all of them, one by one."""
    steps = np.sort(buffer.steps())
    if not len(steps):
        return steps
    values = buffer.at(steps, columns=["version"])["version"].numpy().astype(np.float64)
    mine = [np.flatnonzero(steps % streams == stream) for stream in range(streams)]
    newest = max(values[some[-1]] if values[some[-1]] == values[some[-1]] else -np.inf for some in mine if len(some))
    found = list[int]()
    for some in mine:
        for number, at in enumerate(reversed(some.tolist())):
            if number >= most if not column else not (values[at] >= newest - most and newest > -np.inf):
                break
            found.append(int(steps[at]))
    return np.sort(np.array(found, np.int64))


ADDED = st.tuples(st.integers(0, 2), st.integers(1, 20), st.integers(-3, 4), st.integers(0, 2))


@examples(5, 150)
@given(
    added=st.lists(ADDED, min_size=1, max_size=12),
    most=st.integers(0, 6),
    dtype=st.sampled_from(["int64", "uint64", "int16", "float64", "float32"]),
    capacity=st.sampled_from([None, 40]),
    kept=st.booleans(),
)
def test_the_steps_that_can_be_drawn_are_those_found_by_hand(
    added: list[tuple[int, int, int, int]], most: int, dtype: str, capacity: int | None, kept: bool
) -> None:
    """Versions rise, mostly, and fall here and there; NaN is among those that are floats."""
    with tempfile.TemporaryDirectory() as directory:
        buffer = open_(Path(directory) / "store", dtype, capacity=capacity, n_envs=3, autoreset="next_step")
        reader = db.ReplayBuffer(buffer.path, mode="r")
        sampler, version = db.Uniform(1, max_age=most, age_column="version"), 0
        beside = copy.deepcopy(sampler)
        for number, (env, n, rise, pause) in enumerate(added):
            versions = version + np.sort(np.arange(n) * rise % 4)
            version = int(versions[-1]) + rise // 2
            if dtype == "float64" and number % 5 == 4:
                versions = np.where(np.arange(n) % 3 == 0, np.nan, versions)
            if rise == -3:
                buffer.clear()
            add(buffer, env, np.maximum(versions, 0) if dtype == "uint64" else versions)
            if pause and number < len(added) - 1:
                continue  # more is new when it is looked at next
            expected = young_by_hand(buffer, 3, most, column=True)
            reader.refresh()
            for one, its in ((buffer, sampler), (reader, beside), (buffer, db.Uniform(max_age=most, age_column="version"))):
                np.testing.assert_array_equal(np.sort(all_that(one, its)), expected)
            if len(expected):
                assert set(buffer.draw(50, sampler)["steps"].tolist()) <= set(expected.tolist())
            else:
                with pytest.raises(db.errors.EmptyBufferError, match="age_column='version'"):
                    buffer.draw(5, sampler)
            if not kept:
                sampler = copy.deepcopy(sampler)
            by_steps = young_by_hand(buffer, 3, most + 1, column=False)
            np.testing.assert_array_equal(np.sort(all_that(buffer, db.Uniform(max_age=most + 1))), by_steps)
        buffer.close()
        reader.close()


@pytest.mark.some(2)
@pytest.mark.parametrize("how", ["steps", "column"])
@pytest.mark.parametrize("kind", ["uniform", "slices", "padded", "over episodes", "epochs"])
def test_what_is_young_enough_is_drawn_evenly_and_nothing_else(kind: str, how: str, tmp_path: Path) -> None:
    given: dict[str, Any] = {"max_age": 60} if how == "steps" else {"max_age": 2, "age_column": "version"}
    samplers = {
        "uniform": db.Uniform(1, **given),
        "slices": db.Slices(5, 1, **given),
        "padded": db.Slices(9, 1, strict=False, burn_in=3, **given),
        "over episodes": db.Slices(5, 1, over="episodes", **given),
        "epochs": db.Uniform(1, replace=False, **given),
    }
    sampler = samplers[kind]
    with open_(tmp_path / "store", n_envs=2, autoreset="next_step", capacity=400) as buffer:
        for version in range(20):
            add(buffer, version % 2, [version] * 27)
            add(buffer, 0, [version] * 3)
        steps = buffer.steps()
        by_hand = young_by_hand(buffer, 2, given["max_age"], column=how == "column")
        assert 0 < len(by_hand) < len(steps)
        if kind in ("slices", "over episodes"):  # with four more steps of the episode
            episode = {
                step: n for n, one in enumerate(buffer.episodes) for step in range(one.start, one.start + 2 * one.length, 2)
            }
            by_hand = np.array([s for s in by_hand.tolist() if episode.get(s + 8) == episode[s]])
        np.testing.assert_array_equal(np.sort(all_that(buffer, sampler)), by_hand)
        drawn = np.concatenate([buffer.draw(256, sampler)["steps"] for _ in range(30)])
        if kind == "epochs":
            for first in range(0, len(drawn) - len(by_hand), len(by_hand)):
                np.testing.assert_array_equal(np.sort(drawn[first : first + len(by_hand)]), by_hand)
        elif kind == "over episodes":
            numbers = np.array([episode[step] for step in drawn.tolist()])
            assert_uniform(numbers, np.unique([episode[step] for step in by_hand.tolist()]))
        else:
            assert_uniform(drawn, by_hand)


@pytest.mark.some(1)
@pytest.mark.parametrize("how", ["steps", "column"])
def test_a_run_that_is_resumed_goes_on_and_an_epoch_leaves_out_what_became_too_old(how: str, tmp_path: Path) -> None:
    given: dict[str, Any] = {"max_age": 50} if how == "steps" else {"max_age": 4, "age_column": "version"}

    def run(path: Path, parts: list[int], replace: bool) -> list[list[int]]:
        found, state, version = list[list[int]](), None, 0
        for rounds in parts:
            with open_(path, n_envs=2, autoreset="next_step", capacity=300) as buffer:
                sampler = db.Uniform(3, replace=replace, **given)
                if state is None:
                    add(buffer, 0, [0] * 40)
                    add(buffer, 1, [0] * 60)
                else:
                    sampler.load_state_dict(json.loads(state))
                for batch in itertools.islice(buffer.loader(8, sampler, prefetch=2), rounds):
                    found.append(batch["steps"].tolist())
                    version += 1
                    add(buffer, version % 2, [version] * 5)
                state = json.dumps(sampler.state_dict())
                if not replace:
                    young = all_that(buffer, sampler)
                    assert set(buffer.draw(30, db.Uniform(1, replace=False, **given))["steps"].tolist()) <= set(young.tolist())
        return found

    for replace in (True, False):
        whole = run(tmp_path / f"whole {replace}", [30], replace)
        assert run(tmp_path / f"parts {replace}", [7, 3, 20], replace) == whole


def test_a_loader_delivers_what_was_young_enough_when_it_was_drawn(tmp_path: Path) -> None:
    with open_(tmp_path / "store") as buffer:
        add(buffer, 0, [0] * 30)
        sampler = db.Uniform(1, max_age=5)
        batches = iter(buffer.loader(16, sampler, prefetch=2))
        now = set(buffer.steps()[-5:].tolist())
        assert set(next(batches)["steps"].tolist()) <= now  # and two more are drawn
        add(buffer, 0, [0] * 30)
        assert set(next(batches)["steps"].tolist()) | set(next(batches)["steps"].tolist()) <= now
        assert set(next(batches)["steps"].tolist()) <= set(buffer.steps()[-5:].tolist())


def test_each_environment_has_its_newest_steps_and_a_sampler_may_change_its_buffer(tmp_path: Path) -> None:
    sampler = db.Uniform(1, max_age=1, age_column="version")
    for name in ("one", "other"):
        with open_(tmp_path / name, n_envs=2, autoreset="next_step") as buffer:
            add(buffer, 0, [5, 6, 7])
            add(buffer, 1, [0, 0, 6])
            streams = buffer.steps() % 2
            assert np.bincount(all_that(buffer, sampler) % 2).tolist() == [2, 1]
            assert np.bincount(all_that(buffer, db.Uniform(max_age=2)) % 2).tolist() == [2, 2]
            assert len(streams) == 6
    with open_(tmp_path / "one") as one, open_(tmp_path / "other") as other:
        loader = one.loader(4, sampler)
        other.sample(4, sampler)
        with pytest.raises(db.InputError, match="make one for each"):
            next(iter(loader))


def test_what_cannot_be_is_told(tmp_path: Path) -> None:
    with open_(tmp_path / "store", "float64") as buffer:
        with pytest.raises(db.errors.EmptyBufferError, match="no complete step"):
            buffer.sample(4, db.Uniform(max_age=4, age_column="version"))
        add(buffer, 0, [np.nan] * 4)
        with pytest.raises(db.errors.EmptyBufferError, match="young enough for max_age=4, age_column='version'"):
            buffer.sample(4, db.Slices(2, max_age=4, age_column="version"))
        add(buffer, 0, [1, 2, 3])
        with pytest.raises(
            db.errors.EmptyBufferError,
            match="the 3 steps of a sequence within max_age=1, age_column='version', the longest has 2",
        ):
            buffer.sample(4, db.Slices(3, max_age=1, age_column="version"))
        buffer.columns.write("later", buffer.steps(), np.zeros(len(buffer)))
        for name, why in (("nothing", "no column 'nothing'"), ("later", "recorded"), ("terminated", "one number a step")):
            with pytest.raises(db.InputError, match=why):
                buffer.sample(4, db.Uniform(max_age=1, age_column=name))
        some = buffer.episodes[:]
    wrong: list[dict[str, Any]] = [{"max_age": 0}, {"max_age": 1.5}, {"max_age": True}, {"max_age": -1, "age_column": "version"}]
    wrong += [{"max_age": float("nan"), "age_column": "version"}, {"age_column": "version"}, {"max_age": 3, "episodes": some}]
    wrong += [{"max_age": 1, "age_column": 7}]
    for arguments in wrong:
        with pytest.raises(db.InputError, match=r"max_age|age_column"):
            db.Uniform(**arguments)
    with pytest.raises(db.InputError, match="max_age"):
        db.Slices(4, crossing=True, max_age=4)


def test_the_stores_of_several_writers_have_one_limit_and_their_newest_steps_in_turn(tmp_path: Path) -> None:
    """Versions are compared across writers; one comes late, and one is never young enough."""
    given: dict[str, Any] = {"max_age": 3, "age_column": "version"}
    with open_(tmp_path, writer="a", n_envs=2, autoreset="next_step") as a, open_(tmp_path, writer="old") as old:
        add(old, 0, [0] * 9)
        learner, sampler = db.ReplayBuffer(tmp_path, mode="r"), db.Uniform(1, **given)
        for version in range(3, 8):
            add(a, version % 2, [version] * 7)
            if version >= 5:
                with open_(tmp_path, writer="late") as late:
                    add(late, 0, [version - 2, version])
            learner.refresh()
            expected = young_by_hand(learner, 1024, 3, column=True)
            for one in (sampler, db.Uniform(**given)):
                np.testing.assert_array_equal(np.sort(all_that(learner, one)), expected)
            assert set(learner.draw(64, sampler)["steps"].tolist()) <= set(expected.tolist())
        by_steps = young_by_hand(learner, 1024, 4, column=False)
        np.testing.assert_array_equal(np.sort(all_that(learner, db.Uniform(max_age=4))), by_steps)
        steps = learner.steps()
        newest = {steps[steps % 1024 == stream].max() for stream in np.unique(steps % 1024).tolist()}
        assert len(newest) == 4
        assert set(learner.draw(16, db.Uniform(newest=4))["steps"][:4].tolist()) == newest
        whole = learner.draw(16, db.Uniform(3, newest=4))["steps"]
        parts = [next(iter(learner.loader(8, db.Uniform(3, newest=4), rank=rank, world_size=2)))["steps"] for rank in range(2)]
        np.testing.assert_array_equal(np.stack(parts, axis=1).ravel(), whole)
        learner.close()
