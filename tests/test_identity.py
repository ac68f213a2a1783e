"""A store knows which environment it was made for, and refuses another whose steps only look the same."""

from __future__ import annotations

import json
import shutil
import warnings
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces

import diskbuffer as db
from diskbuffer.store.format.layout import checksum_of_json

SCREEN = spaces.Box(0, 255, (4, 4), np.uint8)


class Game(gym.Env[Any, Any]):
    def __init__(self, actions: int = 4) -> None:
        self.observation_space, self.action_space = SCREEN, spaces.Discrete(actions)


def opened(path: Path, observations: Any = SCREEN, actions: Any = None, **how: Any) -> db.ReplayBuffer:
    return db.ReplayBuffer(path, observation_space=observations, action_space=actions or spaces.Discrete(4), **how)


@pytest.mark.some(2)
@pytest.mark.parametrize(
    ("observations", "actions"),
    [
        (SCREEN, spaces.Discrete(6)),
        (SCREEN, spaces.Discrete(4, start=1)),
        (spaces.Dict({"a": spaces.Discrete(3), "b": SCREEN}), spaces.Discrete(4)),
        (SCREEN, spaces.MultiDiscrete([2, 3])),
        (SCREEN, spaces.MultiBinary(4)),
    ],
    ids=["n", "start", "part", "nvec", "kind"],
)
def test_another_environment_of_the_same_shapes_is_refused(observations: Any, actions: Any, tmp_path: Path) -> None:
    path = tmp_path / "store"
    first: tuple[Any, Any] = (SCREEN, spaces.Discrete(4))
    if isinstance(observations, spaces.Dict):
        first = spaces.Dict({"a": spaces.Discrete(5), "b": SCREEN}), spaces.Discrete(4)
    if isinstance(actions, spaces.MultiDiscrete):
        first = SCREEN, spaces.MultiDiscrete([2, 4])
    if isinstance(actions, spaces.MultiBinary):
        first = SCREEN, spaces.Box(0, 1, (4,), np.int8)
    opened(path, *first).close()
    for mode in ("a", "r", "r+"):
        with pytest.raises(db.errors.SchemaError, match=r"stored .*, asked for "):
            opened(path, observations, actions, mode=mode)
    opened(path, *first).close()
    db.ReplayBuffer(path).close()


