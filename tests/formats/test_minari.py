"""Minari: what its own library writes, and what it reads of ours, bit by bit, in its three layouts."""

from __future__ import annotations

import gc
import json
import shutil
import subprocess
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gymnasium as gym
import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import diskbuffer as db
from diskbuffer.formats import export, import_
from diskbuffer.formats.minari.source import MinariSource
from tests.amounts import examples
from tests.formats import episodes as made
from tests.formats import interrupted

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    minari = pytest.importorskip("minari")
from minari.data_collector import EpisodeBuffer
from minari.dataset.minari_storage import MinariStorage

LAYOUTS = ("hdf5", "arrow", "parquet")
DTYPES = ("uint8", "int8", "int32", "int64", "uint16", "float16", "float32", "float64")


@st.composite
def leaf_spaces(draw: st.DrawFn) -> gym.spaces.Space[Any]:
    kind = draw(st.sampled_from(["Box", "Box", "Box", "Discrete", "MultiDiscrete", "MultiBinary", "picture"]))
    shape = tuple(draw(st.lists(st.integers(1, 4), max_size=3)))
    if kind == "Discrete":
        return gym.spaces.Discrete(draw(st.integers(1, 9)), start=draw(st.integers(-3, 3)))
    if kind == "MultiDiscrete":
        return gym.spaces.MultiDiscrete(draw(st.lists(st.integers(1, 9), min_size=1, max_size=4)))
    if kind == "MultiBinary":
        return gym.spaces.MultiBinary(draw(st.one_of(st.integers(1, 5), st.just([2, 3]))))
    if kind == "picture":
        return gym.spaces.Box(0, 255, draw(st.sampled_from([(32, 40), (33, 32, 3)])), np.uint8)
    dtype = np.dtype(draw(st.sampled_from(DTYPES)))
    if dtype.kind == "f":
        low = np.random.default_rng(draw(st.integers(0, 99))).normal(size=shape).astype(dtype)
        return gym.spaces.Box(low, np.full(shape, np.inf, dtype), shape, dtype.type)
    return gym.spaces.Box(0, draw(st.sampled_from([1, 100])), shape, dtype.type)


def spaces(levels: int = 2) -> st.SearchStrategy[gym.spaces.Space[Any]]:
    if not levels:
        return leaf_spaces()
    inner = spaces(levels - 1)
    keys = st.sampled_from(["a", "camera", "_hidden", "two words", "0", "next_obs"])
    return st.one_of(
        leaf_spaces(),
        st.dictionaries(keys, inner, min_size=1, max_size=3).map(gym.spaces.Dict),
        st.lists(inner, min_size=1, max_size=3).map(gym.spaces.Tuple),
    )


def values_of(space: gym.spaces.Space[Any], rows: int, random: np.random.Generator) -> Any:
    """Return values of a space, as an `EpisodeBuffer` has them."""
    if isinstance(space, gym.spaces.Dict):
        return {key: values_of(inner, rows, random) for key, inner in space.spaces.items()}
    if isinstance(space, gym.spaces.Tuple):
        return tuple(values_of(inner, rows, random) for inner in space.spaces)
    shape = (rows, *(space.shape or ()))
    if isinstance(space, gym.spaces.Box) and space.dtype is not None and space.dtype.kind == "f":
        return random.normal(size=shape).astype(space.dtype)
    most = 256 if space.dtype == np.uint8 else 2
    return random.integers(0, most, shape).astype(space.dtype)


