"""Single steps that are copied, or drawn and gathered, in one call, against those that are planned and gathered."""

from __future__ import annotations

import contextlib
import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import diskbuffer as db
from diskbuffer.reading.gather import single_steps
from diskbuffer.reading.gather.gatherer import Gatherer
from diskbuffer.reading.gather.single_steps import SingleSteps
from diskbuffer.schema.nested import flatten

DTYPES = ("bool", "int8", "uint16", "int32", "uint64", "float16", "float32", "float64", "complex64")


def _fill(buffer: db.ReplayBuffer, columns: dict[str, db.Column], steps: int, rng: np.random.Generator) -> None:
    for env in range(buffer.n_envs):
        n = int(rng.integers(1, steps))
        values: dict[str, Any] = {}
        for path, column in columns.items():
            if np.dtype(column.dtype).kind in "fcb":
                value = rng.integers(0, 2, (n, *column.shape)).astype(column.dtype)
            else:
                value = rng.integers(0, 256, (n, *column.shape, np.dtype(column.dtype).itemsize), np.uint8).view(column.dtype)[
                    ..., 0
                ]
            values[path] = value
            if path.startswith("obs"):
                values["next_" + path] = np.roll(value, -1, axis=0)
        values |= {"terminated": rng.random(n) < 0.1, "truncated": rng.random(n) < 0.1}
        nested: dict[str, Any] = {}
        for path, value in values.items():
            *above, name = path.split("/")
            (nested.setdefault(above[0], {}) if above else nested)[name] = value
        buffer.extend(**nested, env=env)


def _same(buffer: db.ReplayBuffer, monkeypatch: pytest.MonkeyPatch, name: str, *args: Any, **kwargs: Any) -> bool:
    """Read twice, and compare; tell whether something could be read."""
    results: list[Any] = []
    for at_once in (True, False):
        with monkeypatch.context() as patch:
            if not at_once:
                patch.setattr(SingleSteps, "filled", lambda *_: None)
            try:
                found = flatten(getattr(buffer, name)(*copy.deepcopy(args), **kwargs))
                results.append({path: (v.dtype, v.shape, v.numpy().tobytes()) for path, v in found.items()})
            except db.InputError as error:
                results.append(str(error))
    assert results[0] == results[1]
    return isinstance(results[0], dict) and list(results[0]) == list(results[1])


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.some(1)
@pytest.mark.parametrize("seed", range(8))
def test_they_are_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    rng = np.random.default_rng(seed)
    obs = ({"obs": db.Column((3,))}, {"obs/a": db.Column((), "int16"), "obs/b": db.Column((2, 2), "uint8")})[seed % 2]
    more = {f"x{n}": db.Column(((), (5,))[rng.integers(2)], each, allow_nan=True) for n, each in enumerate(DTYPES)}
    columns = obs | {"action": db.Column((), "int64"), "reward": db.Column((), allow_nan=True)} | more
    n_envs = int(rng.integers(1, 4))
    read = 0
    with db.ReplayBuffer(
        tmp_path / "store", columns=columns, capacity=400, n_envs=n_envs, autoreset="next_step", segment_rows=64
    ) as buffer:
        for _ in range(12):
            _fill(buffer, columns, 150, rng)
            with db.ReplayBuffer(tmp_path / "store", mode="r") as reader:
                for of in (buffer, reader):
                    assert SingleSteps.can_be(of._reader.columns)
                    there, _ = of.counts()
                    envs = rng.integers(0, n_envs, 40)
                    ages = rng.integers(0, np.maximum(there[envs], 1) + int(rng.random() < 0.3))
                    some = None if rng.random() < 0.5 else list(rng.permutation(list(columns))[:3])
                    with contextlib.suppress(db.InputError):  # there is no step that old
                        read += _same(of, monkeypatch, "at", ages=ages, envs=envs, columns=some)
                        read += _same(of, monkeypatch, "at", ages=ages[:1], envs=int(envs[0]), copy=True)
                    read += _same(of, monkeypatch, "sample", int(rng.integers(1, 50)), db.Uniform(int(rng.integers(9))))
                    names = rng.permutation(of.steps())[: rng.integers(0, 50)]
                    if rng.random() < 0.3:
                        names = np.append(names, rng.integers(-3, 3_000))
                    read += _same(of, monkeypatch, "at", names, columns=some)
    assert read > 20


