"""TensorDicts on the disk, both ways, beside tensordict's and TorchRL's own code."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tensordict import NonTensorData, TensorDict
from torchrl.data import LazyMemmapStorage, ReplayBuffer, SliceSampler

import diskbuffer as db
from diskbuffer.formats import EpisodeData, export, import_
from tests.amounts import examples
from tests.formats import episodes as made
from tests.formats.interrupted import assert_same_in_each_stream


@given(seed=st.integers(0, 10**6), streams=st.integers(1, 3), block=st.integers(1, 20))
@examples(2, 20)
def test_a_store_comes_back_bit_by_bit(tmp_path_factory: pytest.TempPathFactory, seed: int, streams: int, block: int) -> None:
    path = tmp_path_factory.mktemp("tensordicts")
    random = np.random.default_rng(seed)
    episodes = [one for n in range(4) for one in made.some(2, seed + n, longest=20, stream=int(random.integers(streams)))]
    made.store_of(path / "store", episodes, n_envs=streams, metadata={"a": 1})
    with pytest.MonkeyPatch.context() as patched:
        made.read_here(patched, block * 1500)
        export("tensordict", path / "store", path / "out", progress=False)
        import_("tensordict", path / "out", path / "back", progress=False)
    assert_same_in_each_stream(path / "store", path / "back")
    with db.ReplayBuffer(path / "back", mode="r") as buffer:
        assert buffer.metadata == {"a": 1}
        assert buffer.n_envs == streams


ODD = {"obs/a%20b%2Ecd/é": db.Column((2,), "int16"), "obs/x": db.Column((), "bool"), "action/left": db.Column((), "uint16")}


@pytest.mark.nightly
@pytest.mark.parametrize("columns", [made.COLUMNS, ODD])
def test_tensordict_loads_an_export(tmp_path: Path, columns: dict[str, db.Column]) -> None:
    episodes = made.some(6, 3, columns)
    made.store_of(tmp_path / "store", episodes, columns)
    export("tensordict", tmp_path / "store", tmp_path / "out", progress=False)
    loaded = TensorDict.load_memmap(tmp_path / "out")
    assert loaded.batch_size == (sum(one.steps for one in episodes),)
    keys = {"obs/camera": "camera", "obs/state": "state", "action": "action", "skill": "skill", "reward": ("next", "reward")}
    keys |= {"obs/a%20b%2Ecd/é": ("a b.cd", "é"), "obs/x": "x", "action/left": ("action", "left")}
    for column in columns:
        wanted = np.concatenate([np.asarray(one.columns[column][: one.steps]) for one in episodes])
        found = loaded[keys[column]].numpy()
        assert found.dtype == wanted.dtype
        np.testing.assert_array_equal(found[:, 0] if column == "reward" else found, wanted)
        if column.startswith("obs"):
            following = np.concatenate([np.asarray(one.columns[column][1:]) for one in episodes])
            key = keys[column]
            np.testing.assert_array_equal(loaded[("next", *([key] if isinstance(key, str) else key))].numpy(), following)
    done = np.concatenate([np.arange(one.steps) == one.steps - 1 for one in episodes])
    np.testing.assert_array_equal(loaded["next", "done"][:, 0].numpy(), done)
    import_("tensordict", tmp_path / "out", tmp_path / "back", progress=False)
    made.assert_same(made.read(tmp_path / "back"), made.expected(episodes))


def test_torchrl_samples_slices_from_an_export(tmp_path: Path) -> None:
    columns = {"obs": db.Column((2,), "int64"), "action": db.Column((), "int64")}
    random = np.random.default_rng(0)
    episodes = [made.episode(12, random, columns, ("terminated", "truncated", "cut off")[n % 3]) for n in range(9)]
    for number, one in enumerate(episodes):
        one.columns["obs"][:] = np.stack([np.full(13, number), np.arange(13)], axis=1)  # type: ignore[index]
    made.store_of(tmp_path / "store", episodes, columns)
    export("tensordict", tmp_path / "store", tmp_path / "out", progress=False)
    sampler = SliceSampler(slice_len=4, end_key=("next", "done"))
    buffer = ReplayBuffer(storage=LazyMemmapStorage(108), sampler=sampler, batch_size=64)
    buffer._storage.loads(tmp_path / "out")
    batch = buffer.sample()["observation"].reshape(16, 4, 2).numpy()
    assert (batch[:, :, 0] == batch[:, :1, 0]).all()
    assert (np.diff(batch[:, :, 1]) == 1).all()


def steps_of(episodes: list[EpisodeData]) -> Any:
    """Return the steps of episodes as TorchRL's collectors have them."""
    rows = []
    for one in episodes:
        c: Any = one.columns
        done = np.arange(one.steps) == one.steps - 1
        following = {"camera": torch.from_numpy(c["obs/camera"][1:]), "state": torch.from_numpy(c["obs/state"][1:])}
        following["reward"] = torch.from_numpy(c["reward"])[:, None]
        flags = {"done": done, "terminated": c["terminated"], "truncated": c["truncated"]}
        following |= {name: torch.from_numpy(flag)[:, None] for name, flag in flags.items()}
        now = {"camera": torch.from_numpy(c["obs/camera"][:-1]), "state": torch.from_numpy(c["obs/state"][:-1])}
        now |= {"action": torch.from_numpy(c["action"]), "skill": torch.from_numpy(c["skill"])}
        now |= {"done": torch.zeros(one.steps, 1, dtype=torch.bool)}
        rows.append(TensorDict({**now, "next": following}, [one.steps]))
    return torch.cat(rows)


