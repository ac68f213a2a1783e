"""Files that others' published code wrote (see golden/npz/make.py) hold what its world is made of."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

import diskbuffer as db
from diskbuffer.formats import import_
from tests.formats import episodes as made
from tests.formats.golden.npz import world

GOLDEN = Path(__file__).parents[1] / "golden" / "npz"
ENDINGS = ("terminated", "truncated")


def wanted(env: int, episode: int, steps: int | None = None) -> dict[str, Any]:
    """Return an episode of the world; `steps` of it, if it is not finished."""
    length = steps or world.length(env, episode)
    vectors = [world.vector(env, episode, step) for step in range(length + 1)]
    flags = np.zeros(length, bool)
    flags[-1] = steps is None
    terminates = world.terminates(episode)
    return {
        "image": np.stack([world.image(env, episode, step) for step in range(length + 1)]),
        "vector": np.stack(vectors),
        "action": np.stack([world.action(vector) for vector in vectors[:-1]]),
        "reward": np.array([world.reward(step) for step in range(length)]),
        "terminated": flags & terminates,
        "truncated": flags & (not terminates),
    }


def assert_holds(found: dict[str, Any], of: dict[str, Any], columns: dict[str, str]) -> None:
    for path, name in columns.items():
        assert found[path].dtype == of[name].dtype, path
        np.testing.assert_array_equal(found[path], of[name], err_msg=path)


DREAMER = {
    "obs/image": "image",
    "obs/vector": "vector",
    "action": "action",
    "reward": "reward",
    **{flag: flag for flag in ENDINGS},
}


def test_chunks_of_dreamerv3(tmp_path: Path) -> None:
    import_("dreamer", GOLDEN / "dreamerv3", tmp_path / "store", progress=False)
    found = made.read(tmp_path / "store")
    rest = []
    for env in range(2):
        mine = [one for one in found if one["obs/vector"][0, 0] == env]
        for episode, one in enumerate(mine):
            unfinished = one["steps"] if episode == len(mine) - 1 else None
            assert_holds(one, wanted(env, episode, unfinished), DREAMER)
            rest.append(unfinished)
    assert sum(n is not None for n in rest) == 2
    assert sum(one["steps"] + 1 for one in found) == 80
    assert set(found[0]) - set(DREAMER) == {"steps", "tag", "stream"}


def test_episodes_of_dreamerv2(tmp_path: Path) -> None:
    import_("dreamer", GOLDEN / "dreamerv2", tmp_path / "store", progress=False)
    found = sorted(made.read(tmp_path / "store"), key=lambda one: one["obs/vector"][0, 1])
    assert len(found) == 4
    for episode, one in enumerate(found):
        assert_holds(one, wanted(0, episode), DREAMER)


@pytest.mark.parametrize("frame_stack", [1, 3])
def test_episodes_of_drqv2(tmp_path: Path, frame_stack: int) -> None:
    import_("drqv2", GOLDEN / "drqv2", tmp_path / "store", progress=False, frame_stack=frame_stack)
    found = made.read(tmp_path / "store")
    assert len(found) == 4
    for episode, one in enumerate(found):
        of = wanted(0, episode)
        frames = of["image"].transpose(0, 3, 1, 2)
        padded = np.concatenate([frames[:1], frames[:1], frames])
        stacks = np.concatenate([padded[back : back + len(frames)] for back in range(3)], axis=1)
        of["obs"] = frames if frame_stack == 3 else stacks
        of["env_discount"] = 1 - of["terminated"].astype(np.float32)
        assert_holds(one, of, {name: name for name in ("obs", "action", "reward", "env_discount", *ENDINGS)})
    with db.ReplayBuffer(tmp_path / "store", mode="r") as buffer:
        shape = tuple(buffer.sample(4)["obs"].shape)
        assert shape == ((4, 3, 3, 6, 6) if frame_stack == 3 else (4, 9, 6, 6))


@pytest.mark.parametrize("form", ["raw", "compact", "regular"])
def test_the_three_forms_of_ogbench(tmp_path: Path, form: str) -> None:
    run: Callable[..., Path] = import_
    path = GOLDEN / "ogbench" / f"{form}.npz"
    if form != "regular":
        with pytest.raises(db.errors.LossError, match="qpos: of final observations"):
            run("ogbench", path, tmp_path / "store", progress=False)
    run("ogbench", path, tmp_path / "store", allow_loss=["final_info"], progress=False)
    found = made.read(tmp_path / "store")
    assert len(found) == 5
    for episode, one in enumerate(found):
        of = wanted(0, episode)
        of["qpos"] = of["vector"][:-1] * 2
        of["truncated"] |= of["terminated"]
        assert_holds(one, of, {"obs": "vector", "action": "action", "truncated": "truncated", "qpos": "qpos"})
        assert not one["terminated"].any()


def test_arrays_that_lie_in_memory_by_columns_have_the_same_rows(tmp_path: Path) -> None:
    path, run = GOLDEN / "ogbench" / "raw.npz", cast("Callable[..., Path]", import_)
    with np.load(path) as arrays:
        by_columns = {name: np.asfortranarray(arrays[name]) for name in arrays}
    assert not by_columns["qpos"].flags.c_contiguous
    cast(Any, np.savez)(tmp_path / "raw.npz", **by_columns)
    found: list[Any] = []
    for source in (path, tmp_path / "raw.npz"):
        store = run("ogbench", source, tmp_path / f"store{len(found)}", allow_loss=["final_info"], progress=False)
        found.append(made.read(store))
    for one, other in zip(*found, strict=True):
        assert one.keys() == other.keys()
        for name in one:
            np.testing.assert_array_equal(one[name], other[name], err_msg=name)


@pytest.mark.parametrize("name", ["terminals", "valids"])
@pytest.mark.parametrize("dtype", [[("a", "?"), ("b", "i4")], "U1", "S1", "complex64", "datetime64[s]"])
def test_ends_of_ogbench_that_are_no_numbers_are_refused(tmp_path: Path, name: str, dtype: Any) -> None:
    n, save = 6, cast(Any, np.savez)
    arrays = {"observations": np.zeros((n, 2)), "actions": np.zeros((n, 1)), "terminals": np.arange(n) % 3 == 2}
    save(tmp_path / "set.npz", **(arrays | {name: np.zeros(n, dtype)}))
    with pytest.raises(db.errors.SourceError, match=f"{name} should be a number in each row"):
        import_("ogbench", tmp_path / "set.npz", tmp_path / "store", progress=False)
    assert not (tmp_path / "store").exists()
