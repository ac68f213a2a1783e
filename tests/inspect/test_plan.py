"""Plans: what they forecast is what stores then take, what they say of other libraries is what these allocate."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import diskbuffer as db
from diskbuffer.commands.plan import pixels, shape_of
from diskbuffer.commands.plan import plan as command
from diskbuffer.inspect import footprint
from diskbuffer.inspect import plan as planning
from diskbuffer.inspect.environments import Environment, EnvironmentOptions, Noise
from diskbuffer.inspect.footprint import Compressed, Kept
from diskbuffer.inspect.peers import peers_of
from diskbuffer.inspect.trial import Asked, Packed, Trial, trial
from diskbuffer.options import Options
from diskbuffer.store.format.layout import Layout

ROOT = Path(__file__).parents[2]
FRAMES = {"obs": db.Column((40, 40), "uint8"), "action": db.Column((), "int64")}
VECTORS = {"obs": db.Column((6,), "float32"), "action": db.Column((2,), "float32")}


def layout_of(columns: dict[str, db.Column], **options: Any) -> Layout:
    return Options(columns=columns, **options).checked().layout()


def disk_of(path: Path) -> int:
    return sum(file.lstat().st_blocks * 512 for file in [path, *path.rglob("*")] if file.is_file())


# The disk


@pytest.mark.parametrize("columns", [FRAMES, VECTORS])
@pytest.mark.parametrize("n_envs", [1, 4])
def test_a_new_store_takes_what_is_forecast(tmp_path: Path, columns: dict[str, db.Column], n_envs: int) -> None:
    with db.ReplayBuffer(tmp_path / "store", 50_000, columns=columns, n_envs=n_envs):
        taken = disk_of(tmp_path / "store")
    assert footprint.fixed_bytes(layout_of(columns, capacity=50_000, n_envs=n_envs)) == pytest.approx(taken, rel=0.15)


@pytest.mark.parametrize("columns", [FRAMES, VECTORS])
@pytest.mark.parametrize("n_envs", [1, 4])
@pytest.mark.parametrize("steps", [3_000, 9_000])
def test_a_store_takes_what_is_forecast(tmp_path: Path, columns: dict[str, db.Column], n_envs: int, steps: int) -> None:
    """Of data that nothing compresses, so that only the layout counts; with 9,000 steps the ring has wrapped."""
    capacity, length, rng = 5_000, 100, np.random.default_rng(0)
    obs, action = columns["obs"], columns["action"]
    with db.ReplayBuffer(tmp_path / "store", capacity, columns=columns, n_envs=n_envs, segment_rows=256) as buffer:
        for n in range(steps // length):
            frames = rng.integers(0, 256, (length + 1, *obs.shape), np.uint8).astype(obs.np_dtype)
            end = np.arange(length) == length - 1
            actions = np.zeros((length, *action.shape), action.np_dtype)
            buffer.extend(frames, actions, np.zeros(length), terminated=end, env=n % n_envs)
        buffer.flush(recompress=True)
        taken = buffer.stats()["disk_bytes"]
    layout = layout_of(columns, capacity=capacity, n_envs=n_envs, segment_rows=256)
    sizes = []
    for most in (False, True):
        kept = Kept.after(layout, steps, 1 + 1 / length, most=most)
        sizes.append(sum(footprint.disk_bytes(layout, kept, dict.fromkeys(layout.packed, Compressed(1.0, 1.0))).values()))
    assert sizes[0] == pytest.approx(taken, rel=0.2)
    assert taken <= 1.02 * sizes[1]


@pytest.mark.nightly
def test_what_grows_in_memory_is_about_what_is_forecast(tmp_path: Path) -> None:
    """Python's own bytes, of a store of many small segments."""
    import tracemalloc

    steps = 1_024
    with db.ReplayBuffer(tmp_path / "store", columns=VECTORS, segment_rows=8) as buffer:
        buffer.extend(np.zeros((9, 6)), np.zeros((8, 2)), np.zeros(8))
        tracemalloc.start()
        buffer.extend(np.zeros((steps + 1, 6)), np.zeros((steps, 2)), np.zeros(steps), new_episode=True)
        buffer.sample(256)
        taken, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    layout = layout_of(VECTORS, segment_rows=8)
    forecast = footprint.ram_bytes(layout, Kept.after(layout, steps, 1.0), 1)
    assert 0.5 < forecast / taken < 2


