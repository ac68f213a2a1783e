"""Keys of other libraries, which may be any string, nested or not: each comes back as it was, and ordinary ones are names."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import diskbuffer as db
from diskbuffer.adapters import column_names
from diskbuffer.schema.nested import flatten, put
from diskbuffer.schema.schema import RESERVED_NAMES, Column, Schema, escape_key, unescape_key
from tests.amounts import examples

ODD = ["", "%", "%20", "%25", " ", "_", "__len", "a b", "a/b", "a.b", ".", "..", "é", "日本 語", "x_position", "x_strings", "0"]
TAKEN_BY_STORES = [
    *RESERVED_NAMES,
    "obs",
    "reward",
    "slot",
    "tag",
    "steps_",
    "steps__",
    "more",
    "policy",
    "tensor",
    "terminated",
]
keys = st.one_of(st.sampled_from([*ODD, *TAKEN_BY_STORES]), st.text(max_size=8), st.text("ab_%/. 20", max_size=5))


@given(keys)
@examples(30, 3000)
def test_a_key_is_what_its_part_of_a_path_stands_for(key: str) -> None:
    part = escape_key(key)
    assert unescape_key(part) == key
    assert "/" not in part
    assert part not in ("", ".", "..")
    assert Schema.of({f"obs/{part}": Column((2,))}).obs == (f"obs/{part}",)
    if key.isidentifier() and not key.startswith("_"):
        assert part == key


@given(keys, st.sampled_from([(), ("action", "more")]))
@examples(100, 3000)
def test_a_key_has_a_column_that_no_other_has(key: str, others: tuple[str, ...]) -> None:
    name = column_names.column_of(key, *others)
    assert column_names.key_of(name, *others) == key
    assert name not in (*RESERVED_NAMES, *others, "obs", "reward", "terminated", "tag", "slot")
    Schema.of({"obs": Column((2,)), name: Column(())})
    Schema.of({"obs": Column((2,))}).with_derived(name, Column(()))


def test_ordinary_keys_are_names() -> None:
    assert column_names.column_of("x_position") == "x_position"
    assert column_names.column_of("state_value") == "state_value"
    assert column_names.column_of("steps") == "steps_"


nests = st.recursive(
    st.integers(0, 9), lambda inner: st.dictionaries(st.text("ab_%/ ", max_size=3), inner, min_size=1, max_size=3), max_leaves=8
)


def arrays(nest: Any, t: int) -> Any:
    """Return an observation of step `t`."""
    return {key: arrays(inner, t) for key, inner in nest.items()} if isinstance(nest, dict) else np.array([nest, t], np.float64)


@pytest.fixture
def path() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as directory:
        yield Path(directory) / "store"


def equal(one: Any, other: Any) -> bool:
    """Return whether nested arrays are the same, and nested alike."""
    if not hasattr(one, "keys"):
        return not hasattr(other, "keys") and np.array_equal(one, other)
    return set(one.keys()) == set(other.keys()) and all(equal(one[key], other[key]) for key in one.keys())  # noqa: SIM118


@given(st.dictionaries(st.text("ab_%/ ", max_size=3), nests, min_size=1, max_size=3))
@examples(3, 100)
def test_a_buffer_takes_dicts_in_dicts(nest: dict[str, Any]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        columns = {path: Column((2,), "float64") for path in flatten({"obs": arrays(nest, 0)})}
        with db.ReplayBuffer(Path(directory) / "store", 100, columns=columns | {"action": Column()}) as buffer:
            for t in range(3):
                buffer.add(arrays(nest, t), 0.0, 0.0, arrays(nest, t + 1), t == 2, False)
            batch = buffer.at(buffer.steps(np.arange(3)[::-1].copy(), np.zeros(3, np.int64)))
            for t in range(3):
                assert equal(taken(batch["obs"], t), arrays(nest, t))
                assert equal(taken(batch["next_obs"], t), arrays(nest, t + 1))


def taken(values: Any, n: int) -> Any:
    """Return number `n` of nested arrays, or tensors."""
    return {key: taken(values[key], n) for key in values.keys()} if hasattr(values, "keys") else np.asarray(values[n])  # noqa: SIM118


@given(st.dictionaries(st.text("ab_%/ ", max_size=3), nests, min_size=1, max_size=3))
@examples(2, 100)
def test_tianshou_takes_observations_nested_to_any_depth(nest: dict[str, Any]) -> None:
    pytest.importorskip("tianshou")
    from tianshou.data import Batch

    from diskbuffer.adapters.tianshou import DiskVectorReplayBuffer

    with tempfile.TemporaryDirectory() as directory:

        def make() -> Any:
            return DiskVectorReplayBuffer(20, 2, path=Path(directory) / "store")

        ours = make()
        for t in range(4):
            step = Batch(act=0, rew=0.0, terminated=t == 3, truncated=False, obs=arrays(nest, t), obs_next=arrays(nest, t + 1))
            step.info = Batch(deep={"er": arrays(nest, t)})
            ours.add(Batch.stack([step] * 2))
        for _ in range(2):
            for place in (0, 1, 2, 3, 10, 13):
                t, found = place % 10, ours[np.array([place])]
                assert equal(taken(found.obs, 0), arrays(nest, t))
                assert equal(taken(found.obs_next, 0), arrays(nest, t + 1))
                assert equal(taken(found.info["deep"]["er"], 0), arrays(nest, t))
                assert equal(taken(ours.get(np.array([place]), "obs_next"), 0), arrays(nest, t + 1))
            ours.close()
            ours = make()
        ours.close()


def numbered(names: list[str], t: int) -> dict[str, Any]:
    return {name: np.array([n, t], np.float32) for n, name in enumerate(names)}


@pytest.mark.nightly
def test_torchrl_takes_entries_of_any_name(path: Path) -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("torchrl")
    from tensordict import TensorDict
    from torchrl.data import TensorDictReplayBuffer

    from diskbuffer.adapters.torchrl import DiskStorage

    names = [*dict.fromkeys([*ODD, *TAKEN_BY_STORES, "action", "index_"])]
    buffer = TensorDictReplayBuffer(storage=DiskStorage(20, path), batch_size=4)
    steps = []
    for t in range(5):
        now, after = ({name: torch.from_numpy(value) for name, value in numbered(names, at).items()} for at in (t, t + 1))
        step = now | {f"seen {name}": now[name] for name in ODD} | {"below": {name: now[name] for name in ODD}}
        step["next"] = {f"seen {name}": after[name] for name in ODD}
        steps.append(TensorDict(step, []))
        buffer.add(steps[-1])
    known = torch.stack(steps)
    for storage in (buffer._storage, DiskStorage(20, path)):
        found = storage[:].to_tensordict().exclude("index")
        assert set(found.keys(True, True)) == set(known.keys(True, True))
        for key in known.keys(True, True):
            assert found[key].tolist() == known[key].tolist(), key
        columns = set(storage.stored.opened.columns)
        assert {"x_position", "below/x_position", "steps_", "steps__", "steps___"} <= columns
        storage.close()


def test_torchrl_extends_by_entries_of_any_name(path: Path) -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("torchrl")
    from tensordict import TensorDict
    from torchrl.data import TensorDictReplayBuffer

    from diskbuffer.adapters.torchrl import DiskStorage

    steps = []
    for t in range(6):
        now, after = ({name: torch.from_numpy(value) for name, value in numbered([*ODD], at).items()} for at in (t, t + 1))
        flags = {flag: torch.zeros(1, dtype=torch.bool) for flag in ("done", "terminated", "truncated")}
        following = flags | {f"seen {name}": after[name] for name in ODD}
        steps.append(TensorDict(now | {f"seen {name}": now[name] for name in ODD} | {"next": following}, []))
    known, storage = torch.stack(steps), DiskStorage(20, path)
    buffer = TensorDictReplayBuffer(storage=storage, batch_size=4)
    for first, last in ((0, 2), (2, 6)):  # the second without looking at what there is
        buffer.extend(known[first:last])
    found = storage[:].exclude("index")
    for key in known.keys(True, True):
        assert found[key].tolist() == known[key].tolist(), key
    storage.close()


@pytest.mark.nightly
def test_sb3_takes_parts_of_any_name(path: Path) -> None:
    pytest.importorskip("stable_baselines3")
    from gymnasium import spaces
    from stable_baselines3.common.buffers import DictReplayBuffer

    from diskbuffer.adapters.sb3 import DiskDictReplayBuffer

    names = [*dict.fromkeys([*ODD, *TAKEN_BY_STORES])]
    space = spaces.Dict({name: spaces.Box(-9, 99, (2,)) for name in names})
    theirs = DictReplayBuffer(20, space, spaces.Discrete(2), "cpu")
    ours = DiskDictReplayBuffer(20, space, spaces.Discrete(2), "cpu", path=path)
    for t in range(8):
        before, after = ({name: value[None] for name, value in numbered(names, at).items()} for at in (t, t + 1))
        for buffer in (theirs, ours):
            buffer.add(before, after, np.array([0]), np.array([t]), np.array([t == 7]), [{}])
    for _ in range(2):
        np.random.seed(3)  # noqa: NPY002  as it draws
        one = theirs.sample(6)
        np.random.seed(3)  # noqa: NPY002
        other = ours.sample(6)
        for part, of in ((one.observations, other.observations), (one.next_observations, other.next_observations)):
            assert list(part) == list(of)
            assert all(np.array_equal(part[name], of[name]) for name in names)
        assert "obs/x_position" in ours.stored.opened.columns
        ours.close()
        ours = DiskDictReplayBuffer(20, space, spaces.Discrete(2), "cpu", path=path)
    ours.close()


@pytest.mark.some(2)
@pytest.mark.parametrize("key", [*ODD, *TAKEN_BY_STORES, "action", "act_", "mask"])
def test_tianshou_takes_keys_of_any_name(key: str, path: Path) -> None:
    pytest.importorskip("tianshou")
    from tianshou.data import Batch

    from diskbuffer.adapters.tianshou import DiskReplayBuffer

    if key in ("policy", "terminated", "info", "obs"):
        pytest.skip("Tianshou's own")
    ours = DiskReplayBuffer(10, path=path)
    for t in range(5):
        step = Batch(obs=np.array([t]), act=0, rew=0.0, terminated=False, truncated=False, obs_next=np.array([t + 1]))
        step.info = Batch(numbered([key, f"{key}x"], t))
        step.policy = Batch(numbered([f"{key}_", key], t))
        ours.add(step)
    later = key != "more"
    if later:
        ours.set_array_at_key(np.arange(5.0), key, np.arange(5))
    ours.set_array_at_key(np.arange(5.0) + 1, f"{key}_", np.arange(5))
    for _ in range(2):
        for found in (ours[np.arange(5)], ours.sample(0)[0]):
            for t in range(5):
                assert equal(taken(found.info, t), numbered([key, f"{key}x"], t))
                assert equal(taken(found.policy, t), numbered([f"{key}_", key], t))
            assert found[f"{key}_"].tolist() == [1, 2, 3, 4, 5]
            assert not later or found[key].tolist() == [0, 1, 2, 3, 4]
        ours.close()
        ours = DiskReplayBuffer(10, path=path)
    ours.close()


def test_nested_values_are_what_was_put() -> None:
    values: dict[str, Any] = {}
    for name in ODD:
        put(values, f"obs/{escape_key(name)}/{escape_key(name)}", name)
    assert values == {"obs": {name: {name: name} for name in ODD}}
    assert flatten(values) == {f"obs/{escape_key(name)}/{escape_key(name)}": name for name in ODD}
