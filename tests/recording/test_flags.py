"""Truth values are 0 or 1 in the store, whatever the bytes are that stand for them in the memory of the caller."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import diskbuffer as db
from tests.bools import bytes_of_bools, disguised

Array = np.ndarray[Any, Any]

OBSERVATIONS: dict[str, dict[str, db.Column]] = {
    "numbers": {"obs": db.Column((3,))},
    "pictures": {"obs": db.Column((34, 33), "uint8")},
    "booleans": {"obs": db.Column((3,), "bool")},
    "many booleans": {"obs": db.Column((40, 40), "bool")},
    "parts": {"obs/a": db.Column((2, 2), "bool"), "obs/b": db.Column((), "float64"), "obs/c": db.Column((), "bool")},
}


def _given(array: Any, rng: np.random.Generator) -> Any:
    """Return an array of booleans in one of several ways that users have them; others as they are."""
    array = np.asarray(array)
    if array.dtype != np.bool_:
        return array
    found, way = disguised(array, rng), rng.integers(4)
    if way == 0:
        return torch.from_numpy(found.view(np.uint8)).view(torch.bool)
    return found if way > 1 else np.repeat(found[..., None], 2, axis=-1)[..., 0]


def _random(column: db.Column, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    values: Array = rng.integers(0, 2 if column.dtype == "bool" else 100, (*shape, *column.shape)).astype(column.dtype)
    return values


def _nested(values: dict[str, Any]) -> Any:
    return values["obs"] if "obs" in values else {path.split("/")[1]: value for path, value in values.items()}


class _World:
    """Steps of some environments, as arrays."""

    def __init__(self, columns: dict[str, db.Column], n_envs: int, stack: int, rng: np.random.Generator) -> None:
        self._columns, self._n_envs, self._stack, self._rng = columns, n_envs, stack, rng
        self._obs = self._observe((n_envs,))

    def _observe(self, shape: tuple[int, ...]) -> dict[str, Array]:
        found = {path: _random(column, shape, self._rng) for path, column in self._columns.items() if path.startswith("obs")}
        if self._stack > 1:  # an episode's first stack
            found = {path: np.repeat(frames[:, None], self._stack, axis=1) for path, frames in found.items()}
        return found

    def _after(self, obs: dict[str, Array]) -> dict[str, Array]:
        new = self._observe((self._n_envs,))
        if self._stack == 1:
            return new
        return {path: np.concatenate([stacks[:, 1:], new[path][:, -1:]], axis=1) for path, stacks in obs.items()}

    def step(self) -> dict[str, Any]:
        obs, after = self._obs, self._after(self._obs)
        ends = {flag: self._rng.random(self._n_envs) < 0.15 for flag in ("terminated", "truncated")}
        over, first = ends["terminated"] | ends["truncated"], self._observe((self._n_envs,))
        self._obs = {path: np.where(over.reshape(-1, *[1] * (a.ndim - 1)), first[path], a) for path, a in after.items()}
        rest = {p: _random(c, (self._n_envs,), self._rng) for p, c in self._columns.items() if not p.startswith("obs")}
        return {"obs": obs, "next_obs": after, **ends, **rest}


def _call(step: dict[str, Any], give: Callable[[Any], Any]) -> dict[str, Any]:
    call = {name: give(value) for name, value in step.items() if name not in ("obs", "next_obs")}
    for name in ("obs", "next_obs"):
        if name in step:
            call[name] = _nested({path: give(value) for path, value in step[name].items()})
    return call


def _stacked(steps: list[dict[str, Any]], env: int) -> dict[str, Any]:
    """Return the steps of one environment as arrays."""
    found: dict[str, Any] = {}
    for name, value in steps[0].items():
        if isinstance(value, dict):
            found[name] = {path: np.stack([step[name][path][env] for step in steps]) for path in value}
        else:
            found[name] = np.stack([step[name][env] for step in steps])
    return found


@pytest.mark.some(3)
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("kind", OBSERVATIONS)
@pytest.mark.parametrize("n_envs", [1, 3])
@pytest.mark.parametrize("stack", [1, 3])
def test_true_is_one_byte_only_however_steps_are_given(tmp_path: Path, kind: str, n_envs: int, stack: int, any_seed: int) -> None:
    rng = np.random.default_rng(any_seed)
    columns = {
        **OBSERVATIONS[kind],
        "action": db.Column((2,), "bool"),
        "reward": db.Column(),
        "masked": db.Column((), "bool"),
    }
    how: dict[str, Any] = {
        "columns": columns,
        "n_envs": n_envs,
        "segment_rows": 64,
        "frame_stack": stack,
        "autoreset": "disabled",
    }
    buffers = [db.ReplayBuffer(tmp_path / name, **how) for name in ("clean", "disguised")]
    world = _World(columns, n_envs, stack, rng)
    for _ in range(25):
        seed, way = (
            rng.integers(2**32),
            rng.choice(["add", "checked", "extend", "trajectory"], p=[0.5, 0.2, 0.2, 0.1]),
        )
        steps = [world.step() for _ in range(1 if way in ("add", "checked") else 7)]
        new_episode = rng.random(n_envs if len(steps) == 1 else len(steps)) < 0.2
        for n, buffer in enumerate(buffers):
            draws = np.random.default_rng(seed)
            give = functools.partial(_given, rng=draws) if n else np.asarray
            told: dict[str, Any] = {} if draws.random() < 0.7 or stack > 1 else {"new_episode": np.asarray(give(new_episode))}
            if len(steps) == 1:
                one = draws.random() < 0.5  # without the axis of environments

                def given(array: Any, one: bool = one, give: Callable[[Any], Any] = give) -> Any:
                    return give(array[0] if one and n_envs == 1 else array)

                call = _call(steps[0], given)
                if way == "checked":
                    call["reward"] = list(np.atleast_1d(call["reward"]))
                buffer.add(**call, **told)
                continue
            for env in range(n_envs):
                arrays = _stacked(steps, env)
                if way == "trajectory":
                    del arrays["next_obs"], arrays["terminated"]
                    arrays["truncated"] = np.arange(6) == 5
                    arrays = {n: v if n in ("obs", "truncated") else v[:6] for n, v in arrays.items()}
                    if stack > 1:
                        arrays["obs"] = {path: stacks[:, -1] for path, stacks in arrays["obs"].items()}
                    buffer.extend(**_call(arrays, give), env=env)
                else:
                    buffer.extend(**_call(arrays, give), **told, env=env)
    _assert_the_same(*buffers)
    for buffer in buffers:
        buffer.close()
        assert db.check(buffer.path).ok
        assert bytes_of_bools(buffer.path) == {0, 1}


def _assert_the_same(clean: db.ReplayBuffer, other: db.ReplayBuffer) -> None:
    assert len(clean) == len(other) > 0
    for name in ("start", "length", "ending"):
        np.testing.assert_array_equal(getattr(clean.episodes, name), getattr(other.episodes, name))
    np.testing.assert_array_equal(clean.steps(), other.steps())
    for batch, disguised_batch in (
        (clean.at(clean.steps()), other.at(other.steps())),
        (clean.sample(64, db.Slices(5, seed=3, crossing=True)), other.sample(64, db.Slices(5, seed=3, crossing=True))),
    ):
        _assert_equal(batch, disguised_batch)


def _assert_equal(a: Any, b: Any) -> None:
    assert a.keys() == b.keys()
    for name, value in a.items():
        if isinstance(value, dict):
            _assert_equal(value, b[name])
        else:
            assert value.numpy().tobytes() == b[name].numpy().tobytes(), name


@pytest.mark.parametrize("value", [2, 255, -1, 0.5, float("nan"), "True", None])
def test_what_is_neither_true_nor_false_is_refused_however_it_is_given(tmp_path: Path, value: Any) -> None:
    columns = {"obs": db.Column((3,)), "action": db.Column((), "bool")}
    obs, flag = np.zeros((1, 3), np.float32), np.zeros(1, np.bool_)
    with db.ReplayBuffer(tmp_path / "store", columns=columns) as buffer:
        for name in ("action", "terminated", "truncated"):
            step: dict[str, Any] = {
                "obs": obs,
                "action": flag,
                "reward": [0.0],
                "next_obs": obs,
                "terminated": flag,
                "truncated": flag,
            }
            for given in (value, np.array(value), np.array([value])):
                with pytest.raises(db.InputError, match=name):
                    buffer.add(**step | {name: given})
            with pytest.raises(db.InputError, match=name):
                buffer.extend(**step | {name: np.array([value])})
        assert len(buffer) == 0
        for one in (1, 1.0, np.uint8(1), np.float32(1), [1], torch.tensor([1])):  # numbers that are truth values
            buffer.add(obs, one, 0.0, obs, one, 0)
            buffer.extend(obs=obs, action=np.atleast_1d(one), reward=[0.0], next_obs=obs, terminated=np.atleast_1d(one))
        batch = buffer.at(buffer.steps())
        assert batch["terminated"].all()
        assert batch["action"].all()


def test_true_is_one_byte_only_in_columns_that_are_written_later(tmp_path: Path) -> None:
    columns = {"obs": db.Column(()), "action": db.Column((), "int64")}
    with db.ReplayBuffer(tmp_path / "store", columns=columns, segment_rows=64) as buffer:
        buffer.extend(obs=np.arange(201.0), action=np.zeros(200, int), reward=np.zeros(200))
        rng = np.random.default_rng(0)
        good = rng.random(200) < 0.5
        buffer.columns.write("good", buffer.steps(), disguised(good, rng))
        buffer.columns.map(lambda batch: disguised(batch["good"].numpy(), rng), 64, out="same")
        for name in ("good", "same"):
            assert np.array_equal(buffer.at(buffer.steps())[name].numpy(), good)
    assert bytes_of_bools(tmp_path / "store") == {0, 1}
