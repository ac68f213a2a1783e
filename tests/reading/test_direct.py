"""Single steps of flat columns, copied without a plan: the same values as with one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import diskbuffer as db

COLUMNS = {
    "obs/a": db.Column((3,), "float32"),
    "obs/b": db.Column((), "bool"),
    "obs/c": db.Column((7, 11), "uint8"),
    "action": db.Column((2,), "float64"),
    "more": db.Column((9,), "int16"),
}


def filled(path: Path, rng: np.random.Generator, n_envs: int, capacity: int | None) -> db.ReplayBuffer:
    buffer = db.ReplayBuffer(path, capacity, columns=COLUMNS, n_envs=n_envs, segment_rows=8, autoreset="disabled")
    for number in range(6 * n_envs):
        n = int(rng.integers(1, 30))
        call: dict[str, Any] = {"obs": {}}
        for name, column in COLUMNS.items():
            values = rng.integers(0, 2, (n + name.startswith("obs"), *column.shape)).astype(column.np_dtype)
            if name.startswith("obs"):
                call["obs"][name[4:]] = values
            else:
                call[name] = values
        buffer.extend(**call, reward=rng.random(n).astype(np.float32), env=number % n_envs)
    return buffer


def same(batch: dict[str, Any], copied: dict[str, Any] | None) -> None:
    assert copied is not None
    for path, values in copied.items():
        top, _, name = path.partition("/")
        for row, part in enumerate((top, "next_obs") if top == "obs" else (top,)):
            found = batch[part][name] if name else batch[part]
            np.testing.assert_array_equal(values[:, row] if top == "obs" else values, found.numpy(), err_msg=path)


@pytest.mark.parametrize("n_envs", [1, 3])
@pytest.mark.parametrize("capacity", [None, 60])
def test_what_is_copied_is_what_is_read(n_envs: int, capacity: int | None, tmp_path: Path) -> None:
    rng = np.random.default_rng(n_envs)
    with filled(tmp_path / "store", rng, n_envs, capacity) as buffer:
        buffer.write("later", buffer.steps()[::3], np.ones(len(buffer.steps()[::3]), np.float32))
        paths = buffer._delivered_columns()
        buffer._reader.gatherer._cold = False
        for _ in range(20):
            steps = rng.choice(buffer.steps(), 16)
            same(buffer.at(steps), buffer._copied_at(steps, paths))
            ages, envs = rng.integers(0, 10, 16), rng.integers(0, n_envs, 16)
            same(buffer.recent(ages, envs), buffer._copied_recent(ages, envs, paths[::2]))
        with pytest.raises(db.InputError, match="cannot be read"):
            buffer._copied_at(np.array([-5]), paths)
        with pytest.raises(db.InputError, match="of age"):
            buffer._copied_recent(np.array([10**6]), np.array([0]), paths)
    with db.ReplayBuffer(tmp_path / "store", mode="r") as reader:
        steps = reader.steps()
        reader._reader.gatherer._cold = False
        assert reader._copied_at(steps[:4], paths) is None  # its files are not mapped before they are verified
        batch = reader.at(steps)
        same(batch, reader._copied_at(steps, paths))


def test_what_is_packed_stacked_or_large_is_planned(tmp_path: Path) -> None:
    columns = {"obs": db.Column((40, 40), "uint8"), "action": db.Column((), "int64")}
    frames = np.zeros((11, 40, 40), np.uint8)
    with db.ReplayBuffer(tmp_path / "packed", columns=columns) as buffer:
        buffer.extend(frames, np.zeros(10, int), np.ones(10))
        buffer._reader.gatherer._cold = False
        assert buffer._copied_at(buffer.steps(), buffer._delivered_columns()) is None
        assert buffer._copied_at(buffer.steps(), ("action", "reward")) is not None
    with filled(tmp_path / "flat", np.random.default_rng(0), 1, None) as buffer:
        buffer._reader.gatherer._cold = False
        many = np.repeat(buffer.steps(), 100)
        assert buffer._copied_at(many, buffer._delivered_columns()) is None
    with db.ReplayBuffer(tmp_path / "flat", mode="r", frame_stack=2) as buffer:
        assert buffer._copied_at(buffer.steps(), buffer._delivered_columns()) is None