# Other libraries


def arrays_of(given: Any) -> int:
    return sum(value.nbytes for value in vars(given).values() if isinstance(value, np.ndarray))


@pytest.mark.parametrize(("n_envs", "stack"), [(1, 1), (1, 4), (3, 4)])
def test_stable_baselines3_allocates_what_is_said(n_envs: int, stack: int) -> None:
    from gymnasium import spaces
    from stable_baselines3.common.buffers import ReplayBuffer

    capacity = 1000
    cases: list[Any] = [
        (spaces.Box(0, 255, (stack, 8, 9), np.uint8), spaces.Discrete(5), db.Column((8, 9), "uint8"), db.Column((), "int64")),
        (spaces.Box(-1, 1, (stack, 6)), spaces.Box(-1, 1, (3,), np.float64), db.Column((6,)), db.Column((3,), "float64")),
    ]
    for observations, actions, obs, action in cases:
        said = {p.name: p.ram for p in peers_of({"obs": obs, "action": action}, capacity, n_envs, stack)}
        plain = ReplayBuffer(capacity, observations, actions, n_envs=n_envs)
        assert said["Stable-Baselines3"] == arrays_of(plain)
        sparing = ReplayBuffer(
            capacity, observations, actions, n_envs=n_envs, optimize_memory_usage=True, handle_timeout_termination=False
        )
        assert said["Stable-Baselines3, optimize_memory_usage"] == arrays_of(sparing)


@pytest.mark.nightly
@pytest.mark.parametrize("stack", [1, 4])
def test_torchrl_allocates_what_is_said(tmp_path: Path, stack: int) -> None:
    import torch
    from tensordict import TensorDict
    from torchrl.data import LazyMemmapStorage, LazyTensorStorage

    flags = {name: torch.zeros(1, 1, dtype=torch.bool) for name in ("done", "terminated", "truncated")}
    obs = torch.zeros(1, stack, 8, 9, dtype=torch.uint8)
    after = TensorDict({"obs": obs, "reward": torch.zeros(1, 1), **flags}, [1])
    step = TensorDict({"obs": obs, "action": torch.zeros(1, dtype=torch.int64), **flags, "next": after}, [1])
    columns = {"obs": db.Column((8, 9), "uint8"), "action": db.Column((), "int64")}
    said = {peer.name: (peer.ram, peer.disk) for peer in peers_of(columns, 500, 1, stack)}
    in_ram = LazyTensorStorage(500)
    in_ram.set(range(1), step)
    taken = sum(leaf.numel() * leaf.element_size() for leaf in in_ram._storage.values(True, True))
    assert said["TorchRL, LazyTensorStorage"] == (taken, 0)
    on_disk = LazyMemmapStorage(500, scratch_dir=str(tmp_path))
    on_disk.set(range(1), step)
    taken = sum(file.stat().st_size for file in tmp_path.rglob("*.memmap"))
    assert said["TorchRL, LazyMemmapStorage"] == (0, taken)


