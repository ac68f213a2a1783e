"""What arrays of other programs are called as columns: of two that would be one, none is lost."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import diskbuffer as db
from diskbuffer.formats import export, import_, rlds
from diskbuffer.formats.lerobot.names import column_paths as lerobot_paths
from diskbuffer.formats.naming import RESERVED, column_paths
from diskbuffer.schema.schema import Schema
from tests.amounts import examples
from tests.formats import episodes as made

Array = np.ndarray[Any, Any]
NAMES = [
    *("action", "actions", "obs", "observation", "observations", "reward", "rewards", "terminals", "terminated", "truncated"),
    *("is_last", "row_checksum", "tag", "steps", "mask", "next_obs", "info", "env", "flags", "discount", "valids"),
    *("env_discount", "obs_", "action_", "tag_", "terminated_", "_x", "a b", "a%20b", "état", "state", "episode", "reward_"),
]
STEPS = (4, 3)
N = sum(STEPS)


def numbers(value: float, rows: int) -> Array:
    return np.full((rows, 2), value)


def d4rl(path: Path, extra: dict[str, float], group: bool) -> None:
    ends = np.cumsum(STEPS) - 1
    with h5py.File(path, "w") as file:
        file["observations"], file["actions"], file["rewards"] = numbers(1, N), numbers(2, N), np.zeros(N)
        file["terminals"] = np.isin(np.arange(N), ends)
        file["timeouts"] = np.zeros(N, bool)
        add(file, extra, N, group)


def add(to: Any, extra: dict[str, float], rows: int, group: bool) -> None:
    for number, (name, value) in enumerate(extra.items()):
        to[f"{name}/inner" if group and number == 0 else name] = numbers(value, rows)


def robomimic(path: Path, extra: dict[str, float], group: bool) -> None:
    with h5py.File(path, "w") as file:
        for number, steps in enumerate(STEPS):
            demo = file.create_group(f"data/demo_{number}")
            demo["obs/state"], demo["actions"] = numbers(1, steps), numbers(2, steps)
            demo["rewards"], demo["dones"] = np.zeros(steps), np.zeros(steps)
            add(demo, extra, steps, group)


def maniskill(path: Path, extra: dict[str, float], group: bool) -> None:
    with h5py.File(path, "w") as file:
        for number, steps in enumerate(STEPS):
            one = file.create_group(f"traj_{number}")
            one["obs/agent"], one["actions"] = numbers(1, steps + 1), numbers(2, steps)
            one["rewards"], one["env_states/robot"] = np.zeros(steps), numbers(3, steps + 1)
            one["terminated"], one["truncated"] = np.zeros(steps, bool), np.zeros(steps, bool)
            if group:
                one["obs/env_states/robot"] = numbers(4, steps + 1)
            add(one, extra, steps, False)
    episodes = [{"episode_id": number, "episode_seed": number} for number in range(len(STEPS))]
    path.with_suffix(".json").write_text(json.dumps({"episodes": episodes}))


def ogbench(path: Path, extra: dict[str, float], group: bool) -> None:
    arrays: dict[str, Any] = {"observations": numbers(1, N), "actions": numbers(2, N)}
    arrays["terminals"] = np.isin(np.arange(N), np.cumsum(STEPS) - 1)
    if group:
        arrays["next_observations"] = numbers(1, N)
    arrays |= {name: numbers(value, N) for name, value in extra.items()}
    np.savez(path, **arrays)


def drqv2(path: Path, extra: dict[str, float], group: bool) -> None:
    path.mkdir()
    for number, steps in enumerate(STEPS):
        rows = steps + 1
        arrays: dict[str, Any] = {"observation": numbers(1, rows), "action": numbers(2, rows)}
        arrays |= {"reward": np.zeros((rows, 1)), "discount": np.ones((rows, 1))}
        arrays |= {name: numbers(value, rows) for name, value in extra.items()}
        np.savez(path / f"0_{number}_{steps}.npz", **arrays)


def dreamer(path: Path, extra: dict[str, float], group: bool) -> None:
    path.mkdir()
    more = {"action/action": 11.0, "action/action_": 12.0} if group else {}
    for number, steps in enumerate(STEPS):
        rows = steps + 1
        arrays: dict[str, Any] = {"image": numbers(1, rows), "action": numbers(2, rows), "reward": np.zeros(rows)}
        arrays |= {name: numbers(value, rows) for name, value in {**extra, **more}.items()}
        np.savez(path / f"20261123T00000{number}-{number:032x}-{rows}.npz", **arrays)


def tensordict(path: Path, extra: dict[str, float], group: bool) -> None:
    torch, tensordict = pytest.importorskip("torch"), pytest.importorskip("tensordict")
    found: dict[str, Any] = {"observation": numbers(1, N), "action": numbers(2, N)}
    found |= {name: numbers(value, N) for name, value in extra.items()}
    following = {
        "observation": numbers(1, N),
        "reward": np.zeros((N, 1)),
        "done": np.isin(np.arange(N), np.cumsum(STEPS) - 1)[:, None],
    }
    if group:
        following["more"] = numbers(13, N)
    both = {**found, "next": {name: torch.from_numpy(value) for name, value in following.items()}}
    tensors = {name: torch.from_numpy(value) if isinstance(value, np.ndarray) else value for name, value in both.items()}
    tensordict.TensorDict(tensors, [N]).memmap(path)


def diffusion_policy(path: Path, extra: dict[str, float], group: bool) -> None:
    import numcodecs

    del numcodecs
    ends = np.cumsum(STEPS).astype(np.int64)
    arrays = {"data/action": numbers(2, N), "data/img": numbers(1, N), "meta/episode_ends": ends}
    for name, array in {**arrays, **{f"data/{name}": numbers(value, N) for name, value in extra.items()}}.items():
        (path / name).mkdir(parents=True)
        told = {"zarr_format": 2, "shape": array.shape, "chunks": array.shape, "dtype": array.dtype.str, "compressor": None}
        told |= {"fill_value": 0, "order": "C", "filters": None}
        (path / name / ".zarray").write_text(json.dumps(told))
        (path / name / ".".join("0" * array.ndim)).write_bytes(array.tobytes())


# How a source is made, what of NAMES it has a meaning of its own for, and options of the import by the names of what is added
FORMATS: dict[
    str, tuple[Callable[[Path, dict[str, float], bool], None], tuple[str, ...], Callable[[list[str]], dict[str, Any]]]
] = {
    "d4rl": (d4rl, ("observations", "actions", "rewards", "terminals"), lambda _: {}),
    "robomimic": (robomimic, ("obs", "next_obs", "actions", "rewards"), lambda _: {}),
    "maniskill": (maniskill, ("obs", "actions", "rewards", "terminated", "truncated"), lambda _: {}),
    "ogbench": (ogbench, ("observations", "actions", "terminals", "valids", "rewards"), lambda _: {}),
    "drqv2": (drqv2, ("observation", "action", "reward", "discount"), lambda _: {}),
    "dreamer": (dreamer, ("action", "reward", "is_last", "discount"), lambda _: {"version": 2}),
    "tensordict": (tensordict, ("observation", "action", "terminated", "truncated"), lambda _: {}),
    "diffusion_policy": (diffusion_policy, ("action",), lambda names: {"obs": ["img"], "steps": names}),
}


@pytest.mark.nightly
@examples(1, 50)
@given(data=st.data(), format=st.sampled_from(sorted(FORMATS)), group=st.booleans())
def test_no_array_of_a_source_is_lost_for_its_name(
    tmp_path_factory: pytest.TempPathFactory, data: Any, format: str, group: bool
) -> None:
    path = tmp_path_factory.mktemp("naming")
    make, own, options = FORMATS[format]
    names = data.draw(st.lists(st.sampled_from([name for name in NAMES if name not in own]), min_size=1, max_size=5, unique=True))
    extra = {name: 100.0 + number for number, name in enumerate(names)}
    source = path / ("source.npz" if format == "ogbench" else "source.h5")
    make(source, extra, group)
    try:
        import_(format, source, path / "store", progress=False, allow_loss=["final_info"], **options(names))
    except db.errors.LossError:  # which says what
        assert format == "tensordict"
        return
    episode = made.read(path / "store")[0]
    values = [float(np.ravel(rows)[0]) for name, rows in episode.items() if name in columns(path / "store")]
    for name, value in {"actions": 2.0, "observations": 1.0, **extra}.items():
        assert value in values, f"{name} is lost; there are {', '.join(episode)}"
    for name in ("terminated", "truncated"):
        assert not episode[name][:-1].any()


def columns(path: Path) -> set[str]:
    with db.ReplayBuffer(path, mode="r") as buffer:
        return set(buffer.columns) - {"terminated", "truncated", "is_last", "row_checksum"}


@examples(50, 500)
@given(
    keys=st.lists(
        st.lists(st.sampled_from([*NAMES, "x"]), min_size=1, max_size=2).map(tuple), min_size=1, max_size=8, unique=True
    )
)
def test_columns_of_arrays_have_paths_of_their_own_that_a_store_takes(keys: list[tuple[str, ...]]) -> None:
    keys = [key for key in keys if len(key) == 2 or not any(other[0] == key[0] for other in keys if len(other) == 2)]
    own = {"actions": "action", "observations": "obs", "dones": "flags/dones"}
    paths = column_paths([*keys, ("dones",)], own)
    assert len(set(paths.values())) == len(paths) == len(keys) + 1
    assert not RESERVED & set(paths.values())
    if not any(path.startswith("reward/") for path in paths.values()):  # which a store has anyway
        Schema.of({path: db.Column() for path in paths.values()})
    assert column_paths([("qpos",), ("infos", "qpos")], own) == {("qpos",): "qpos", ("infos", "qpos"): "infos/qpos"}


@examples(50, 500)
@given(names=st.lists(st.sampled_from([*NAMES, "observation.state", "next.reward", "action.x", "next_obs.x"]), unique=True))
def test_features_of_lerobot_have_paths_of_their_own(names: list[str]) -> None:
    paths = lerobot_paths(names)
    assert len(set(paths.values())) == len(names)


class Leaf:
    shape, np_dtype = (2,), np.float64


def test_features_of_rlds_have_columns_of_their_own() -> None:
    keys = [
        ("observation", "a"),
        ("obs", "a"),
        ("action",),
        ("reward",),
        ("discount",),
        ("env_discount",),
        ("steps",),
        ("is_first",),
    ]
    found = rlds._columns({key: Leaf() for key in keys}, Path("here"))
    assert set(found.values()) == set(keys) - {("is_first",)}
    assert found["obs/a"] == ("observation", "a")


def test_infos_of_minari_that_were_noted_as_one_column_are_an_error(tmp_path: Path) -> None:
    pytest.importorskip("minari")
    columns = {"obs": db.Column((2,)), "action": db.Column((2,)), "a": db.Column(), "b": db.Column()}
    made.store_of(tmp_path / "store", made.some(2, columns={**columns, "reward": db.Column()}), columns)
    export("minari", tmp_path / "store", tmp_path / "out", progress=False)
    (file,) = tmp_path.glob("out/**/metadata.json")
    told = json.loads(file.read_text())
    told["diskbuffer"]["infos"] = {"a": "skill", "b": "skill"}
    file.write_text(json.dumps(told))
    with pytest.raises(db.errors.SourceError, match="infos/b would be the column 'skill'"):
        import_("minari", tmp_path / "out", tmp_path / "back", progress=False)


# What is left out is named


def test_text_in_an_episodes_group_and_groups_beside_episodes_are_losses(tmp_path: Path) -> None:
    robomimic(tmp_path / "file.hdf5", {}, False)
    with h5py.File(tmp_path / "file.hdf5", "a") as file:
        file["data/demo_0/notes"], file["data/demo_0/info/text"] = np.array([b"x"] * 4), np.array([b"x"] * 4)
        file["data/demo_0/next_obs/state"], file["data/demo_0/next_obs/more"] = numbers(1, 4), numbers(1, 4)
        file["data/demo_1/next_obs/state"] = numbers(1, 3)
        file["data/about"], file["extra/x"] = 3, 4
    with pytest.raises(db.errors.LossError) as raised:
        import_("robomimic", tmp_path / "file.hdf5", tmp_path / "store", progress=False)
    for name in ("notes", "info/text", "next_obs/more", "data/about", "extra"):
        assert name in str(raised.value)


def test_arrays_that_are_neither_named_as_observations_nor_as_columns_are_a_loss(tmp_path: Path) -> None:
    diffusion_policy(tmp_path / "source", {"state": 5.0}, False)
    with pytest.raises(db.errors.LossError, match="state"):
        import_("diffusion_policy", tmp_path / "source", tmp_path / "store", obs="img", progress=False)


@pytest.mark.parametrize(
    ("name", "told"),
    [("nosuch", r"'nosuch'\. There are d4rl, "), ("minary", r"'minary' \(did you mean 'minari'\?\)\. There ")],
)
def test_a_format_that_is_not_there_is_told_with_those_that_are(name: str, told: str, tmp_path: Path) -> None:
    with pytest.raises(db.InputError, match=f"there is no format {told}"):
        import_(name, tmp_path / "from", tmp_path / "to")