def buffers(
    observations: gym.spaces.Space[Any], actions: gym.spaces.Space[Any], seed: int, infos: int, nested: bool = True
) -> list[EpisodeBuffer]:
    """Return episodes; of their infos each step has one, and with `infos` 1 there is one before the first; with -1 none."""
    random = np.random.default_rng(seed)
    found = []
    for number in range(int(random.integers(1, 4))):
        steps = int(random.integers(1, 6))
        ended = np.zeros((2, steps), bool)
        ended[:, -1] = random.random(2) < 0.5
        extra: dict[str, Any] | None = None
        if infos >= 0:
            rows = steps + infos
            # Scalars as lists, as Minari's collector has them: of arrays of one axis it makes what it cannot read in Arrow
            extra = {"success": (random.random(rows) < 0.5).tolist(), "map": random.integers(0, 9, (rows, 2, 3)).astype(np.int32)}
            if nested:
                extra["state"] = {"qpos": random.normal(size=(rows, 3)), "n": random.integers(0, 9, rows).tolist()}
        found.append(
            EpisodeBuffer(
                id=number,
                seed=int(random.integers(2**63)) if random.random() < 0.7 else None,
                observations=values_of(observations, steps + 1, random),
                actions=values_of(actions, steps, random),
                rewards=random.normal(size=steps),
                terminations=ended[0],
                truncations=ended[1],
                infos=extra,
            )
        )
    return found


def write(
    path: Path,
    episodes: list[EpisodeBuffer],
    observations: gym.spaces.Space[Any],
    actions: gym.spaces.Space[Any],
    layout: str,
    jpeg: bool = False,
    **more: Any,
) -> Path:
    """Have Minari write a data set."""
    (path / "data").mkdir(parents=True)
    storage = MinariStorage.new(path / "data", observations, actions, data_format=layout, jpeg_encoding=jpeg)
    storage.update_metadata({"dataset_id": "test/given-v3", "minari_version": minari.__version__, "author": {"me"}, **more})
    storage.update_episodes(episodes)
    return path


def same(one: Any, other: Any, where: str) -> None:
    """Assert that what Minari reads is the same, bit by bit."""
    if isinstance(one, Mapping):
        assert isinstance(other, Mapping), where
        assert set(one) == set(other), where
        for key in one:
            same(one[key], other[key], f"{where}/{key}")
    elif isinstance(one, tuple | list):
        assert len(one) == len(other), where
        for number, (a, b) in enumerate(zip(one, other, strict=True)):
            same(a, b, f"{where}/{number}")
    else:
        a, b = np.asarray(one), np.asarray(other)
        assert (a.dtype, a.shape) == (b.dtype, b.shape), where
        if a.dtype == object:  # nested infos in Arrow, of which Minari makes an array of dicts
            same(a.tolist(), b.tolist(), where)
        else:
            assert a.tobytes() == b.tobytes(), where


def assert_same_data(path: Path, other: Path) -> None:
    """Assert that Minari finds the same in two data sets, episodes' metadata included."""
    one, two = minari.MinariDataset(path / "data"), minari.MinariDataset(other / "data")
    assert len(one) == len(two)
    assert one.spec.total_steps == two.spec.total_steps
    assert (one.observation_space, one.action_space) == (two.observation_space, two.action_space)
    assert (one.id, one.env_spec) == (two.id, two.env_spec)
    numbers = range(len(one))
    noted = zip(one.storage.get_episode_metadata(numbers), two.storage.get_episode_metadata(numbers), strict=True)
    for a, b in noted:
        assert {key: value for key, value in a.items() if key != "diskbuffer"} == {
            key: value for key, value in b.items() if key != "diskbuffer"
        }
    for number, (a, b) in enumerate(zip(one, two, strict=True)):
        for name in ("observations", "actions", "rewards", "terminations", "truncations"):
            same(getattr(a, name), getattr(b, name), f"episode {number}: {name}")
        same(a.infos or {}, b.infos or {}, f"episode {number}: infos")