@pytest.mark.parametrize("stack", [1, 4])
def test_tianshou_allocates_what_is_said(stack: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from tianshou.data import Batch, ReplayBuffer

        columns = {"obs": db.Column((8, 9), "uint8"), "action": db.Column((), "int64")}
        said = {peer.name: peer.ram for peer in peers_of(columns, 500, 1, stack)}
        cases: list[tuple[str, dict[str, Any], tuple[int, ...]]] = [("Tianshou", {}, (stack, 8, 9))]
        if stack > 1:
            name = "Tianshou, stack_num, ignore_obs_next"
            cases.append((name, {"stack_num": stack, "ignore_obs_next": True}, (8, 9)))
        for name, options, shape in cases:
            buffer, obs = ReplayBuffer(500, **options), np.zeros(shape, np.uint8)
            step: Any = {"obs": obs, "act": np.int64(1), "rew": 1.0, "terminated": False, "truncated": False, "obs_next": obs}
            buffer.add(Batch({**step, "info": {}}))
            assert said[name] == _batch_bytes(buffer._meta)


def _batch_bytes(batch: Any) -> int:
    found = 0
    for value in batch.__dict__.values():
        found += value.nbytes if isinstance(value, np.ndarray) else _batch_bytes(value) if hasattr(value, "__dict__") else 0
    return found


def test_dict_observations_count_whole() -> None:
    columns = {"obs/a": db.Column((10,), "uint8"), "obs/b": db.Column((), "float32"), "action": db.Column((), "int64")}
    said = {peer.name: peer for peer in peers_of(columns, 100, 1, 1)}
    assert said["Stable-Baselines3"].ram == 100 * (2 * 14 + 8 + 12)
    assert "Stable-Baselines3, optimize_memory_usage" not in said  # it refuses dicts


# Environments


def some_vector() -> Any:
    import gymnasium

    return gymnasium.make_vec("CartPole-v1", 3)


def no_environment() -> int:
    return 3


@pytest.mark.parametrize(
    ("options", "shape", "envs"),
    [
        (EnvironmentOptions(env="CartPole-v1"), (4,), 1),
        (EnvironmentOptions(env="CartPole-v1", n_envs=2), (4,), 2),
        (EnvironmentOptions(env="ALE/Pong-v5"), (84, 84), 1),
        (EnvironmentOptions(env="ALE/Pong-v5", grey=False, resize=(42, 50)), (42, 50, 3), 1),
        (EnvironmentOptions(env="ALE/Pong-v5", resize=()), (210, 160, 3), 1),
    ],
)
def test_environments_are_made_as_users_have_them(options: EnvironmentOptions, shape: tuple[int, ...], envs: int) -> None:
    source = Environment(options, seed=0)
    schema = Options(**source.options).checked().schema
    assert schema is not None
    assert schema["obs"].shape == shape
    step = source.step()
    assert np.shape(step["obs"]) == ((envs, *shape) if envs > 1 else shape)
    source.close()


def test_a_function_makes_environments(monkeypatch: pytest.MonkeyPatch) -> None:
    import types

    module = types.ModuleType("my_envs")
    module.__dict__.update(vector=some_vector, none=no_environment)
    monkeypatch.setitem(sys.modules, "my_envs", module)
    source = Environment(EnvironmentOptions(env="my_envs:vector"), seed=0)
    assert source.step()["obs"].shape == (3, 4)
    source.close()
    for env, said in (
        ("my_envs:none", "made a int"),
        ("my_envs:other", "no function"),
        ("no_such_module:f", "cannot be imported"),
    ):
        with pytest.raises(db.InputError, match=said):
            Environment(EnvironmentOptions(env=env), seed=0)
    with pytest.raises(db.InputError, match="cannot make 'NoSuch-v0'"):
        Environment(EnvironmentOptions(env="NoSuch-v0"), seed=0)


@pytest.mark.parametrize("dtype", ["uint8", "bool", "int16", "float32"])
def test_noise_is_of_its_shape(dtype: str) -> None:
    step = Noise((3, 2), dtype, 2, seed=0).step()
    assert step["obs"].shape == (2, 3, 2)
    assert step["obs"].dtype == dtype
    assert len(np.unique(step["obs"])) > 1


# Plans


def made_up(columns: dict[str, db.Column], capacity: int, sealed: float = 0.1, **options: Any) -> Trial:
    layout = layout_of(columns, capacity=capacity, **options)
    return Trial(
        layout=layout.attributes(layout.first_slots()),
        envs=layout.n_envs,
        steps=1000,
        rows=1010,
        episodes=10,
        segments=4,
        stepping=1e-3,
        adding=1e-5,
        packed={path: Packed(live=0.2, sealed=sealed, best=sealed / 2, worst=sealed * 2) for path in layout.packed},
        ram=30_000_000,
        sampling=1e-3,
        batch_size=256,
        limited=False,
    )


def test_what_will_not_fit_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = made_up(FRAMES, 10_000_000)
    monkeypatch.setattr(planning, "run_trial", lambda asked, directory, tick: found)
    options: dict[str, Any] = {"shape": "40,40", "capacity": 10_000_000}
    assert command(str(tmp_path), **options) == 0
    assert "It will not fit" not in capsys.readouterr().err
    usage = type("Usage", (), {"free": 1_000_000_000})
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage)
    assert command(str(tmp_path), **options) == 1
    assert "the disk has 1 GB left, and the store takes up to" in capsys.readouterr().err
    usage.free = 10**15  # type: ignore[attr-defined]
    monkeypatch.setattr(planning, "available_bytes", lambda: 20_000_000)
    assert command(str(tmp_path), **options, json=True) == 1
    told = json.loads(capsys.readouterr().out)
    assert "20 MB of memory are available" in told["problems"][0]
    assert "larger than" in told["notes"][-1]