def test_large_batches_are_gathered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    columns = {"obs": db.Column((4,)), "action": db.Column(), "reward": db.Column()}
    with db.ReplayBuffer(tmp_path / "store", columns=columns, capacity=10_000) as buffer:
        values = np.arange(20_000.0, dtype=np.float32).reshape(-1, 4)
        buffer.extend(values[:-1], values[:-1, 0], values[:-1, 1], values[1:])
        most = single_steps.MOST // 16
        for _ in range(20):  # until it is seen that the store is in memory
            buffer.at(buffer.steps([0]))
        monkeypatch.setattr("diskbuffer.reading.batch_reader.copy_numbered", None)  # which a larger batch does not reach
        assert len(buffer.at(buffer.steps(np.arange(most + 1) % 4_000))["reward"]) == most + 1
        with pytest.raises(TypeError):
            buffer.at(buffer.steps(np.arange(most) % 4_000))


def test_a_batch_is_the_callers_own(tmp_path: Path) -> None:
    columns = {"obs": db.Column((4,)), "action": db.Column(), "reward": db.Column()}
    with db.ReplayBuffer(tmp_path / "store", columns=columns, capacity=100) as buffer:
        values = np.random.default_rng(0).random((50, 4), np.float32)
        buffer.extend(values[:-1], values[:-1, 0], values[:-1, 1], values[1:])
        first, second = (buffer.at(buffer.steps(np.arange(10))) for _ in range(2))
        first["obs"] += 1
        first["next_obs"].zero_()
        assert second["obs"].equal(buffer.at(buffer.steps(np.arange(10)))["obs"])
        assert second["next_obs"].numpy().tobytes() == values[-1:-11:-1].tobytes()


def test_memory_of_large_batches_is_used_again_once_nobody_holds_any_of_it(tmp_path: Path) -> None:
    columns = {"obs": db.Column((64,)), "action": db.Column(), "reward": db.Column()}
    with db.ReplayBuffer(tmp_path / "store", columns=columns, capacity=1_000) as buffer:
        values = np.random.default_rng(0).random((600, 64), np.float32)
        buffer.extend(values[:-1], values[:-1, 0], values[:-1, 1], values[1:])
        for _ in range(20):  # until it is seen that the store is in memory
            buffer.at(buffer.steps([0]))
        size = single_steps._FRESH // 256 + 1
        held: list[tuple[Any, int]] = []
        places: list[int] = []
        for turn in range(30):
            batch = buffer.at(buffer.steps(np.arange(turn, turn + size)))
            places.append(batch["obs"].data_ptr())
            held.append((batch["obs"][turn % 7].numpy()[3:] if turn % 2 else batch["obs"].T, turn))
            held = held[-1 - turn % 7 :]
            del batch
            for part, of in held:
                rows = values[-2 - of : -2 - of - size : -1]
                assert (np.asarray(part) == (rows[of % 7][3:] if of % 2 else rows.T)).all()
        assert len(set(places)) < len(places) // 2


@pytest.mark.some(1)
@pytest.mark.parametrize("seed", range(4))
def test_stacks_that_are_drawn_and_gathered_in_one_call_are_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    columns = {"obs/a": db.Column((9, 8), "uint8"), "obs/b": db.Column((2,)), "action": db.Column((), "int64")}
    columns |= {"reward": db.Column(allow_nan=True)}
    n_envs, read, draw = int(rng.integers(1, 4)), list[bool](), Gatherer.draw
    with db.ReplayBuffer(
        tmp_path / "store",
        columns=columns,
        capacity=400,
        n_envs=n_envs,
        autoreset="next_step",
        segment_rows=64,
        frame_stack=int(rng.integers(2, 5)),
    ) as buffer:
        for _ in range(12):
            _fill(buffer, columns, 90, rng)
            for _ in range(4):
                sampler, size, results = db.Uniform(int(rng.integers(9))), int(rng.integers(1, 40)), list[Any]()
                for at_once in (True, False):
                    with monkeypatch.context() as patch:
                        patch.setattr(Gatherer, "draw", lambda *what, on=at_once: on and _noted(read, bool(draw(*what))))
                        batch = flatten(buffer.sample(size, copy.deepcopy(sampler)))
                    results.append({path: (v.dtype, v.shape, v.stride(), v.numpy().tobytes()) for path, v in batch.items()})
                assert results[0] == results[1]
                assert list(results[0]) == list(results[1])
    assert sum(read) > 20


def _noted(read: list[bool], found: bool) -> bool:
    read.append(found)
    return found