def ended(n: int, seed: int) -> list[EpisodeData]:
    return [one for one in made.some(2 * n, seed, longest=20) if one.flag("terminated") or one.flag("truncated")][:n]


@pytest.mark.parametrize("size", [200, 60])
def test_what_a_replay_buffer_of_torchrl_dumped(tmp_path: Path, size: int) -> None:
    episodes = ended(9, 4)
    steps = steps_of(episodes)
    assert 60 < len(steps) < 200
    buffer = ReplayBuffer(storage=LazyMemmapStorage(size), batch_size=4)
    for n in range(0, len(steps), 13):
        buffer.extend(steps[n : n + 13])
    buffer.dumps(tmp_path / "dump")
    import_("tensordict", tmp_path / "dump", tmp_path / "store", progress=False)
    found, wanted = made.read(tmp_path / "store"), made.expected(episodes)
    lost = max(0, len(steps) - size)  # the oldest, where the ring is full
    while lost >= wanted[0]["steps"]:
        lost -= wanted.pop(0)["steps"]
    first = wanted[0]
    for name in first:
        if isinstance(first[name], np.ndarray):
            first[name] = first[name][lost:]
    first["steps"] -= lost
    made.assert_same(found, wanted)


@pytest.mark.nightly
def test_several_environments(tmp_path: Path) -> None:
    episodes = [ended(30, seed) for seed in (1, 2)]
    lines: Any = torch.stack([steps_of(of)[:90] for of in episodes])  # (2, 90): time is the last axis
    wanted = [[], []]  # type: ignore[var-annotated]
    for of, into in zip(episodes, wanted, strict=True):
        left = 90
        for one in made.expected(of):
            n = min(left, one["steps"])
            if n:
                cut = {k: v[: n + k.startswith("obs")] if isinstance(v, np.ndarray) else v for k, v in one.items()}
                into.append({**cut, "steps": n})
            left -= n
    lines.memmap(tmp_path / "rollouts")
    buffer = ReplayBuffer(storage=LazyMemmapStorage(200, ndim=2), batch_size=4)
    buffer.extend(lines)
    buffer.dumps(tmp_path / "dump")
    for name in ("rollouts", "dump"):
        import_("tensordict", tmp_path / name, tmp_path / f"{name} store", progress=False)
        found = made.read(tmp_path / f"{name} store")
        for stream in range(2):
            mine = [{**one, "stream": 0} for one in found if one["stream"] == stream]
            made.assert_same(mine, wanted[stream])


def test_episodes_end_where_observations_do_not_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made.read_here(monkeypatch, 5000)
    episodes = ended(4, 8)
    steps = steps_of(episodes)
    steps["next", "done"][:] = False
    steps["next", "terminated"][:] = False
    steps["next", "truncated"][:] = False
    steps.memmap(tmp_path / "in")
    import_("tensordict", tmp_path / "in", tmp_path / "store", progress=False)
    found, wanted = made.read(tmp_path / "store"), made.expected(episodes)
    for one in wanted:
        one["terminated"][:] = one["truncated"][:] = False
    made.assert_same(found, wanted)


