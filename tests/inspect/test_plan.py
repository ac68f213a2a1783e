"""Plans: what they forecast is what stores then take, what they say of Stable-Baselines3 is what its buffers allocate."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import diskbuffer as db
from diskbuffer.commands.plan import plan as command
from diskbuffer.inspect.environments import make, play
from diskbuffer.inspect.plan import Plan, plan_environment, plan_store

ROOT = Path(__file__).parents[2]
LENGTH = 60  # steps of an episode
SMALL, NOISE, VECTORS = {"side": 60}, {"side": 40, "noise": True}, {"side": 0}


class Scenes(gymnasium.Env[Any, Any]):
    """Pictures of squares that move over a background, or of noise; or vectors, with `side` 0."""

    def __init__(self, side: int, noise: bool = False) -> None:
        vector = spaces.Box(-1, 1, (6,), np.float32)
        self.observation_space = spaces.Box(0, 255, (side, side), np.uint8) if side else vector
        self.action_space = spaces.Discrete(3)
        self._side, self._noise = side, noise

    def _observe(self) -> Any:
        if not self._side:
            return self.np_random.normal(size=6).astype(np.float32)
        if self._noise:
            return self.np_random.integers(0, 256, (self._side, self._side), np.uint8)
        frame = np.add.outer(np.arange(self._side), np.arange(self._side)).astype(np.uint8) // 8
        for x, y in self.np_random.integers(0, self._side - 8, (12, 2)):
            frame[x : x + 8, y : y + 8] = 200
        return frame

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._n = 0
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._n += 1
        return self._observe(), 1.0, self._n == LENGTH, False, {}


def scenes(n_envs: int = 1, **kind: Any) -> Any:
    return Scenes(**kind) if n_envs == 1 else gymnasium.vector.SyncVectorEnv([lambda: Scenes(**kind)] * n_envs)


def fill(path: Path, steps: int, n_envs: int, kind: dict[str, Any], **options: Any) -> int:
    """Play steps through a store; return what it takes of the disk."""
    env = scenes(n_envs, **kind)
    with db.ReplayBuffer(path, env=env, **options) as buffer:
        for step, _ in zip(play(env, 1), range(steps // n_envs), strict=False):
            buffer.add(**step)
        buffer.flush(recompress=True)
        return int(buffer.stats()["disk_bytes"])


def tried(monkeypatch: pytest.MonkeyPatch, place: Path, most: int, n_envs: int, kind: dict[str, Any], **sizes: Any) -> Plan:
    """Plan with a trial of so many steps, however fast they are: a disk with little room ends it."""
    row = max(kind["side"] ** 2, 24) + 30
    with monkeypatch.context() as patch:
        patch.setattr("shutil.disk_usage", lambda path: type("Usage", (), {"free": 4 * row * most}))
        return plan_environment(scenes(n_envs, **kind), place, **sizes, seconds=600.0)


# Forecasts


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("kind", "n_envs", "steps", "kept", "near"),
    [
        (SMALL, 1, 10_000, 6_000, 0.1),  # the fastest codec is chosen of those that come within a tenth of the smallest
        (SMALL, 4, 10_000, 50_000, 0.1),
        (NOISE, 2, 12_000, 8_000, 0.03),
        (VECTORS, 4, 60_000, 40_000, 0.08),
    ],
)
def test_a_store_takes_what_is_forecast(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: dict[str, Any], n_envs: int, steps: int, kept: int, near: float
) -> None:
    forecast = tried(monkeypatch, tmp_path, 4000, n_envs, kind, capacity=kept, steps=steps)
    assert list(tmp_path.iterdir()) == []
    taken = fill(tmp_path / "store", steps, n_envs, kind, capacity=kept)
    assert forecast.disk == pytest.approx(taken, rel=near)
    # The store's own steps tell what it takes, too; and half of them what all of it will.
    assert plan_store(tmp_path / "store", steps=steps).disk == pytest.approx(taken, rel=near)
    fill(tmp_path / "half", kept // 2, n_envs, kind, capacity=kept)
    assert plan_store(tmp_path / "half", steps=steps).disk == pytest.approx(taken, rel=near)


@pytest.mark.nightly
def test_a_short_training_is_not_recompressed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forecast = tried(monkeypatch, tmp_path, 3000, 1, SMALL, capacity=200_000, steps=3000)
    assert forecast.packing["obs"].live > 1.1 * forecast.packing["obs"].sealed
    taken = fill(tmp_path / "store", 3000, 1, SMALL, capacity=200_000)
    assert forecast.disk == pytest.approx(taken, rel=0.05)


@pytest.mark.nightly
def test_what_was_written_later_is_forecast_for_all_steps(tmp_path: Path) -> None:
    for name, steps in (("few", 6000), ("all", 20_000)):
        fill(tmp_path / name, steps, 1, VECTORS, capacity=20_000)
        with db.ReplayBuffer(tmp_path / name) as buffer:
            there = np.arange(steps) + np.arange(steps) // LENGTH  # an episode's last observation has a row, and is no step
            buffer.columns.write("value", there, np.ones((steps, 100), np.float32))
            taken = buffer.stats()["disk_bytes"]
    forecast = plan_store(tmp_path / "few")
    assert forecast.columns["value"] > 20_000 * 400
    assert forecast.disk == pytest.approx(taken, rel=0.03)


@pytest.mark.nightly
def test_more_steps_than_are_kept_take_no_more(tmp_path: Path) -> None:
    fill(tmp_path / "store", 6000, 1, VECTORS, capacity=20_000)
    sizes = [plan_store(tmp_path / "store", steps=n).disk for n in range(20_000, 2_000_000, 60_000)]
    assert max(sizes) < 2.1 * min(sizes)  # what is kept lies in one segment, or in two
    assert plan_store(tmp_path / "store").kept == 20_000
    assert plan_store(tmp_path / "store", capacity=40_000).steps == 40_000


# Other libraries


def arrays_of(given: Any) -> int:
    return sum(value.nbytes for value in vars(given).values() if isinstance(value, np.ndarray))


@pytest.mark.nightly
@pytest.mark.parametrize(("n_envs", "stack"), [(1, 1), (1, 4), (3, 4)])
def test_stable_baselines3_allocates_what_is_said(tmp_path: Path, n_envs: int, stack: int) -> None:
    from stable_baselines3.common.buffers import ReplayBuffer

    capacity, at = 1000, iter("ab")
    cases: list[Any] = [
        (spaces.Box(0, 255, (stack, 8, 9), np.uint8), spaces.Discrete(5), db.Column((8, 9), "uint8"), db.Column((), "int64")),
        (spaces.Box(-1, 1, (stack, 6)), spaces.Box(-1, 1, (3,), np.float64), db.Column((6,)), db.Column((3,), "float64")),
    ]
    for observations, actions, obs, action in cases:
        path = tmp_path / next(at)
        with db.ReplayBuffer(
            path, columns={"obs": obs, "action": action}, n_envs=n_envs, autoreset="next_step", frame_stack=stack
        ) as buffer:
            for _ in range(2):
                frames, taken = np.zeros((n_envs, *obs.shape), obs.np_dtype), np.zeros((n_envs, *action.shape), action.np_dtype)
                flags = np.zeros(n_envs, bool)
                buffer.add(frames, taken, np.zeros(n_envs), frames, flags, flags, new_episode=False)
        said = plan_store(path, capacity=capacity)
        assert said.sb3 == arrays_of(ReplayBuffer(capacity, observations, actions, n_envs=n_envs))
        options: dict[str, Any] = {"optimize_memory_usage": True, "handle_timeout_termination": False}
        assert said.sb3_sparing == arrays_of(ReplayBuffer(capacity, observations, actions, n_envs=n_envs, **options))


def test_dict_observations_count_whole(tmp_path: Path) -> None:
    columns = {"obs/a": db.Column((10,), "uint8"), "obs/b": db.Column((), "float32"), "action": db.Column((), "int64")}
    with db.ReplayBuffer(tmp_path / "store", columns=columns) as buffer:
        buffer.extend({"a": np.zeros((6, 10)), "b": np.zeros(6)}, np.zeros(5, int), np.zeros(5))
    said = plan_store(tmp_path / "store", capacity=100)
    assert (said.sb3, said.sb3_sparing) == (100 * (2 * 14 + 8 + 12), None)  # it refuses to be sparing with dicts


# Environments


def some_vector() -> Any:
    disabled = gymnasium.vector.AutoresetMode.DISABLED
    return gymnasium.vector.SyncVectorEnv([lambda: gymnasium.make("CartPole-v1")] * 3, autoreset_mode=disabled)


@pytest.mark.some(1)
@pytest.mark.parametrize(
    ("name", "options", "shape"),
    [
        ("CartPole-v1", {}, (4,)),
        ("CartPole-v1", {"n_envs": 2}, (2, 4)),
        ("ALE/Pong-v5", {}, (84, 84)),
        (f"{__name__}:some_vector", {}, (3, 4)),
    ],
)
def test_environments_are_made_as_users_have_them(name: str, options: dict[str, Any], shape: tuple[int, ...]) -> None:
    env = make(name, **options)
    assert [step["obs"].shape for step, _ in zip(play(env, 0), range(300), strict=False)] == [shape] * 300
    env.close()


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("builtins:int", "made a int"),
        ("builtins:no_function", "cannot be made: .*no attribute 'no_function'"),
        ("no_such_module:f", "cannot be made: No module"),
        ("NoSuch-v0", "NoSuch-v0 cannot be made"),
    ],
)
def test_what_is_no_environment_is_told(name: str, said: str) -> None:
    with pytest.raises(db.InputError, match=said):
        make(name)


# The command


def test_what_will_not_fit_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fill(tmp_path / "store", 6000, 1, VECTORS)
    assert command(str(tmp_path / "store"), steps=10_000) == 0
    shown = capsys.readouterr()
    assert "10,000 steps, of which 10,000 are kept" in shown.out
    assert shown.err == ""
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("Usage", (), {"free": 1_000_000}))
    assert command(str(tmp_path / "store"), steps=1_000_000) == 1
    assert "It will not fit" in capsys.readouterr().err
    assert command(str(tmp_path / "store"), steps=1_000_000, json=True) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["fits"] is False
    assert told["disk"] > 1_000_000 * 6 * 4


@pytest.mark.nightly
def test_an_environment_is_tried_beside_the_store_that_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    places, made = list[str](), db.ReplayBuffer

    def buffer(path: Any, *args: Any, **options: Any) -> Any:
        places.append(str(Path(path).parents[1]))
        return made(path, *args, **options)

    monkeypatch.setattr("diskbuffer.inspect.plan.ReplayBuffer", buffer)
    db.ReplayBuffer(tmp_path / "runs/one", env=gymnasium.make("CartPole-v1")).close()
    for place in (tmp_path / "runs", tmp_path / "runs/one", tmp_path / "runs/two/not/there"):
        assert command(str(place), env="CartPole-v1", seconds=0.2, capacity=5000) == 0
    assert places == [str(tmp_path / "runs")] * 6


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "no diskbuffer store.*--env ALE/Pong-v5"),
        ({"stack": 4}, "need --env"),
        ({"env": "CartPole-v1", "envs": 0}, "envs must be"),
        ({"env": "CartPole-v1", "capacity": 0}, "capacity must be"),
        ({"env": "CartPole-v1", "seconds": 0.0}, "seconds must be above 0"),
        ({"env": "CartPole-v1", "seconds": float("nan")}, "seconds must be above 0"),
        ({"env": "ALE/Pong-v5", "seconds": 1e-6}, "too few to see how steps compress"),
    ],
)
def test_bad_input_is_told(given: dict[str, Any], said: str, tmp_path: Path) -> None:
    (tmp_path / "other.txt").touch()
    with pytest.raises(db.InputError, match=said):
        command(str(tmp_path), **given)
    assert [path.name for path in tmp_path.iterdir()] == ["other.txt"]


def test_a_store_without_steps_is_told(tmp_path: Path) -> None:
    fill(tmp_path / "store", 0, 1, VECTORS)
    with pytest.raises(db.InputError, match="no steps yet"):
        command(str(tmp_path / "store"))


@pytest.mark.nightly
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_temporary_stores_are_gone_after_a_signal(tmp_path: Path, number: int) -> None:
    options = ("--env", "CartPole-v1", "--seconds", "300", "--capacity", "5000")
    process = subprocess.Popen(
        [sys.executable, "-m", "diskbuffer", "plan", str(tmp_path), *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        preexec_fn=lambda: signal.signal(number, signal.SIG_DFL),  # which is ignored where the tests are run with nohup
    )
    while not list(tmp_path.glob(".diskbuffer-plan-*/trial")):
        assert process.poll() is None
        time.sleep(0.1)
    process.send_signal(number)
    _, said = process.communicate()
    assert process.returncode == 130
    assert "the temporary stores are removed" in said
    assert list(tmp_path.iterdir()) == []