@pytest.mark.nightly
@given(data=st.data(), layout=st.sampled_from(LAYOUTS), seed=st.integers(0, 10**6))
@examples(8, 40)
def test_what_minari_writes_comes_back_as_it_was(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, layout: str, seed: int
) -> None:
    observations, actions = data.draw(spaces()), data.draw(spaces(1))
    infos = data.draw(st.sampled_from([-1, 0, 1] if layout == "hdf5" else [-1, 1]))
    path = tmp_path_factory.mktemp("minari")
    episodes = buffers(observations, actions, seed, infos, nested=layout == "hdf5")
    written = write(path / "given", episodes, observations, actions, layout)
    store = import_("minari", written, path / "store", progress=False)
    out = export("minari", store, path / "out", progress=False)
    assert_same_data(written, out)
    again = import_("minari", out, path / "again", progress=False)
    made.assert_same(made.read(again), made.read(store))
    one, other = (json.loads((place / "data" / "metadata.json").read_text()) for place in (written, out))
    assert other.pop("diskbuffer")["metadata"]["minari"]["dataset"]["dataset_id"] == "test/given-v3"
    for name in ("dataset_size", "data_format"):
        del one[name], other[name]
    assert one == other


@given(seed=st.integers(0, 10**6), streams=st.integers(1, 3))
@examples(1, 20)
def test_what_a_store_holds_comes_back_as_it_was(tmp_path_factory: pytest.TempPathFactory, seed: int, streams: int) -> None:
    path, random = tmp_path_factory.mktemp("stores"), np.random.default_rng(seed)
    columns = dict(made.COLUMNS) | {
        "log_prob": db.Column((), "float32", allow_nan=True),
        "other/deep%20er": db.Column((2, 2), "int16"),
        "action": db.Column((2, 3), random.choice(["bool", "int8", "float64"])),
        "reward": db.Column((), random.choice(["float32", "float64", "int64"])),
    }
    episodes = [
        made.episode(
            int(random.integers(1, 30)),
            random,
            columns,
            str(random.choice(["terminated", "truncated", "cut off"])),
            tag=str(random.choice(["", "good", "bad"])),
            stream=number % streams,
        )
        for number in range(int(random.integers(1, 6)) * streams)
    ]
    episodes[0].columns["log_prob"][:] = np.nan  # type: ignore[index]
    store = made.store_of(path / "store", episodes, columns, n_envs=streams, metadata={"mine": [1, 2]})
    out = export("minari", store, path / "out", progress=False)
    found = minari.MinariDataset(out / "data")
    read = made.read(store)
    for one, two in zip(found, read, strict=True):
        same(one.observations["camera"], two["obs/camera"], "camera")
        same(one.actions, two["action"], "action")
        same(one.rewards, two["reward"], "reward")
        same(one.terminations, two["terminated"], "terminated")
        same(one.infos["log_prob"][-len(one) :], two["log_prob"], "log_prob")
    again = import_("minari", out, path / "again", progress=False)
    made.assert_same(made.read(again), read)
    with db.ReplayBuffer(store, mode="r") as first, db.ReplayBuffer(again, mode="r") as second:
        assert dict(first.columns) == dict(second.columns)
        assert (first.metadata, first.environment, first.n_envs) == (second.metadata, second.environment, second.n_envs)


@pytest.mark.some(1)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_pictures_that_minari_wrote_as_jpeg_are_as_minari_reads_them(tmp_path: Path, layout: str) -> None:
    observations = gym.spaces.Dict(
        {"camera": gym.spaces.Box(0, 255, (40, 32, 3), np.uint8), "grey": gym.spaces.Box(0, 255, (32, 48), np.uint8)}
    )
    actions = gym.spaces.Discrete(3)
    written = write(tmp_path / "given", buffers(observations, actions, 5, -1), observations, actions, layout, jpeg=True)
    store = import_("minari", written, tmp_path / "store", progress=False)
    assert_same_data(written, export("minari", store, tmp_path / "out", progress=False))