def test_halves_are_read_exactly_and_what_is_no_tensor_is_a_loss(tmp_path: Path) -> None:
    random = torch.Generator().manual_seed(0)
    values = torch.randn(11, 3, generator=random).to(torch.bfloat16)
    content = {
        "observation": values[:-1],
        "action": torch.zeros(10, 1),
        "next": {"observation": values[1:]},
        "text": NonTensorData("hi", [10]),
    }
    TensorDict(content, [10]).memmap(tmp_path / "in")
    with pytest.raises(db.errors.LossError, match="text is "):
        import_("tensordict", tmp_path / "in", tmp_path / "store", progress=False)
    import_("tensordict", tmp_path / "in", tmp_path / "store", allow_loss=["text"], progress=False)
    (one,) = made.read(tmp_path / "store")
    np.testing.assert_array_equal(one["obs"], values.float().numpy())


class Harm:
    def __reduce__(self) -> Any:
        return (pytest.fail, ("a pickle was read",))


def change(key: str, value: Any, at: str = "") -> Callable[[Path], object]:
    def run(path: Path) -> None:
        file = path / at / "meta.json"
        told = json.loads(file.read_text())
        place, name = (told[key.split(".")[0]], key.split(".")[1]) if key.endswith((".shape", ".dtype")) else (told, key)
        place[name] = value
        file.write_text(json.dumps(told))

    return run


def cut(name: str) -> Callable[[Path], object]:
    return lambda path: (path / name).write_bytes((path / name).read_bytes()[:-1])


HOSTILE: dict[str, Callable[[Path], object]] = {
    "no meta.json": lambda path: (path / "meta.json").unlink(),
    "no json": lambda path: (path / "meta.json").write_text("{"),
    "json in json": lambda path: (path / "meta.json").write_text("[" * 100_000),
    "a list": lambda path: (path / "meta.json").write_text("[]"),
    "a file cut short": cut("state.memmap"),
    "a file cut short below": cut("next/state.memmap"),
    "no file": lambda path: (path / "action.memmap").unlink(),
    "a directory for a file": lambda path: [(path / "action.memmap").rename(path / "a"), (path / "action.memmap").mkdir()],  # type: ignore[func-returns-value]
    "no next": lambda path: (path / "next" / "meta.json").unlink(),
    "a huge shape": change("state.shape", [10**15, 5]),
    "a huge batch": change("shape", [10**12]),
    "a negative shape": change("state.shape", [-20, 5]),
    "another batch": change("shape", [19]),
    "another batch below": change("shape", [19], "next"),
    "a shape of texts": change("state.shape", "ab"),
    "no batch": change("shape", []),
    "another class": change("_type", "<class 'os.system'>"),
    "another observation": change("state.dtype", "torch.float64"),
    "a pickle beside": lambda path: (
        (path / "other.pickle").write_bytes(pickle.dumps(Harm())),
        change("shape", [19])(path),
    ),
    "a key out of it": change(
        "../../../etc/passwd", {"device": "cpu", "shape": [20], "dtype": "torch.uint8", "is_nested": False}
    ),
    "too many steps": lambda path: (path / "storage_metadata.json").write_text('{"is_pytree": false, "len": 10000000}'),
    "steps below zero": lambda path: (path / "storage_metadata.json").write_text('{"is_pytree": false, "len": -1}'),
    "no steps": lambda path: (path / "storage_metadata.json").write_text('{"is_pytree": false, "len": 0}'),
    "a pytree": lambda path: (path / "storage_metadata.json").write_text('{"is_pytree": true, "len": 3}'),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_directories_are_errors(tmp_path: Path, kind: str) -> None:
    steps_of(ended(3, 1))[:20].memmap(tmp_path / "in")
    HOSTILE[kind](tmp_path / "in")
    with pytest.raises((db.errors.SourceError, db.InputError, db.errors.LossError)):
        import_("tensordict", tmp_path / "in", tmp_path / "store", progress=False)
    assert not (tmp_path / "store").exists()


def test_time_may_be_another_axis(tmp_path: Path) -> None:
    steps_of(ended(9, 1))[:60].reshape(3, 20).transpose(0, 1).contiguous().memmap(tmp_path / "in")
    import_("tensordict", tmp_path / "in", tmp_path / "store", time=0, progress=False)
    assert {one["stream"] for one in made.read(tmp_path / "store")} == {0, 1, 2}
    with pytest.raises(db.InputError, match="time must be"):
        import_("tensordict", tmp_path / "in", tmp_path / "other", time=2, progress=False)
