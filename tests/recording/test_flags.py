"""Truth values are 0 or 1 in the store, whatever the bytes are that stand for them in the memory of the caller."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import diskbuffer as db
from tests.bools import bytes_of_bools, disguised

Array = np.ndarray[Any, Any]


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


def test_true_is_one_byte_only_in_a_trajectory_and_in_columns_that_are_written_later(tmp_path: Path) -> None:
    columns = {"obs": db.Column((), "bool"), "action": db.Column((), "bool")}
    with db.ReplayBuffer(tmp_path / "store", columns=columns, segment_rows=64) as buffer:
        rng = np.random.default_rng(0)
        good, obs = rng.random(200) < 0.5, rng.random(201) < 0.5
        ended = disguised(np.arange(200) == 199, rng)
        buffer.extend(obs=disguised(obs, rng), action=disguised(good, rng), reward=np.zeros(200), terminated=ended)
        assert np.array_equal(buffer.episode(0)["obs"], obs)
        buffer.columns.write("good", buffer.steps(), disguised(good, rng))
        buffer.columns.map(lambda batch: disguised(batch["good"].numpy(), rng), 64, out="same")
        for name in ("good", "same"):
            assert np.array_equal(buffer.at(buffer.steps())[name].numpy(), good)
    assert bytes_of_bools(tmp_path / "store") == {0, 1}