@pytest.fixture
def collected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data set of CartPole, by Minari's own collector."""
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "datasets"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        env = minari.DataCollector(gym.make("CartPole-v1"), record_infos=True)
        for seed in range(3):
            env.reset(seed=seed)
            over = False
            while not over:
                _, _, terminated, truncated, _ = env.step(env.action_space.sample())
                over = terminated or truncated
        env.create_dataset("mine/cartpole-v0", author="me", algorithm_name="random")
        env.close()
        del env
        gc.collect()
    return tmp_path / "datasets" / "mine" / "cartpole-v0"


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")  # of its collector
def test_what_minari_collected_opens_by_its_name_and_makes_its_environment(
    collected: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = import_("minari", collected, tmp_path / "store", progress=False)
    with db.ReplayBuffer(store, mode="r") as buffer:
        assert buffer.environment is not None
        assert buffer.environment["id"] == "CartPole-v1"
        assert buffer.environment["action_space"] == {"kind": "Discrete", "n": 2, "start": 0}
        assert buffer.columns["episode/seed"] == db.Column((), "uint64")
    out = export("minari", store, tmp_path / "datasets" / "ours" / "cartpole-v1", dataset_id="ours/cartpole-v1", progress=False)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "datasets"))
    found = minari.load_dataset("ours/cartpole-v1")
    assert found.spec.dataset_name == "cartpole"
    assert found.recover_environment().spec.id == "CartPole-v1"
    one, two = (minari.MinariDataset(path / "data") for path in (collected, out))
    assert list(one.storage.get_episode_metadata(range(3))) == list(two.storage.get_episode_metadata(range(3)))
    for a, b in zip(one, two, strict=True):
        same(vars(a), vars(b), "an episode")


def test_a_store_of_an_environment_says_its_spaces(tmp_path: Path) -> None:
    with db.ReplayBuffer(tmp_path / "store", env=gym.make("CartPole-v1")) as buffer:
        buffer.extend(obs=np.zeros((5, 4), np.float32), action=np.zeros(4, np.int64), reward=np.ones(4))
    out = export("minari", tmp_path / "store", tmp_path / "out", progress=False)
    found = minari.MinariDataset(out / "data")
    assert found.id == "diskbuffer/cartpole-v0"
    env = gym.make("CartPole-v1")
    assert (found.observation_space, found.action_space) == (env.observation_space, env.action_space)


# Damaged and hostile data sets

OBSERVATIONS, ACTIONS = (
    gym.spaces.Dict({"a": gym.spaces.Box(-1, 1, (3,)), "b": gym.spaces.Discrete(4)}),
    gym.spaces.Box(-1, 1, (2,)),
)


def given_set(path: Path, layout: str = "hdf5", **more: Any) -> Path:
    return write(path, buffers(OBSERVATIONS, ACTIONS, 3, 0 if layout == "hdf5" else -1), OBSERVATIONS, ACTIONS, layout, **more)


def changed(path: Path, **fields: Any) -> None:
    file = path / "data" / "metadata.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))


@pytest.mark.parametrize(
    "fields",
    [
        {"observation_space": '{"type": "Tuple", "subspaces": [' * 5000},
        {"observation_space": json.dumps({"type": "Box", "dtype": "float32", "shape": [-3], "low": 0, "high": 1})},
        {"observation_space": json.dumps({"type": "Box", "dtype": "O", "shape": [3], "low": 0, "high": 1})},
        {"observation_space": json.dumps({"type": "MultiBinary", "n": 10**15})},
        {"observation_space": json.dumps({"type": "Dict", "subspaces": {"c": {"type": "Discrete", "n": 3}}})},
        {"observation_space": json.dumps({"type": "Text", "max_length": 3})},
        {"observation_space": None},
        {"action_space": "[]"},
        {"data_format": "../../etc"},
        {"total_episodes": 10**9},
    ],
)
@pytest.mark.parametrize("layout", ["hdf5", "arrow"])
def test_metadata_that_lie_are_refused(tmp_path: Path, layout: str, fields: dict[str, Any]) -> None:
    path = given_set(tmp_path / "given", layout)
    changed(path, **fields)
    with pytest.raises(db.errors.SourceError):
        import_("minari", path, tmp_path / "store", allow_loss=["text"], progress=False)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("part", np.linspace(0, 0.97, 8).tolist())