@pytest.mark.filterwarnings("ignore:.*is out of date")
def test_where_only_bounds_or_the_name_differ_it_warns_once(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with opened(path):
        pass
    with pytest.warns(UserWarning, match="observation_space.high: stored 255, asked for 7") as told:
        opened(path, spaces.Box(0, 7, (4, 4), np.uint8)).close()
    assert len(told) == 1
    path = tmp_path / "pole"
    with db.ReplayBuffer(path, env=gym.make("CartPole-v0")) as buffer:
        buffer.copies.mark("begun")
        buffer.copies.snapshot(tmp_path / "copy")
        assert buffer.environment is not None
        assert buffer.environment["id"] == "CartPole-v0"
    for where in (path, tmp_path / "copy"):
        with pytest.warns(UserWarning, match="id: stored CartPole-v0, asked for CartPole-v1") as told:
            db.ReplayBuffer(where, env=gym.make("CartPole-v1")).close()
        assert len(told) == 1
    with pytest.warns(UserWarning, match="id: stored") as told:
        db.ReplayBuffer(path, env=gym.make("CartPole-v1"), mark="begun").close()
    assert len(told) == 1
    with db.ReplayBuffer(path, env=gym.make("CartPole-v0")):  # and no warning, which would be an error here
        pass


@pytest.mark.filterwarnings("ignore:.*precision lowered")
def test_what_an_environment_tells_is_kept(tmp_path: Path) -> None:
    env = gym.wrappers.RescaleAction(gym.make("Pendulum-v1"), np.float32(-1), np.float32(1))
    env.reset(seed=7)
    with db.ReplayBuffer(tmp_path / "one", env=env) as buffer:
        found = buffer.environment
        assert found is not None
        assert found["id"] == "Pendulum-v1"
        assert found["seed"] == 7
        assert found["wrappers"][:2] == ["RescaleAction", "TimeLimit"]
        assert found["action_space"] == {"kind": "Box", "shape": [1], "dtype": "float32", "low": -1.0, "high": 1.0}
        assert found["versions"]["gymnasium"] == gym.__version__
        found["id"] = "mine"
        assert buffer.environment != found
    many = gym.make_vec("CartPole-v1", 3)
    with db.ReplayBuffer(tmp_path / "many", env=many) as buffer:
        found = buffer.environment
        assert found is not None
        assert (found["id"], found["n_envs"], found["autoreset"]) == ("CartPole-v1", 3, "next_step")
        assert found["action_space"]["n"] == 2
        assert "seed" not in found
    json.loads((tmp_path / "many" / "zarr.json").read_text(), parse_constant=lambda name: pytest.fail(name))
    with db.ReplayBuffer(tmp_path / "many", env=many):
        pass


def test_stacks_are_another_way_to_read_the_same_environment(tmp_path: Path) -> None:
    stacked = spaces.Box(0, 255, (3, 4, 4), np.uint8)
    opened(tmp_path / "store", stacked, frame_stack=3).close()
    opened(tmp_path / "store").close()
    opened(tmp_path / "store", stacked, frame_stack=3).close()


def test_metadata_is_kept_and_must_be_the_same(tmp_path: Path) -> None:
    path, mine = tmp_path / "store", {"run": 7, "tags": ("a", "b"), "nested": {"lr": 1e-3, "none": None}}
    with opened(path, metadata=mine) as buffer:
        assert buffer.metadata == mine | {"tags": ["a", "b"]}
        buffer.columns.write("value", [], np.zeros(0, np.float32))  # which writes the attributes anew
        buffer.copies.snapshot(tmp_path / "copy")
    for where in (path, tmp_path / "copy"):
        with opened(where, metadata=mine, mode="r") as buffer:
            assert buffer.metadata == mine | {"tags": ["a", "b"]}
        with pytest.raises(db.errors.SchemaError, match=r'metadata: stored .*"run": 7.*asked for .*"run": 8'):
            opened(where, metadata=mine | {"run": 8})
    opened(tmp_path / "bare").close()
    with pytest.raises(db.errors.SchemaError, match="metadata: stored none"):
        opened(tmp_path / "bare", metadata={})
    assert db.check(path, progress=False).ok


@pytest.mark.parametrize(
    "bad",
    [[1], "text", {1: 2}, {"a": {2: 3}}, {"a": np.float32(1)}, {"a": float("nan")}, {"a": object()}, {"a": "x" * 2**17}],
    ids=["list", "text", "key", "inner key", "numpy", "nan", "object", "large"],
)
def test_metadata_that_json_cannot_hold_is_refused_and_nothing_made(bad: Any, tmp_path: Path) -> None:
    with pytest.raises(db.InputError, match="metadata must"):
        opened(tmp_path / "store", metadata=bad)
    deep: dict[str, Any] = {}
    for _ in range(100):
        deep = {"deeper": deep}
    with pytest.raises(db.InputError, match="metadata must"):
        opened(tmp_path / "store", metadata=deep)
    loop: dict[str, Any] = {}
    loop["itself"] = loop
    with pytest.raises(db.InputError, match="metadata must"):
        opened(tmp_path / "store", metadata=loop)
    assert not (tmp_path / "store").exists()


def test_stores_that_know_nothing_open_with_any_and_stay_so(tmp_path: Path) -> None:
    path = tmp_path / "store"
    columns = {"obs": db.Column((4, 4), "uint8"), "action": db.Column((), "int64")}
    with db.ReplayBuffer(path, columns=columns) as buffer:
        assert buffer.environment is None
        assert buffer.metadata is None
    for actions in (4, 6):
        with db.ReplayBuffer(path, env=Game(actions)) as buffer:
            assert buffer.environment is None


@pytest.mark.some(3)
@pytest.mark.parametrize(
    "strange",
    [
        [1],
        "text",
        {"action_space": 3, "id": ["a"], "wrappers": {}},
        {"action_space": {"kind": ["Discrete"], "n": {}}},
        {"observation_space": {"kind": "Dict", "spaces": [1]}, "action_space": {"kind": "Discrete", "n": "4"}},
        {"x": "y" * 2**17},
        json.loads('{"x": ' * 400 + "1" + "}" * 400),
    ],
    ids=["list", "text", "shallow", "kinds", "parts", "large", "deep"],
)
def test_a_strangers_attributes_are_read_with_care(strange: Any, tmp_path: Path) -> None:
    path = tmp_path / "store"
    opened(path).close()
    for name in ("environment", "metadata"):
        copied = tmp_path / name
        shutil.copytree(path, copied)
        group = json.loads((copied / "zarr.json").read_text())
        attributes = group["attributes"]["diskbuffer"]
        attributes[name] = strange
        attributes["checksum"] = checksum_of_json({key: value for key, value in attributes.items() if key != "checksum"})
        (copied / "zarr.json").write_text(json.dumps(group))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                opened(copied, metadata=None).close()
            except (db.errors.NotAStoreError, db.errors.SchemaError):
                continue
        assert isinstance(strange, dict)


def test_stable_baselines_tells_its_spaces(tmp_path: Path) -> None:
    pytest.importorskip("stable_baselines3")
    from diskbuffer.adapters.sb3 import DiskReplayBuffer, DiskRolloutBuffer

    make: Any
    for make in (DiskReplayBuffer, DiskRolloutBuffer):
        path = tmp_path / make.__name__
        buffer = make(64, SCREEN, spaces.Discrete(4), path=path)
        frame = np.zeros((1, 4, 4), np.uint8)
        if make is DiskReplayBuffer:
            buffer.add(frame, frame + 1, np.array([[1]]), np.zeros(1), np.zeros(1, bool), [{}])
        else:
            for first in (1, 0):
                buffer.add(frame, np.array([[1]]), np.zeros(1), np.full(1, first), torch.zeros(1), torch.zeros(1))
        buffer.stored.close()
        with pytest.raises(db.errors.SchemaError, match=r"action_space.n: stored 4, asked for 6"):
            make(64, SCREEN, spaces.Discrete(6), path=path)
        make(64, SCREEN, spaces.Discrete(4), path=path).stored.close()
