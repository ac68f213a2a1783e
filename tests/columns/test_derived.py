"""Columns that are written back: ordinary Zarr arrays, sampled at once, evicted with their steps, resumed after a kill."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorstore
import torch
import zarr

import diskbuffer as db
from diskbuffer.store.verification import Verification
from tests.support.experience import Experience, Feeder


def value_of(steps: Any) -> Any:
    return (np.asarray(steps) * 7 % 1001).astype(np.float32)


def test_a_column_is_sampled_at_once_kept_up_with_eviction_and_there_after_reopening(tmp_path: Path) -> None:
    world = Experience(2, 20)
    with world.open(tmp_path / "store", 150, segment_rows=16, frame_stack=2) as buffer:
        feed = Feeder(world, buffer)
        feed.add(60)
        loop = iter(buffer.loader(16, db.Uniform(1), threads=2))
        assert "value" not in next(loop)
        steps = np.random.default_rng(0).permutation(buffer.steps())
        assert buffer.columns.write("value", steps[:70], value_of(steps[:70])) == 70
        for _ in range(8):  # those that were settled before lack it; the others do not
            batch = next(loop)
            world.check_batch(batch, 2)
        assert "value" in batch
        loop.close()  # type: ignore[attr-defined]
        known = set(steps[:70].tolist())
        for _ in range(4):
            at = buffer.steps()
            batch = buffer.at(at)
            expected = np.where(np.isin(at, list(known)), value_of(at), 0)
            np.testing.assert_array_equal(batch["value"].numpy(), expected)
            np.testing.assert_array_equal(buffer.sample(64, db.Slices(3))["value"].shape, (64, 3))
            feed.add(30)  # which knows nothing of the column
        assert buffer.columns.write("value", torch.from_numpy(steps), torch.from_numpy(value_of(steps))) < len(
            steps
        )  # some are gone
        at = buffer.steps()
        buffer.columns.write("value", at, value_of(at))
        buffer.flush()
    with world.open(tmp_path / "store") as buffer:
        at = buffer.steps()
        np.testing.assert_array_equal(buffer.at(at)["value"].numpy(), value_of(at))
        assert buffer.columns["value"] == db.Column((), "float32")
        Feeder(world, buffer).add(40)
        world.check(buffer)
        slots = np.fromfile(tmp_path / "store" / "_segments" / "length" / "c.0.0", np.int64)
        files = {int(file.name.split(".")[1]) for file in (tmp_path / "store" / "value").glob("c.*")}
        assert files <= set(np.flatnonzero(slots).tolist()), "files of evicted segments go with them"
        rows: Any = zarr.open_group(buffer.path, mode="r")["value"]
        assert set(value_of(at).tolist()) - {0.0} <= {*np.asarray(rows).tolist(), *value_of(at).tolist()}


def test_other_zarr_tools_read_it_also_where_nothing_was_written(tmp_path: Path) -> None:
    world = Experience(1, 20, (9,))
    with world.open(tmp_path / "store", segment_rows=16) as buffer:
        Feeder(world, buffer).add(60)
        steps = buffer.steps()[40:50]  # n_envs is 1: names are positions
        buffer.columns.write("embedding", steps, np.tile(steps[:, None], (1, 3)).astype(np.float32))
        root: Any = zarr.open_group(buffer.path, mode="r")
        expected = np.zeros((len(np.asarray(root["reward"])), 3), np.float32)
        expected[steps] = steps[:, None]
        np.testing.assert_array_equal(np.asarray(root["embedding"]), expected)
        spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": str(tmp_path / "store" / "embedding")}}
        np.testing.assert_array_equal(tensorstore.open(spec).result().read().result(), expected)


def test_bad_input_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    world = Experience(1, 20, (9,))
    with world.open(tmp_path / "store", 40, segment_rows=8) as buffer:
        Feeder(world, buffer).add(70)
        steps = buffer.steps()
        last = int(steps[-1]) + 1
        cases: list[tuple[str, Any, Any, str]] = [
            ("reward", steps, value_of(steps), "recorded"),
            ("obs", steps, value_of(steps), "recorded"),
            ("steps", steps, value_of(steps), "name"),
            ("tag", steps, value_of(steps), "numbers of tags"),
            ("a/b", steps, value_of(steps), "nested"),
            ("_x", steps, value_of(steps), "underscore"),
            ("x", steps, value_of(steps)[1:], "value for each"),
            ("x", steps, np.full(len(steps), np.nan), "NaN"),
            ("x", steps, ["a"] * len(steps), "dtype"),
            ("x", [last], [1.0], "never added"),
            ("x", [-1], [1.0], "never added"),
            ("x", [0.5], [1.0], "integers"),
            ("x", steps[:0].reshape(0, 2), [], "value for each"),
            ("x", steps[:2].reshape(1, 1, 2), [[[1.0, 2.0]]], "integers"),
        ]
        before = sorted(str(p) for p in (tmp_path / "store").rglob("*") if "_x" not in str(p))
        for name, at, values, message in cases:
            with pytest.raises(db.InputError, match=message):
                buffer.columns.write(name, at, values)
        assert set(buffer.columns) == {*world.columns, "reward", "terminated", "truncated", "is_last", "row_checksum"}
        assert [p for p in before if "/x" not in p] == before
        buffer.columns.write("value", steps, value_of(steps))
        for values in (value_of(steps).astype(np.float64), np.tile(value_of(steps)[:, None], (1, 2)), value_of(steps) > 0):
            with pytest.raises(db.errors.SchemaError, match=r"'value' is there as float32\[\]"):
                buffer.columns.write("value", steps, values)
        np.testing.assert_array_equal(buffer.at(steps)["value"].numpy(), value_of(steps))


# map


def test_map_writes_what_a_function_makes_of_every_step(tmp_path: Path) -> None:
    world = Experience(2, 20)
    with world.open(tmp_path / "store", segment_rows=16, frame_stack=2) as buffer:
        Feeder(world, buffer).add(90)
        with pytest.raises(db.InputError, match="second"):  # which makes no column
            buffer.columns.map(lambda batch: (batch["reward"], batch["reward"][:-1]), 16, ("first", "second"), progress=False)
        assert buffer.columns.derived == set()
        n = buffer.columns.map(
            lambda b: (b["reward"] * 2, b["next_obs"].float().mean((1, 2, 3))), 32, ("double", "mean"), progress=True
        )
        assert n == 180
        batch = buffer.at(buffer.steps())
        np.testing.assert_array_equal(batch["double"].numpy(), batch["reward"].numpy() * 2)
        np.testing.assert_allclose(batch["mean"].numpy(), batch["next_obs"].float().mean((1, 2, 3)).numpy())
        assert not (tmp_path / "store" / "double" / "map.json").exists()
        for function, message in (
            (lambda b: b["reward"][1:], "value for each"),
            (lambda b: (b["reward"], b["reward"]), "value for each"),
            (lambda b: b["reward"].double(), "'double' is there"),
            (lambda b: None, "double"),
        ):
            with pytest.raises(db.InputError, match=message):
                buffer.columns.map(function, 32, "double", progress=False)
        for out in ("reward", (), ("a", "a"), 3):
            with pytest.raises(db.InputError):
                buffer.columns.map(lambda b: b["reward"], 32, out, progress=False)  # type: ignore[arg-type]
        np.testing.assert_array_equal(buffer.at(buffer.steps())["double"].numpy(), batch["double"].numpy())


def test_an_interrupted_map_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("diskbuffer.columns.map_steps._NOTED_EVERY", 0.0)
    monkeypatch.setattr("diskbuffer.columns.map_steps._SHARE", float("inf"))
    world = Experience(2, 20, (9,))
    seen: list[list[int]] = []

    def function(batch: Any) -> Any:
        if len(seen) == 5:
            raise KeyboardInterrupt
        seen.append(batch["steps"].tolist())
        return batch["reward"]

    with world.open(tmp_path / "store", segment_rows=16) as buffer:
        feed = Feeder(world, buffer)
        feed.add(90)
        steps = buffer.steps().tolist()
        with pytest.raises(KeyboardInterrupt):
            buffer.columns.map(function, 16, "copy", progress=False)
        feed.add(20)
    with world.open(tmp_path / "store") as buffer:
        seen.append([])
        assert buffer.columns.map(function, 16, "copy", resume=True, progress=False) == 180 - 5 * 16
        assert [step for some in seen for step in some] == steps
        seen.append([])
        assert buffer.columns.map(lambda b: b["reward"], 16, "copy", resume=True, progress=False) == 220  # none was interrupted
        (tmp_path / "store" / "copy" / "map.json").write_text('{"frozen": [[0]], "steps": 5, "at": 9}')
        assert buffer.columns.map(lambda b: b["reward"], 16, "copy", resume=True, progress=False) == 220


def test_a_map_whose_steps_were_cleared_begins_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("diskbuffer.columns.map_steps._NOTED_EVERY", 0.0)
    columns = {"obs": db.Column((), "float32"), "action": db.Column((), "int64")}
    steps: dict[str, Any] = {"obs": np.arange(41), "action": np.zeros(40, int), "reward": np.ones(40)}
    batches: list[int] = []

    def function(batch: Any) -> Any:
        batches.append(len(batch["steps"]))
        if len(batches) == 3:
            raise KeyboardInterrupt
        return batch["reward"]

    with db.ReplayBuffer(tmp_path / "store", columns=columns) as buffer:
        buffer.extend(**steps)
        with pytest.raises(KeyboardInterrupt):
            buffer.columns.map(function, 16, "copy", progress=False, prefetch=1, threads=1)
        assert (tmp_path / "store" / "copy" / "map.json").exists()
        buffer.clear()
        buffer.extend(**steps)
        assert buffer.columns.map(function, 16, "copy", resume=True, progress=False) == 40
        assert (buffer.at(buffer.steps())["copy"] == 1).all()


# Returns and advantages


@pytest.mark.some(2)
@pytest.mark.parametrize("values", [False, True])
@pytest.mark.parametrize("segment_rows", [8, 64, 1024])
def test_returns_are_those_of_a_plain_loop_and_of_some_steps_as_if_there_were_no_others(
    segment_rows: int, values: bool, tmp_path: Path
) -> None:
    world, rng = Experience(2, 40, (9,)), np.random.default_rng(segment_rows)
    with world.open(tmp_path / "store", 200, segment_rows=segment_rows) as buffer:
        feed = Feeder(world, buffer)
        feed.add(40)
        evicted = buffer.steps()[:3]
        feed.add(131)
        buffer.cut_off(1)
        steps = buffer.steps()
        for name in ("value", "next_value"):
            buffer.columns.write(name, steps, rng.normal(size=len(steps)).astype(np.float32))
        terms: dict[str, Any] = {} if values else {"values": None}
        parts = (steps[-50:], steps[60:90], rng.permutation(steps)[:70], steps[:1], steps[:0], np.r_[evicted, steps[5:20]])
        for some in (None, *parts):
            blank = np.full(len(steps), 7.0, np.float32)
            for name in ("return", "advantage"):
                buffer.columns.write(name, steps, blank)
            mine = steps if some is None else np.intersect1d(some, steps)
            assert buffer.columns.returns_and_advantages(0.9, 0.8, steps=some, **terms) == len(mine)
            found = buffer.at(steps)
            gained, returns = ends_by_hand(buffer, set(mine.tolist()), 0.9, 0.8, values)
            for name, expected in (("advantage", gained if values else {}), ("return", returns)):
                wanted = [expected.get(step, 7.0) for step in steps.tolist()]
                np.testing.assert_allclose(found[name].numpy(), wanted, rtol=1e-4, atol=1e-4)
        with pytest.raises(db.InputError, match="never added"):
            buffer.columns.returns_and_advantages(steps=[int(steps[-1]) + 1000], **terms)


def ends_by_hand(buffer: db.ReplayBuffer, some: set[int], gamma: float, lam: float, values: bool) -> tuple[Any, Any]:
    """Compute the advantages and returns of some steps alone, each by its own series."""
    gained, returns = {}, {}
    for step in some:
        episode = [step]
        while episode[-1] + buffer.n_envs in some and buffer.episodes.remaining([episode[-1]])[0] > 1:
            episode.append(episode[-1] + buffer.n_envs)
        batch = buffer.at(episode)
        reward = batch["reward"].numpy().astype(float)
        value, following = (batch[k].numpy().astype(float) if values else 0 * reward for k in ("value", "next_value"))
        after = np.where(batch["terminated"].numpy(), 0.0, following)
        factors = gamma ** np.arange(len(reward))
        errors = reward + gamma * after - value
        gained[step] = float((factors * lam ** np.arange(len(reward)) * errors).sum())
        plain = float((factors * reward).sum() + gamma ** len(reward) * after[-1])
        returns[step] = gained[step] + value[0] if values else plain
    return gained, returns


def test_a_map_over_some_steps_writes_these_alone(tmp_path: Path) -> None:
    world = Experience(2, 20, (9,))
    with world.open(tmp_path / "store", segment_rows=8) as buffer:
        Feeder(world, buffer).add(60)
        steps = buffer.steps()
        some, seen = np.random.default_rng(0).permutation(steps)[:50], list[int]()

        def triple(batch: Any) -> Any:
            seen.extend(batch["steps"].tolist())
            return batch["action"] * 3

        assert buffer.columns.map(triple, 16, "triple", steps=some, progress=False) == 50
        assert seen == some.tolist()
        batch = buffer.at(steps)
        np.testing.assert_array_equal(batch["triple"], np.where(np.isin(steps, some), batch["action"] * 3, 0))
        assert buffer.columns.map(triple, 16, "triple", steps=[], progress=False) == 0
        with pytest.raises(db.InputError, match="cannot be resumed"):
            buffer.columns.map(triple, 16, "triple", steps=some, resume=True)
        with pytest.raises(db.InputError, match="cannot be read"):
            buffer.columns.map(triple, 16, "triple", steps=[10**6], progress=False)


@pytest.mark.nightly
def test_threads_may_compute_returns_at_once_and_beside_an_agent(tmp_path: Path) -> None:
    """Each writes to a segment while it is there, and to files that the other does not replace."""
    columns = {"obs": db.Column((), "int64"), "action": db.Column((), "int64")}
    for n in range(20):
        with (
            db.ReplayBuffer(tmp_path / str(n), 1500, columns=columns, segment_rows=64) as buffer,
            ThreadPoolExecutor(3) as pool,
        ):
            buffer.extend(obs=np.arange(2001), action=np.arange(2000), reward=np.ones(2000))
            compute = [pool.submit(buffer.columns.returns_and_advantages, values=None, out=("return", "")) for _ in range(3)]
            for first in range(2000, 4000, 100):
                buffer.extend(obs=np.arange(first, first + 101), action=np.arange(first, first + 100), reward=np.zeros(100))
            for one in compute:
                one.result()
            steps = buffer.steps()
            assert (buffer.at(steps[-100:])["return"] < 1e-3).all()  # of those there were no rewards, nor are there to come
        assert db.check(tmp_path / str(n), progress=False).ok
        with db.ReplayBuffer(tmp_path / str(n)) as buffer:
            buffer.at(steps)


def test_bad_input_to_advantages_is_told(tmp_path: Path) -> None:
    world = Experience(1, 20, (9,))
    with world.open(tmp_path / "store") as buffer:
        Feeder(world, buffer).add(30)
        for options, message in (
            ({"gamma": 1.1}, "gamma"),
            ({"gae_lambda": -1}, "gae_lambda"),
            ({"values": "v"}, "column 'v'"),
            ({"values": "action", "next_values": "action"}, "column 'action'"),
            ({"values": "reward", "next_values": None}, "next_values"),
            ({"values": None, "next_values": None, "out": ("reward", "")}, "out must name"),
        ):
            with pytest.raises(db.InputError, match=message):
                buffer.columns.returns_and_advantages(**options)


# Episodes: returns and tags


def test_episodes_have_returns_and_tags_and_can_be_filtered(tmp_path: Path) -> None:
    world = Experience(2, 20, (9,))
    with world.open(tmp_path / "store", 150, segment_rows=16) as buffer:
        feed = Feeder(world, buffer)
        feed.add(131)
        episodes = buffer.episodes
        for n, total in enumerate(episodes.returns):
            stream, start, length, _, tag, _ = episodes[n]
            positions = start // 2 + np.arange(length)
            assert total == pytest.approx(world.rewards(stream, positions).sum())
            assert tag == ""
        over = episodes[episodes.ending != "running"]
        best = over[over.returns > np.median(over.returns)]
        assert 0 < len(best) < len(over)
        assert best.set_tag("best") == len(best)
        assert buffer.episodes.of(np.repeat(over.start[-1:], 3) + 2).set_tag("long ones") == 1
        assert buffer.episodes.tag_names == ("best", "long ones")
        now = buffer.episodes
        tagged = now[now.tag == "best"]
        assert set(tagged.start.tolist()) == set(best.start.tolist()) - {int(over.start[-1])}
        batch = buffer.sample(200, db.Uniform(episodes=tagged))
        assert (batch["tag"] == 1).all()
        for steps, message in (
            ([int(now.start[now.ending == "running"][0])], "not over"),
            ([10**9], "never added"),
            ([0.5], "integers"),
        ):
            with pytest.raises(db.InputError, match=message):
                buffer.episodes.of(steps).set_tag("x")
        for bad in ("", 3, "x" * 300):
            with pytest.raises(db.InputError, match="tag"):
                over.set_tag(bad)
        assert buffer.episodes.tag_names == ("best", "long ones")
        over[-1:].set_tag(None)
        assert "long ones" not in buffer.episodes.tag
        with pytest.raises(db.InputError, match="selected"):
            episodes[np.zeros(3, bool)]
        with pytest.raises(db.InputError, match="no episodes"):
            db.Uniform(episodes=episodes[episodes.length > 100])
        with pytest.raises(db.InputError, match=r"buffer\.episodes"):
            db.Slices(3, episodes=[1, 2])
        with db.ReplayBuffer(tmp_path / "store", mode="r") as reader:
            np.testing.assert_array_equal(reader.episodes.tag, buffer.episodes.tag)
            tagged[:1].set_tag("named since the reader looked")
            np.testing.assert_array_equal(reader.episodes.tag, buffer.episodes.tag)
            tagged[:1].set_tag("best")
            np.testing.assert_allclose(reader.episodes.returns, buffer.episodes.returns)
        feed.add(40)
        assert np.isnan(episodes.returns).any()
    with world.open(tmp_path / "store") as buffer:
        kept = buffer.episodes[:]
        assert set(kept.tag.tolist()) == {"", "best"}
        assert set(kept.start[kept.tag == "best"].tolist()) >= {int(s) for s in tagged.start if s in kept.start}


def test_half_precision_is_stored_and_written_back(tmp_path: Path) -> None:
    columns = {"obs": db.Column((40, 40), "float16"), "action": db.Column((3,), "float16"), "reward": db.Column((), "float16")}
    with db.ReplayBuffer(tmp_path / "store", columns=columns, frame_stack=2) as buffer:
        frame = np.zeros((40, 40), np.float16)
        for n in range(20):
            buffer.add(frame + n, np.full(3, n, np.float16), np.float16(1), frame + n + 1, False, n == 19)
        steps = buffer.steps()
        buffer.columns.write("value", steps, torch.arange(20, dtype=torch.float16))
        buffer.columns.write("next_value", steps, torch.zeros(20, dtype=torch.float16))
        batch = buffer.at(steps)
        assert (batch["value"] == torch.arange(20)).all()
        assert (batch["obs"][:, -1, 0, 0] == torch.arange(20)).all()
        buffer.columns.returns_and_advantages(1.0, values=None, next_values="next_value")
        assert buffer.at(steps)["return"].tolist() == list(range(20, 0, -1))


@pytest.mark.some(2)
@pytest.mark.parametrize(("shape", "dtype"), [((), "float32"), ((3,), "uint8"), ((40,), "float64"), ((8,), "bool")])
def test_the_checksum_of_a_few_values_is_that_of_the_whole_segment(
    tmp_path: Path, shape: tuple[int, ...], dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(0)
    columns = {"obs": db.Column(()), "action": db.Column((), "int64")}
    with db.ReplayBuffer(tmp_path / "store", columns=columns, segment_rows=65_536) as buffer:
        buffer.extend(obs=np.arange(100_001.0), action=np.zeros(100_000, int), reward=np.zeros(100_000))
        buffer.columns.write("more", buffer.steps(), rng.integers(0, 2, (100_000, *shape)).astype(dtype))
        store, whole, computed = buffer._store, Verification.checksum, list[str]()

        def noting(verification: Verification, path: str, mapped: Any) -> int:
            computed.append(path)
            return whole(verification, path, mapped)

        monkeypatch.setattr(Verification, "checksum", noting)
        for _ in range(30):
            steps = rng.integers(0, 100_000, rng.integers(1, 4))  # some of them twice
            steps = np.append(steps, steps[:1]) if rng.random() < 0.3 else steps
            buffer.columns.write("more", steps, rng.integers(0, 2, (len(steps), *shape)).astype(dtype))
            assert not computed
            for slot in (0, 1):
                assert store.table.checksum("more", slot) == whole(store.verification, "more", store.maps.get("more", slot))
    assert db.check(tmp_path / "store").ok