def test_without_an_environment_the_worst_is_told_and_what_is_typical(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = made_up(FRAMES, 1_000_000, sealed=1.0)
    monkeypatch.setattr(planning, "run_trial", lambda asked, directory, tick: found)
    plan = planning.plan(Asked(shape=(40, 40), capacity=1_000_000), tmp_path / "not/there/yet")
    assert plan.place == str(tmp_path)
    assert plan.figures.disk > 1_000_000 * 1600
    assert all(0 < taken < plan.figures.disk for taken in plan.typical.values())
    assert "nothing is known of how its data compress" in plan.notes[0]
    assert planning.plan(Asked(shape=(40, 40), capacity=10_000), tmp_path, training_steps=500).figures.disk < plan.figures.disk


def test_more_steps_than_are_kept_write_more_and_take_no_more() -> None:
    found = made_up(FRAMES, 100_000)
    layout, packed = layout_of(FRAMES, capacity=100_000), {"obs": Compressed(0.2, 0.1)}
    full, twice, ten = (planning.figures_of(layout, found, packed, n * 100_000, n * 100.0) for n in (1, 2, 10))
    assert twice.disk == ten.disk
    assert full.disk < twice.disk < 1.1 * full.disk
    assert full.disk <= full.disk_most
    assert twice.disk < twice.disk_most
    assert ten.written == pytest.approx(10 * full.written, rel=0.2)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "give one of --env and --shape"),
        ({"env": "CartPole-v1", "shape": "3"}, "give one of --env and --shape"),
        ({"shape": "3,x"}, "must be integers"),
        ({"shape": "3,0"}, "at least 1"),
        ({"env": "CartPole-v1", "resize": "3,4,5"}, "--resize must be a height and a width"),
        ({"env": "CartPole-v1", "resize": "0,5"}, "every number of --resize must be at least 1"),
        ({"shape": "3", "envs": 0}, "--envs must be at least 1"),
        ({"shape": "3", "seconds": 0.0}, "seconds must be above 0"),
    ],
)
def test_bad_input_is_told(given: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(db.InputError, match=said):
        command(str(tmp_path), **given)


def test_shapes_are_read() -> None:
    expected = {"84,84": (84, 84), "(96, 96, 3)": (96, 96, 3), "96x96x3": (96, 96, 3), "5": (5,), "()": ()}
    assert {text: shape_of(text, "shape") for text in expected} == expected
    sizes = {"84": (84, 84), "100,80": (100, 80), "100x80": (100, 80), "0": (), None: None}
    assert {text: pixels(text) for text in sizes} == sizes


# Trials


def test_a_trial_finds_what_was_played(tmp_path: Path) -> None:
    asked = Asked(environment=EnvironmentOptions(env="CartPole-v1", n_envs=2), capacity=10_000, n_envs=2, seconds=0.5)
    found = trial(asked, tmp_path, os.getppid())
    assert found.steps > 0
    assert found.rows >= found.steps + found.episodes
    assert found.packed == {}
    assert min(found.stepping, found.adding, found.sampling) > 0
    assert Layout.from_group({"attributes": {"diskbuffer": found.layout}}, "it")[0].capacity == 10_000


def test_noise_does_not_compress(tmp_path: Path) -> None:
    found = trial(Asked(shape=(40, 40), capacity=10_000, seconds=0.5, n_envs=2), tmp_path, os.getppid())
    assert 0.99 < found.packed["obs"].sealed < 1.02
    assert found.segments >= 1


def test_of_thousands_of_environments_some_are_tried_and_all_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Asked(shape=(5,), dtype="float32", capacity=100_000, seconds=0.5, n_envs=4096)
    found = trial(asked, tmp_path, os.getppid())
    # Each has files of its own: making all of them took more than a minute.
    assert (found.envs, Layout.from_group({"attributes": {"diskbuffer": found.layout}}, "it")[0].n_envs) == (64, 4096)
    monkeypatch.setattr(planning, "run_trial", lambda asked, directory, tick: found)
    plan = planning.plan(asked, tmp_path)
    assert any("64 of the 4,096 environments were tried" in note for note in plan.notes)
    assert plan.figures.disk > 4096 * 5 * 4096  # a block at least of each environment's files


def test_a_plan_is_made_where_other_stores_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found, places = made_up(FRAMES, 100_000), list[Path]()

    def run_trial(asked: Asked, directory: Path, tick: Any) -> Trial:
        places.append(directory)
        return found

    monkeypatch.setattr(planning, "run_trial", run_trial)
    db.ReplayBuffer(tmp_path / "runs/one", columns=FRAMES).close()
    for place in (tmp_path / "runs", tmp_path / "runs/one", tmp_path / "runs/two"):
        command(str(place), shape="40,40")
    assert places == [tmp_path / "runs"] * 3


def start(directory: Path, *options: str) -> subprocess.Popen[str]:
    code = (
        "import sys; from diskbuffer.commands.plan import plan;"
        "sys.exit(plan(sys.argv[1], env='CartPole-v1', seconds=float(sys.argv[2]), capacity=5000, json=True))"
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", code, str(directory), *options]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


@pytest.mark.nightly
def test_the_temporary_store_is_gone_afterwards(tmp_path: Path) -> None:
    process = start(tmp_path, "2")
    out, _ = process.communicate(timeout=300)
    assert process.returncode == 0
    assert json.loads(out)["trial"]["steps"] > 100
    assert list(tmp_path.iterdir()) == []


@pytest.mark.nightly
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_the_temporary_store_is_gone_after_a_signal(tmp_path: Path, number: int) -> None:
    process = start(tmp_path, "120")
    while not list(tmp_path.glob(".diskbuffer-plan-*/store")):
        assert process.poll() is None
        time.sleep(0.1)
    process.send_signal(number)
    _, said = process.communicate(timeout=60)
    assert process.returncode == (-signal.SIGKILL if number == signal.SIGKILL else 130)
    assert number == signal.SIGKILL or "the temporary store is removed" in said
    until = time.monotonic() + 60  # after a SIGKILL the trial itself notices, and removes it
    while list(tmp_path.iterdir()) and time.monotonic() < until:
        time.sleep(0.1)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.nightly
def test_a_forecast_is_within_a_fifth_of_what_a_run_takes(tmp_path: Path) -> None:
    asked = Asked(environment=EnvironmentOptions(env="ALE/Breakout-v5"), capacity=3000, frame_stack=4, seconds=6.0)
    found = planning.plan(asked, tmp_path, training_steps=5000)
    assert asked.environment is not None
    source = Environment(asked.environment, seed=1)
    with db.ReplayBuffer(tmp_path / "store", 3000, **source.options, frame_stack=4) as buffer:
        for _ in range(5000):
            buffer.add(**source.step())
        buffer.flush(recompress=True)
        taken = buffer.stats()["disk_bytes"]
    source.close()
    assert found.figures.disk == pytest.approx(taken, rel=0.2)
