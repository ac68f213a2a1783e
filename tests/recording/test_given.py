"""Values that are read where the caller has them, against those that are checked column by column."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import diskbuffer as db
from diskbuffer.native import objects
from diskbuffer.recording import given
from diskbuffer.recording.staging import Staging

DTYPES = ("bool", "int8", "uint8", "int32", "int64", "uint64", "float16", "float32", "float64", "complex64")
OBS: tuple[dict[str, db.Column], ...] = (
    {"obs": db.Column((3,))},
    {"obs": db.Column((2, 5), "uint8")},
    {"obs/a": db.Column((2,), "float64"), "obs/b": db.Column((), "int16", allow_nan=True)},
)


class Mine(np.ndarray):
    """An array of a class of its own."""


def _ways(array: Any, rng: np.random.Generator) -> list[Callable[[], Any]]:
    """Return ways to give the values of an array: as a library, or a user, would."""
    flipped = np.flip(np.flip(array).copy())
    ways: list[Callable[[], Any]] = [
        lambda: array,
        lambda: array,
        lambda: array.copy(order="F"),
        lambda: flipped,
        lambda: array.tolist(),
        lambda: array.astype(array.dtype.newbyteorder()),
        lambda: array.astype(np.float64),
        lambda: array.astype(np.int64),
        lambda: array.view(Mine),
        lambda: array[..., None],
        lambda: array[:, ...],
        lambda: np.repeat(array, 2, axis=0),
        lambda: np.lib.stride_tricks.as_strided(array, array.shape, [0] * array.ndim),
        lambda: np.frombuffer(b"x" + array.tobytes(), np.uint8)[1:].view(array.dtype).reshape(array.shape),
        lambda: "a string",
        lambda: None,
    ]
    if len(array) == 1:
        ways += [lambda: array[0], lambda: array[0].tolist(), lambda: array[0].copy() if array.ndim > 1 else array.reshape(())]
        ways += [lambda: array[0], lambda: array.ravel()[0].item()] * 3
        ways += [lambda: 300, lambda: -1, lambda: 2**24 + 1, lambda: 2**70]
    if array.dtype.kind in "fc":
        wrong = array.astype("c16" if array.dtype.kind == "c" else "f8")
        wrong.ravel()[rng.integers(wrong.size)] = rng.choice([np.nan, np.inf, -np.inf, 1e300, -1e300, 1e-300, -0.0])
        ways += [lambda: wrong, lambda: wrong.astype(array.dtype), lambda: wrong.ravel()[0], lambda: float(abs(wrong.ravel()[0]))]
    return ways


def _random(column: db.Column, n: int, rng: np.random.Generator) -> np.ndarray[Any, Any]:
    return rng.integers(0, 2 if column.dtype == "bool" else 100, (n, *column.shape)).astype(column.dtype)


def _nest(values: dict[str, Any]) -> Any:
    return values["obs"] if "obs" in values else {path.split("/")[1]: value for path, value in values.items()}


@pytest.mark.filterwarnings("ignore::RuntimeWarning", "ignore::UserWarning")
@pytest.mark.some(1)
@pytest.mark.parametrize("seed", range(6))
def test_what_is_added_and_what_is_refused_is_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    rng = np.random.default_rng(seed)
    n_envs, obs = int(rng.integers(1, 4)), OBS[seed % 3]
    shapes = [(), (1,), (2, 2)]
    more = {
        f"x{n}": db.Column(shapes[rng.integers(3)], dtype, allow_nan=bool(rng.random() < 0.5)) for n, dtype in enumerate(DTYPES)
    }
    columns = {**obs, "action": db.Column((), "int64"), "reward": db.Column((), allow_nan=bool(rng.random() < 0.5)), **more}
    how: dict[str, Any] = {"columns": columns, "capacity": 200, "n_envs": n_envs, "segment_rows": 64, "frame_stack": 1 + seed % 2}
    buffers = [db.ReplayBuffer(tmp_path / name, **how) for name in ("in place", "checked")]
    pick, refused, added = given.Given.pick, 0, 0
    following = {path: _random(column, n_envs, rng) for path, column in obs.items()}
    for _ in range(400):
        before = following if rng.random() < 0.9 else {path: _random(column, n_envs, rng) for path, column in obs.items()}
        following = {path: _random(column, n_envs, rng) for path, column in obs.items()}
        flags = {name: rng.random(n_envs) < 0.1 for name in ("terminated", "truncated")}
        step = flags | {path: _random(column, n_envs, rng) for path, column in columns.items() if path not in obs}

        def give(array: Any, strange: float) -> Any:
            ways = _ways(array, rng)
            return ways[rng.integers(len(ways))]() if rng.random() < strange else array

        strange = float(rng.choice([0.0, 0.02, 0.2]))
        call = {path: give(value, strange) for path, value in step.items()}
        call |= {"obs": _nest({p: give(v, strange) for p, v in before.items()})}
        call |= {"next_obs": _nest({p: give(v, strange) for p, v in following.items()})}
        if rng.random() < 0.02:
            del call[str(rng.choice(list(call)))]
        results = []
        for n, buffer in enumerate(buffers):
            monkeypatch.setattr(given.Given, "pick", pick if n == 0 else lambda *_: None)
            try:
                results.append(str(buffer.add(**call)))
            except (db.InputError, TypeError) as error:
                results.append(f"{type(error).__name__}: {error}")
        assert results[0] == results[1]
        added, refused = added + results[0].isdigit(), refused + (not results[0].isdigit())
    assert added > 100
    assert refused > 10
    found = [buffer.at(buffer.steps()) for buffer in buffers]
    _assert_equal(*found)
    for buffer in buffers:
        buffer.close()
    reports = [db.check(tmp_path / name) for name in ("in place", "checked")]
    assert all(report.ok for report in reports)


def _assert_equal(a: Any, b: Any) -> None:
    assert a.keys() == b.keys()
    for name, value in a.items():
        if isinstance(value, dict):
            _assert_equal(value, b[name])
        else:
            assert value.numpy().tobytes() == b[name].numpy().tobytes(), name


def test_most_steps_need_no_check_column_by_column(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert objects.TUPLE_ITEMS
    columns = {"obs": db.Column((3,)), "action": db.Column((), "int64"), "reward": db.Column()}

    def refuse(*_: Any) -> None:
        raise AssertionError

    flags: tuple[Any, ...] = (True, False, np.True_, np.zeros(1, np.bool_), np.zeros((), np.bool_))
    actions: tuple[Any, ...] = (np.int64(1), np.ones(1, np.int64), np.array(3), 5, -(2**63))
    rewards: tuple[Any, ...] = (1.0, 3, float("inf"), np.float64(0.1), np.float32(0.5), np.ones(1), np.ones((), np.float32))
    with db.ReplayBuffer(tmp_path / "store", columns=columns, capacity=1_000) as buffer:
        monkeypatch.setattr("diskbuffer.recording.staging.Staging.put_values", refuse)
        obs, expected = np.zeros(3, np.float32), list[Any]()
        for terminated, truncated, action, reward in itertools.product(flags, flags, actions, rewards):
            following = np.random.default_rng(len(expected)).random(3, np.float32)
            assert buffer.add(obs, action, reward, following[None], terminated, truncated) == 1
            numbers = (np.asarray(value).item() for value in (np.float32(reward), action, terminated, truncated))
            expected.append(tuple(numbers))
            obs = following
        batch = buffer.at(buffer.steps())
        names = ("reward", "action", "terminated", "truncated")
        assert list(zip(*(batch[name].tolist() for name in names), strict=True)) == expected


def test_where_objects_are_kept_in_another_way_steps_are_added_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objects, "TUPLE_ITEMS", 0)
    monkeypatch.setattr("diskbuffer.recording.recorder.record_given", None)
    columns = {"obs": db.Column(), "action": db.Column(), "reward": db.Column()}
    with db.ReplayBuffer(tmp_path / "store", columns=columns, capacity=10) as buffer:
        assert buffer.add(0.0, 0.5, 1.0, 2.0, False, True) == 1
        assert buffer.at(buffer.steps())["reward"].tolist() == [1.0]


class _Stacks:
    """Rolling stacks as a wrapper makes them, of every environment; now and then others."""

    def __init__(self, column: db.Column, n_envs: int, zeros: bool, rng: np.random.Generator) -> None:
        self._column, self._n_envs, self._zeros, self._rng = column, n_envs, zeros, rng
        self._now = np.stack([self._first() for _ in range(n_envs)])

    def _first(self) -> np.ndarray[Any, Any]:
        frames = _random(self._column, 3, self._rng)
        if self._rng.random() < 0.8:  # as at an episode's begin
            frames[:-1] = 0 if self._zeros else frames[-1]
        return frames

    def step(self, ended: Any, strange: float) -> tuple[Any, Any]:
        """Return the stacks before and after a step that ends some episodes."""
        now = self._now
        following = np.concatenate([now[:, 1:], _random(self._column, self._n_envs, self._rng)[:, None]], axis=1)
        self._now = following.copy()
        for env in np.flatnonzero(ended | (self._rng.random(self._n_envs) < strange)):
            self._now[env] = self._first()
        if self._rng.random() < strange:
            following.ravel()[self._rng.integers(following.size)] += 1
        if self._rng.random() < strange and following.dtype.kind == "f":
            following.ravel()[self._rng.integers(following.size)] = np.nan
        return now, following

    def ways(self, stacks: np.ndarray[Any, Any]) -> list[Callable[[], Any]]:
        """Return ways to give stacks."""
        ways: list[Callable[[], Any]] = [lambda: stacks[:, -1], stacks.tolist, lambda: stacks.copy(order="F"), stacks[:, 1:].copy]
        return ways + ([lambda: stacks[0]] * 3 if self._n_envs == 1 else [])


@pytest.mark.filterwarnings("ignore::RuntimeWarning", "ignore::UserWarning")
@pytest.mark.some(3)
@pytest.mark.parametrize("seed", range(12))
def test_stacks_are_recorded_and_refused_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    rng = np.random.default_rng(seed)
    n_envs, zeros, mixed = int(rng.integers(1, 4)), bool(seed % 2), seed > 7  # single values beside stacks
    nested, dtype = mixed or seed % 4 > 1, ("uint8", "float32")[seed // 4 % 2]
    obs = {"obs/a": db.Column((2, 3), dtype), "obs/b": db.Column((), "int16")} if nested else {"obs": db.Column((2, 3), dtype)}
    columns = {**obs, "action": db.Column((), "int64"), "reward": db.Column()}
    how: dict[str, Any] = {"columns": columns, "capacity": 300, "n_envs": n_envs, "segment_rows": 64, "frame_stack": 3}
    how |= {"padding": "zeros" if zeros else "first", "autoreset": ("disabled", "next_step")[int(rng.integers(2))]}
    buffers = [db.ReplayBuffer(tmp_path / name, **how) for name in ("in place", "checked")]
    pick, refused, added = given.Given.pick, 0, 0
    stacks = {path: _Stacks(column, n_envs, zeros, rng) for path, column in obs.items()}
    for _ in range(400):
        strange, ends = float(rng.choice([0.0, 0.02, 0.2])), rng.random((2, n_envs)) < 0.05
        call: dict[str, Any] = {"terminated": ends[0], "truncated": ends[1], "reward": rng.random(n_envs).astype(np.float32)}
        call |= {"action": np.zeros(n_envs, np.int64), "obs": {}, "next_obs": {}}
        for path, source in stacks.items():
            for name, array in zip(("obs", "next_obs"), source.step(ends.any(axis=0), strange), strict=True):
                ways = source.ways(array)
                if mixed and path == "obs/b":
                    array = array[:, -1].copy()
                call[name][path] = ways[rng.integers(len(ways))]() if rng.random() < strange else array
        call |= {name: _nest(call[name]) for name in ("obs", "next_obs")}
        if rng.random() < 0.1:
            call["new_episode"] = rng.random(n_envs) < 0.3
        between = rng.random()
        results = []
        for n, buffer in enumerate(buffers):
            monkeypatch.setattr(given.Given, "pick", pick if n == 0 else lambda *_: None)
            try:
                results.append(str(buffer.add(**call)))
            except (db.InputError, db.StackError) as error:
                results.append(f"{type(error).__name__}: {error}")
            if between < 0.02:
                buffer.cut_off()
            elif between < 0.04:
                buffer.flush()
        assert results[0] == results[1]
        added, refused = added + results[0].isdigit(), refused + (not results[0].isdigit())
    assert added > 100
    assert refused > 5
    _assert_equal(*(buffer.at(buffer.steps()) for buffer in buffers))
    for buffer in buffers:
        buffer.close()
    assert all(db.check(tmp_path / name).ok for name in ("in place", "checked"))


def test_stacks_that_go_on_need_no_check_column_by_column(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    columns = {"obs": db.Column((4, 4), "uint8"), "action": db.Column((), "int64"), "reward": db.Column()}
    frames = np.random.default_rng(0).integers(0, 255, (100, 4, 4)).astype(np.uint8)
    checked, put = list[Any](), Staging.put_values

    def note(staging: Staging, values: dict[str, Any]) -> None:
        checked.append(values)
        put(staging, values)

    monkeypatch.setattr(Staging, "put_values", note)
    with db.ReplayBuffer(tmp_path / "store", columns=columns, capacity=1_000, frame_stack=3) as buffer:
        for at in range(90):
            now, following = frames[at : at + 3], frames[None, at + 1 : at + 4]
            assert buffer.add(now, np.int64(0), 0.0, following, at % 30 == 29, False) == 1
    assert len(checked) == 3  # an episode's first step each


def test_stacks_beside_single_values_need_no_check_column_by_column(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    obs = {"obs/pixels": db.Column((4, 4), "uint8"), "obs/speed": db.Column((2,), "float32")}
    frames, speeds = np.random.default_rng(0).integers(0, 255, (100, 4, 4)).astype(np.uint8), np.arange(200.0).reshape(100, 2)
    checked, put = list[Any](), Staging.put_values

    def note(staging: Staging, values: dict[str, Any]) -> None:
        checked.append(values)
        put(staging, values)

    monkeypatch.setattr(Staging, "put_values", note)
    columns = {**obs, "action": db.Column((), "int64"), "reward": db.Column()}
    with db.ReplayBuffer(tmp_path / "store", columns=columns, capacity=1_000, frame_stack=3) as buffer:
        for at in range(90):
            now, following = ({"pixels": frames[k : k + 3], "speed": speeds[k].astype(np.float32)} for k in (at, at + 1))
            if at == 50:
                now["speed"] = now["speed"] + 1  # another episode, whose first stack may be of any frames
            assert buffer.add(now, np.int64(0), 0.0, following, at % 30 == 29, False) == 1
        assert len(checked) == 4
        assert len(buffer.episodes) == 4
        np.testing.assert_array_equal(buffer.at(buffer.steps())["obs"]["pixels"].numpy()[:, -1], frames[2:92])