def test_files_cut_short_are_refused(tmp_path: Path, layout: str, part: float) -> None:
    path = given_set(tmp_path / "given", layout)
    file = path / "data" / ("main_data.hdf5" if layout == "hdf5" else f"0/part-0.{layout}")
    whole = file.read_bytes()
    file.write_bytes(whole[: int(part * len(whole))])
    with pytest.raises(db.errors.SourceError):
        import_("minari", path, tmp_path / "store", progress=False)


def external(file: Any) -> None:
    del file["episode_0/actions"]
    file["episode_0/actions"] = h5py.ExternalLink("/etc/hostname", "/")


def huge(file: Any) -> None:
    for name, shape in (("rewards", ()), ("terminations", ()), ("truncations", ()), ("actions", (2,))):
        del file[f"episode_0/{name}"]
        file.create_dataset(f"episode_0/{name}", (10**12, *shape), "f4" if name in ("rewards", "actions") else "?", chunks=True)
    file["episode_0"].attrs["total_steps"] = 10**12


def another_length(file: Any) -> None:
    del file["episode_0/rewards"]
    file["episode_0/rewards"] = np.zeros(77)


def no_group(file: Any) -> None:
    del file["episode_0/observations"]
    file["episode_0/observations"] = np.zeros((4, 3), np.float32)


def nan_steps(file: Any) -> None:
    file["episode_0"].attrs["total_steps"] = "many"


@pytest.mark.parametrize("harm", [external, huge, another_length, no_group, nan_steps])
def test_hostile_hdf5_is_refused(tmp_path: Path, harm: Any) -> None:
    path = given_set(tmp_path / "given")
    with h5py.File(path / "data" / "main_data.hdf5", "a") as file:
        harm(file)
    with pytest.raises(db.errors.SourceError):
        import_("minari", path, tmp_path / "store", progress=False)


def test_what_a_store_cannot_hold_is_named(tmp_path: Path) -> None:
    observations = gym.spaces.Dict({"a": gym.spaces.Box(-1, 1, (3,)), "mission": gym.spaces.Text(9)})
    episode = EpisodeBuffer(
        observations={"a": np.zeros((3, 3), np.float32), "mission": ["go", "go", "go"]},
        actions=np.zeros((2, 2), np.float32),
        rewards=[0.0, 1.0],
        terminations=[True, False],
        truncations=[False, True],
        options={"level": 3},
        infos={"said": ["a", "b", "c"], "won": [0, 0, 1]},
    )
    path = write(tmp_path / "given", [episode], observations, ACTIONS, "hdf5")
    with pytest.raises(db.errors.LossError) as raised:
        import_("minari", path, tmp_path / "store", progress=False)
    for name in ("text: ", "obs/mission", "infos: ", "said", "episode_metadata: ", "options"):
        assert name in str(raised.value)
    allowed = ["text", "infos", "episode_metadata"]
    with pytest.raises(db.errors.LossError, match="flags='last'"):
        import_("minari", path, tmp_path / "store", allow_loss=allowed, progress=False)
    [found] = made.read(import_("minari", path, tmp_path / "other", allow_loss=allowed, flags="last", progress=False))
    assert (found["infos/won"].tolist(), found["reset_infos/won"].tolist()) == ([0, 1], [0, 0])
    assert (found["terminated"].tolist(), found["truncated"].tolist()) == ([False, False], [False, True])


