"""Several stores as one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import diskbuffer as db
from diskbuffer import editing
from tests.amounts import examples
from tests.editing import stores

SEEDS = st.integers(0, 10**6)


def expected(parts: list[list[dict[str, Any]]], made: list[stores.Made]) -> list[dict[str, Any]]:
    """Return the episodes of a merged store, stream after stream: those that run are over where others come after them."""
    envs = max(one.options["n_envs"] for one in made)
    found = []
    for stream in range(envs):
        mine = [dict(episode) for episodes in parts for episode in episodes if episode["stream"] == stream]
        for n, episode in enumerate(mine):
            if episode["ending"] == "running" and n < len(mine) - 1:
                episode["ending"] = "cut off"
        found += mine
    return found


@examples(1, 15)
@given(seed=SEEDS, kind=st.sampled_from(sorted(stores.COLUMNS)), frames=st.sampled_from([1, 3]), count=st.integers(2, 3))
def test_stores_are_merged_one_after_the_other(
    tmp_path_factory: pytest.TempPathFactory, seed: int, kind: str, frames: int, count: int
) -> None:
    path = tmp_path_factory.mktemp("stores")
    options = {
        "columns": stores.COLUMNS[kind],
        "frame_stack": frames,
        "padding": "zeros",
        "environment": None,
        "metadata": {"a": 1},
    }
    made = [stores.make(path / str(n), seed + n, **options) for n in range(count)]
    parts = [stores.episodes(one.path) for one in made]
    alike = len({frozenset(stores.described(one.path)["derived"] - {"tag"}) for one in made}) == 1
    if not alike:
        with pytest.raises(db.errors.LossError, match="derived"):
            editing.merge([one.path for one in made], path / "all", progress=False)
    if not any(parts):
        return
    editing.merge([one.path for one in made], path / "all", allow_loss=["derived"], progress=False)
    with db.ReplayBuffer(path / "all", mode="r") as buffer:
        names = buffer.episodes.tag_names
        assert buffer.metadata == {"a": 1}
        assert buffer.n_envs == max(one.options["n_envs"] for one in made)
    wanted = expected(parts, made)
    shared = frozenset.intersection(*[stores.described(one.path)["derived"] for one in made]) | {"tag"}
    tagged = any("tag" in stores.described(one.path)["derived"] for one in made)
    for one in wanted:
        for name in {"priority", "advantage"} - shared:
            one.pop(name, None)
        if tagged:  # its number may be another
            one["tag"] = np.full(len(one["reward"]), names.index(one["its tag"]) + 1 if one["its tag"] else 0, np.uint16)
    stores.assert_same(stores.episodes(path / "all"), wanted)
    assert db.check(path / "all", progress=False).ok


@pytest.mark.nightly
def test_the_newest_steps_are_those_of_the_last_store(tmp_path: Path) -> None:
    for name, steps in (("one", 100), ("two", 60)):
        with db.ReplayBuffer(tmp_path / name, columns=stores.COLUMNS["vectors"]) as buffer:
            for n in range(steps // 10):
                stores.add_episode(buffer, 10, np.random.default_rng(n), "truncated")
    editing.merge([tmp_path / "one", tmp_path / "two"], tmp_path / "all", capacity=60, progress=False)
    there = stores.episodes(tmp_path / "all")
    stores.assert_same(there[-6:], stores.episodes(tmp_path / "two"))
    assert 60 <= sum(len(one["reward"]) for one in there) < 60 + 64 + 8
    assert stores.described(tmp_path / "all")["capacity"] == 60


def test_stores_that_differ_are_refused_by_name(tmp_path: Path) -> None:
    columns = stores.COLUMNS["vectors"]
    others = {**columns, "action": db.Column((3,), "float32"), "skill": db.Column((), "int8")}
    given: dict[str, dict[str, Any]] = {
        "one": {"columns": columns, "metadata": {"run": 1}, "environment": stores.ENVIRONMENT},
        "two": {"columns": others},
        "three": {"columns": columns, "frame_stack": 3},
        "four": {"columns": columns, "metadata": {"run": 2}, "environment": {**stores.ENVIRONMENT, "id": "Other-v0"}},
    }
    for name, options in given.items():
        with db.ReplayBuffer(tmp_path / name, **options) as buffer:
            stores.add_episode(buffer, 4, np.random.default_rng(0), "truncated")
    one = tmp_path / "one"
    with pytest.raises(
        db.errors.SchemaError, match=r"(?s)action: float32\[2\] in .*one, float32\[3\] in .*two.*skill: none in .*one"
    ):
        editing.merge([one, tmp_path / "two"], tmp_path / "all", progress=False)
    with pytest.raises(db.errors.SchemaError, match=r"frame_stack: 1 in .*one, 3 in .*three"):
        editing.merge([one, tmp_path / "three"], tmp_path / "all", progress=False)
    with pytest.raises(db.errors.LossError, match=r"(?s)environment: 'id' is Made-v0 in .*metadata: 'run' is 1 in") as raised:
        editing.merge([one, tmp_path / "four"], tmp_path / "all", progress=False)
    assert "allow_loss=['environment', 'metadata']" in str(raised.value)
    editing.merge([one, tmp_path / "four"], tmp_path / "all", allow_loss=["environment", "metadata"], progress=False)
    with db.ReplayBuffer(tmp_path / "all") as buffer:
        assert buffer.environment is None
        assert buffer.metadata is None
    editing.merge(
        [one, tmp_path / "two"], tmp_path / "common", columns=["obs"], allow_loss=["environment", "metadata"], progress=False
    )
    assert len(stores.episodes(tmp_path / "common")) == 2
    with pytest.raises(db.InputError, match="two or more stores"):
        editing.merge([one], tmp_path / "alone", progress=False)
    with pytest.raises(db.InputError, match="one is given 2 times"):
        editing.merge([one, tmp_path / "x" / ".." / "one"], tmp_path / "alone", progress=False)
