"""Batches of some columns: what all columns would have, and nothing else is read."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import diskbuffer as db
from diskbuffer.schema.nested import flatten
from tests.support.experience import SAMPLERS

COLUMNS = {
    **{"obs/camera": db.Column((40, 40), "uint8"), "obs/state": db.Column((3,), "float32"), "action": db.Column((2,), "float32")},
    "score": db.Column((), "int64"),
}
GOALS = {f"obs/{name}": db.Column((2,), "float32") for name in ("observation", "achieved_goal", "desired_goal")}
SOME = [["obs/camera"], ["obs/state", "action"], ["reward", "obs/camera", "score"], ["terminated"], list[str]()]
NOTES = {"steps", "discount", "mask", "weights", "is_first", "is_last", "relabelled", "part"}  # that come in any case


def made(path: Path, columns: dict[str, db.Column], seed: int, **options: Any) -> db.ReplayBuffer:
    buffer, rng = db.ReplayBuffer(path, columns=columns, seed=1, **options), np.random.default_rng(seed)
    for steps in (9, 20, 31):
        rows = {path: (rng.random((steps + 1, *c.shape)) * 200).astype(c.dtype) for path, c in columns.items()}
        obs = {path.removeprefix("obs/"): values for path, values in rows.items() if path.startswith("obs/")}
        others: Any = {
            path: values[:-1] for path, values in rows.items() if path not in ("action", *(f"obs/{name}" for name in obs))
        }
        ends = np.arange(steps) == steps - 1
        buffer.extend(obs, rows["action"][:-1], rng.random(steps), terminated=ends, **others)
    return buffer


def assert_has(some: dict[str, Any], columns: list[str], every: dict[str, Any]) -> None:
    found, expected = flatten(some), flatten(every)
    wanted = {*columns, *(f"next_{path}" for path in columns if f"next_{path}" in expected)}
    assert found.keys() == wanted | (NOTES & expected.keys())
    for path, values in found.items():
        np.testing.assert_array_equal(values, expected[path], err_msg=path)


@pytest.fixture(params=[1, 3])
def buffer(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[db.ReplayBuffer]:
    with made(tmp_path / "store", COLUMNS, 0, frame_stack=1) as buffer:
        buffer.flush(recompress=True)
    with db.ReplayBuffer(tmp_path / "store", frame_stack=request.param, seed=1) as buffer:
        yield buffer


@pytest.mark.parametrize("name", [name for name in SAMPLERS if name != "windows"])  # which name their columns
def test_some_columns_are_those_of_all(name: str, buffer: db.ReplayBuffer) -> None:
    sampler = SAMPLERS[name]()
    for columns in SOME:
        state = sampler.state_dict()
        all_of = [buffer.sample(n, sampler) for n in (1, 8, 8, 8)] + [*itertools.islice(buffer.loader(8, sampler), 3)]
        sampler.load_state_dict(state)
        loader = buffer.loader(8, sampler, columns=columns)
        some_of = [buffer.sample(n, sampler, columns=columns) for n in (1, 8, 8, 8)] + [*itertools.islice(loader, 3)]
        for some, every in zip(some_of, all_of, strict=True):
            assert_has(some, columns, every)


@pytest.mark.parametrize("columns", SOME)
def test_every_way_to_batches_has_some_columns(columns: list[str], buffer: db.ReplayBuffer, tmp_path: Path) -> None:
    steps = buffer.steps()[::4]
    with made(tmp_path / "other", COLUMNS, 1, frame_stack=buffer.frame_stack) as other:

        def mixture() -> db.Mixture:
            return db.Mixture([(buffer, 1, db.Uniform(1)), (other, 2, db.Uniform(2))])

        ways: list[Callable[..., Any]] = [
            lambda **how: buffer.at(steps, **how),
            lambda **how: buffer.at(steps, n_step=2, **how),
            lambda **how: buffer.at(steps, copy=True, **how),
            lambda **how: buffer.at(steps[:1], 4, **how),
            lambda **how: next(iter(buffer.batches(16, **how))),
            lambda **how: next(iter(buffer.batches(16, sampler=db.Slices(3), **how))),
            lambda **how: next(iter(buffer.batches(16, steps=steps, **how))),
            lambda **how: mixture().sample(9, **how),
            lambda **how: next(iter(mixture().loader(9, **how))),
        ]
        for way in ways:
            assert_has(way(columns=columns), columns, way())


@pytest.mark.parametrize("columns", [["action"], ["obs/observation"], ["reward", "obs/desired_goal"], ["score", "reward"]])
def test_goals_and_rewards_are_those_of_all(columns: list[str], tmp_path: Path) -> None:
    kept = list[tuple[Any, Any]]()

    def reward(batch: dict[str, Any]) -> Any:
        kept.extend((array, array.copy()) for path, array in flatten(batch).items() if "goal" in path)
        return -np.abs(batch["next_obs"]["achieved_goal"] - batch["obs"]["desired_goal"]).sum(axis=1)

    with made(tmp_path / "store", {**GOALS, "action": db.Column((), "float32"), "score": db.Column((), "int64")}, 0) as buffer:
        one, other = db.Hindsight(reward, seed=0), db.Hindsight(reward, seed=0)
        for _ in range(4):
            assert_has(buffer.sample(16, other, columns=columns), columns, buffer.sample(16, one))
    for array, as_it_was in kept:  # whether it is delivered or not, it is used again only when nobody holds it
        np.testing.assert_array_equal(array, as_it_was)


def test_what_is_not_asked_for_is_not_read(tmp_path: Path) -> None:
    with made(tmp_path / "store", COLUMNS, 0, segment_rows=16) as buffer:
        buffer.flush(recompress=True)
    for number in range(3):  # those that are full, whose chunks nobody looks at when a store is opened
        with (tmp_path / "store" / "obs" / "camera" / f"c.{number}.0.0").open("r+b") as file:
            file.write(bytes(256))
    with db.ReplayBuffer(tmp_path / "store", mode="r") as buffer:
        for sampler in (None, db.Uniform(n_step=2), db.Slices(3)):
            assert len(buffer.sample(64, sampler, columns=["obs/state"])["steps"]) == 64
        assert len(list(buffer.batches(8, columns=["reward"]))) == 7
        with pytest.raises(db.CorruptionError):
            buffer.sample(64, columns=["obs/camera"])


def test_priorities_come_where_they_are_asked_for(tmp_path: Path) -> None:
    with made(tmp_path / "store", COLUMNS, 0) as buffer:
        prioritized = db.Prioritized(seed=0)
        steps = buffer.sample(8, prioritized)["steps"]
        prioritized.update(steps, np.full(8, 3.0))
        for batch in (buffer.sample(8), buffer.sample(8, prioritized), buffer.at(steps), buffer.at(steps, numpy=True)):
            assert "priority" not in batch
        assert (buffer.at(steps, columns=["priority"])["priority"] > 2.9).all()
        assert buffer.columns["priority"].on_request
    with db.ReplayBuffer(tmp_path / "store") as buffer:
        assert "priority" not in buffer.sample(8)
        assert set(buffer.sample(8, columns=["priority", "reward"])) == {"priority", "reward", "steps"}


@pytest.mark.parametrize("call", ["sample", "loader", "batches"])
def test_columns_that_are_no_columns_are_refused_where_they_are_named(call: str, buffer: db.ReplayBuffer) -> None:
    for columns, message in (("reward", "columns must be a list"), (["nope"], "no column 'nope'"), (["next_obs"], "comes with")):
        with pytest.raises(db.InputError, match=message):
            getattr(buffer, call)(8, columns=columns)