def test_an_observation_that_is_missing_after_the_last_step_is_named(tmp_path: Path) -> None:
    observations = gym.spaces.Dict({"a": gym.spaces.Box(-1, 1, (3,)), "b": gym.spaces.Box(-1, 1, (2,))})
    episodes = buffers(observations, ACTIONS, 5, -1)
    path = write(tmp_path / "given", episodes, observations, ACTIONS, "hdf5")
    import_("minari", path, tmp_path / "whole", progress=False)
    with h5py.File(path / "data" / "main_data.hdf5", "r+") as file:
        group = file["episode_1/observations"]
        for name, rows in {name: group[name][:-1] for name in group}.items():
            del group[name]
            group[name] = rows
    with pytest.raises(db.errors.LossError, match=r"final_obs: .*missing in 1 episode, first in number 1"):
        import_("minari", path, tmp_path / "store", progress=False)
    found = made.read(import_("minari", path, tmp_path / "store", allow_loss=["final_obs"], progress=False))
    assert len(found) == len(episodes)
    assert (found[1]["obs/a"][-1] == found[1]["obs/a"][-2]).all()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"compression": "lz4"}, "compression"),
        ({"dataset_id": "no version"}, "dataset_id"),
    ],
)
def test_options_are_checked(tmp_path: Path, options: dict[str, Any], said: str) -> None:
    store = made.store_of(tmp_path / "store", made.some(1))
    with pytest.raises(db.InputError, match=said):
        export("minari", store, tmp_path / "out", progress=False, **options)


def test_complex_numbers_are_a_loss_with_a_name(tmp_path: Path) -> None:
    columns = {**made.COLUMNS, "wave": db.Column((2,), "complex64")}
    random = np.random.default_rng(0)
    one = made.episode(4, random)
    one.columns["wave"] = np.ones((4, 2), np.complex64)  # type: ignore[index]
    store = made.store_of(tmp_path / "store", [one], columns)
    with pytest.raises(db.errors.LossError, match="wave"):
        export("minari", store, tmp_path / "out", progress=False)
    export("minari", store, tmp_path / "out", allow_loss=["complex"], progress=False)


# Kills, and disks that are full


@pytest.mark.nightly
def test_killed_both_ways_it_is_finished_without_doubles(tmp_path: Path, any_seed: int) -> None:
    store = made.store_of(tmp_path / "store", made.some(20))
    out, again = tmp_path / "out", tmp_path / "again"
    for _ in interrupted.killed_and_finished("export", "minari", store, out, any_seed):
        assert len(minari.MinariDataset(out / "data")) == 20
        made.assert_same(made.read(import_("minari", out, again, progress=False)), made.read(store))
        shutil.rmtree(again)
    export("minari", store, out, progress=False)
    for _ in interrupted.killed_and_finished("import", "minari", out, again, any_seed):
        made.assert_same(made.read(again), made.read(store))


FULL = """
import resource, signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
from diskbuffer.formats import export
try:
    export("minari", {store!r}, {out!r}, compression="none", progress=False)
except OSError as error:
    print("OSError", error)
"""


@pytest.mark.nightly
def test_where_there_is_no_room_nothing_is_left_at_the_target(tmp_path: Path) -> None:
    """Files that may not grow stand for a disk that is full: the error is of another number, and comes from the same calls."""
    store = made.store_of(tmp_path / "store", made.some(4, longest=300, seed=1))
    out = tmp_path / "out"
    code = FULL.format(store=str(store), out=str(out))
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.startswith("OSError"), found
    assert not out.exists()
    export("minari", store, out, compression="none", progress=False)
    assert len(minari.MinariDataset(out / "data")) == 4


@pytest.mark.parametrize("layout", ["arrow", "parquet"])
def test_bytes_that_changed_end_in_no_other_error(tmp_path: Path, layout: str) -> None:
    path, random = given_set(tmp_path / "given", layout), np.random.default_rng(0)
    file = path / "data" / "0" / f"part-0.{layout}"
    whole = np.frombuffer(file.read_bytes(), np.uint8)
    refused = 0
    for _ in range(120):
        damaged = whole.copy()
        damaged[random.integers(len(whole), size=2)] = random.integers(256, size=2)
        file.write_bytes(damaged.tobytes())
        try:
            source = MinariSource(path)
            for episode in source.episodes():
                for rows in episode.columns.values():
                    np.asarray(rows[0 : episode.steps])
            source.close()
        except db.DiskBufferError:
            refused += 1
    assert 0 < refused < 120
