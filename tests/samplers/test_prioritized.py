"""Priorities: the exact distribution, importance weights, what enters and leaves, and that they survive."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import zarr
from hypothesis import given
from hypothesis import strategies as st

import diskbuffer as db
from tests.amounts import examples
from tests.support.experience import Experience, Feeder

Array = np.ndarray[Any, Any]


def assert_proportional(drawn: Array, steps: Array, probabilities: Array) -> None:
    """Test by chi-square that steps were drawn as often as they should be."""
    assert np.isin(drawn, steps).all()
    counts = np.array([np.count_nonzero(drawn == step) for step in steps])
    expected = probabilities / probabilities.sum() * len(drawn)
    some = expected > 5
    statistic = float(((counts - expected)[some] ** 2 / expected[some]).sum())
    assert (
        abs(statistic - some.sum()) < 4 * np.sqrt(2 * some.sum()) + 4 or statistic < some.sum()
    )  # stratified draws are more even
    assert not counts[probabilities == 0].any()


def draw(buffer: db.ReplayBuffer, sampler: db.Sampler, n: int) -> Array:
    return np.concatenate([buffer.draw(500, sampler)["steps"] for _ in range(n // 500)])


def test_steps_are_drawn_in_proportion_before_and_after_eviction_and_reopening(tmp_path: Path) -> None:
    world, rng = Experience(2, 20, (9,)), np.random.default_rng(0)
    sampler = db.Prioritized(0.7, 0.5, 1, epsilon=1e-12)
    model: dict[int, float] = {}

    def check(buffer: db.ReplayBuffer, sampler: db.Prioritized, largest: float) -> None:
        steps = buffer.steps()
        for step in [step for step in model if step not in set(steps.tolist())]:
            del model[step]
        for step in steps.tolist():
            model.setdefault(step, largest)
        p = np.array([model[step] for step in steps.tolist()]) ** 0.7
        assert_proportional(draw(buffer, sampler, 10_000), steps, p)
        batch = buffer.sample(64, sampler)
        mine = np.array([model[step] for step in batch["steps"].tolist()]) ** 0.7
        np.testing.assert_allclose(batch["weights"].numpy(), (mine / p.min()) ** -0.5, rtol=1e-4)

    with world.open(tmp_path / "store", 150, segment_rows=8) as buffer:
        feed = Feeder(world, buffer)
        feed.add(60)
        largest = 1.0
        check(buffer, sampler, largest)
        for round_ in range(5):
            steps = rng.choice(buffer.steps(), 60)
            new = rng.random(60) * 3 * (round_ + 1)
            assert sampler.update(torch.from_numpy(steps), torch.from_numpy(new)) == 60
            model.update(zip(steps.tolist(), new.astype(np.float32).tolist(), strict=True))
            largest = max(largest, *new.tolist())
            feed.add(17)
            check(buffer, sampler, largest)
        state = json.loads(json.dumps(sampler.state_dict()))
    assert state["largest"] == pytest.approx(largest)
    with world.open(tmp_path / "store") as buffer:
        again = db.Prioritized(0.7, 0.5, 1, epsilon=1e-12)
        again.load_state_dict(state)
        check(buffer, again, largest)
        stored = buffer.at(buffer.steps(), columns=["priority"])["priority"].numpy()
        np.testing.assert_allclose(stored, [model[step] for step in buffer.steps().tolist()], rtol=1e-6)
        root: Any = zarr.open_group(buffer.path, mode="r")
        assert root["priority"].shape == root["reward"].shape


@examples(3, 100)
@given(data=st.data())
def test_what_can_be_drawn_is_what_is_there(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Random orders of adding, drawing and updating; for single steps and for sequences."""
    length = data.draw(st.sampled_from([None, 1, 5, 20]))
    period = data.draw(st.integers(1, 7)) if length else None
    world = Experience(2, 11, (9,))
    with world.open(tmp_path_factory.mktemp("prioritized") / "store", 90, segment_rows=8, frame_stack=2) as buffer:
        feed, sampler = Feeder(world, buffer), db.Prioritized(1.0, 1.0, 0, length=length, period=period)
        for _ in range(data.draw(st.integers(1, 8))):
            feed.add(data.draw(st.integers(1, 30)))
            starts = set(valid_starts(buffer, world, length or 1, period or 1))
            if not starts:
                with pytest.raises(db.errors.EmptyBufferError):
                    buffer.sample(8, sampler)
                continue
            drawn = set(buffer.draw(40 * len(starts), sampler)["steps"].tolist())
            assert drawn == starts, "with equal priorities, stratified draws reach all"
            some = np.array(sorted(starts))[:: data.draw(st.integers(1, 3))]
            assert sampler.update(some, np.full(len(some), 1.0)) == len(some)


def valid_starts(buffer: db.ReplayBuffer, world: Experience, length: int, period: int) -> list[int]:
    found = []
    episodes = buffer.episodes
    for n in range(len(episodes)):
        stream, start, steps, ending = episodes[n][:4]
        begin = start // world.n_envs
        first = int(world.starts(stream, np.array(begin)))
        for position in range(begin, begin + steps):
            last = position + length == begin + steps
            fits = position + length <= begin + steps
            if period > 1 and ending == "running":
                fits, last = position + length < begin + steps, False
            if fits and ((position - first) % period == 0 or last):
                found.append(position * world.n_envs + stream)
    return found


def test_sequences_are_those_of_slices_and_mix_their_steps_priorities(tmp_path: Path) -> None:
    world = Experience(1, 30, (9,))
    with world.open(tmp_path / "store", frame_stack=3) as buffer:
        Feeder(world, buffer).add(100)
        sampler = db.Prioritized(1.0, 1.0, 0, length=8, period=4, burn_in=2, eta=0.75, epsilon=1e-12)
        batch = buffer.sample(50, sampler)
        assert batch["obs"].shape == (50, 10, 3, 9)
        assert batch["mask"][:, 2:].all()
        steps = batch["steps"][:, 2].unique().numpy()
        errors = np.random.default_rng(0).random((len(steps), 8))
        sampler.update(steps, errors)
        mixed = 0.75 * errors.max(axis=1) + 0.25 * errors.mean(axis=1)
        np.testing.assert_allclose(buffer.at(steps, columns=["priority"])["priority"].numpy(), mixed, rtol=1e-6)
        p = np.ones(len(valid_starts(buffer, world, 8, 4)))
        starts = np.array(valid_starts(buffer, world, 8, 4))
        p[np.searchsorted(starts, steps)] = mixed
        assert_proportional(draw(buffer, sampler, 10_000), starts, p)
        assert sampler.update([int(starts[0]) + 1], [5.0]) == 0  # no start of a sequence


def test_updates_of_steps_that_were_evicted_are_left_out(tmp_path: Path) -> None:
    world, sampler = Experience(1, 20, (9,)), db.Prioritized(1.0, epsilon=1e-12)
    with world.open(tmp_path / "store", 60, segment_rows=8) as buffer:
        feed = Feeder(world, buffer)
        feed.add(60)
        old = buffer.sample(100, sampler)["steps"].unique()
        feed.add(30)
        there = np.intersect1d(old.numpy(), buffer.steps())
        assert 0 < len(there) < len(old)
        assert sampler.update(old, np.full(len(old), 7.0)) == len(there)
        priorities = buffer.at(buffer.steps(), columns=["priority"])["priority"].numpy()
        np.testing.assert_array_equal(priorities == 7, np.isin(buffer.steps(), there))
        feed.add(500)  # every slot is used anew
        assert sampler.update(old, np.full(len(old), 9.0)) == 0
        draw(buffer, sampler, 500)
        assert (
            buffer.at(buffer.steps(), columns=["priority"])["priority"] == 7
        ).all()  # the largest so far, which new ones enter with


def test_a_loader_draws_with_the_priorities_that_were_told_and_resuming_is_exact(tmp_path: Path) -> None:
    world = Experience(2, 20, (9,))

    def learn(buffer: db.ReplayBuffer, sampler: db.Prioritized, feed: Any, rounds: int) -> list[Any]:
        found, loop = [], iter(buffer.loader(16, sampler, prefetch=3, threads=2))
        for _ in range(rounds):
            batch = next(loop)
            found.append((batch["steps"].tolist(), batch["weights"].tolist(), batch["obs"].sum().item()))
            sampler.update(batch["steps"], (batch["steps"] % 13).float())
            feed.add(2)
        loop.close()  # type: ignore[attr-defined]
        return found

    def open_(name: str) -> db.ReplayBuffer:
        return world.open(tmp_path / name, 150, segment_rows=16)

    with open_("whole") as buffer:
        feed = Feeder(world, buffer)
        feed.add(60)
        expected = learn(buffer, db.Prioritized(seed=3), feed, 60)
    found: list[Any] = []
    state: Any = None
    for part, rounds in enumerate((5, 25, 30)):
        with open_("parts") as buffer:
            feed, sampler = Feeder(world, buffer), db.Prioritized(seed=99)
            if part:
                sampler.load_state_dict(json.loads(json.dumps(state)))
            else:
                feed.add(60)
                sampler = db.Prioritized(seed=3)
            found += learn(buffer, sampler, feed, rounds)
            state = sampler.state_dict()
    assert found == expected


def test_bad_input_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    world = Experience(1, 20, (9,))
    for name, value in (
        ("alpha", -0.1),
        ("beta", 1.5),
        ("beta", "x"),
        ("eta", 2),
        ("epsilon", -1),
        ("epsilon", 0),
        ("period", 3),
        ("burn_in", 2),
    ):
        with pytest.raises(db.InputError, match=name):
            db.Prioritized(**{name: value})  # type: ignore[arg-type]
    with pytest.raises(db.InputError, match="one of them"):
        db.Prioritized(n_step=3, length=4)
    sampler = db.Prioritized()
    with pytest.raises(db.InputError, match="drawn nothing"):
        sampler.update([1], [1.0])
    with world.open(tmp_path / "store") as buffer, world.open(tmp_path / "other") as other:
        with pytest.raises(db.errors.EmptyBufferError, match="no complete step"):
            buffer.sample(4, sampler)
        Feeder(world, buffer).add(30)
        Feeder(world, other).add(30)
        steps = buffer.sample(8, sampler)["steps"]
        before = buffer.at(buffer.steps(), columns=["priority"])["priority"].clone()
        for wrong in ([-1.0] * 8, [float("nan")] * 8, [float("inf")] * 8, [1.0] * 7, [[1.0]] * 8, 1.0):
            with pytest.raises(db.InputError, match="priorities must"):
                sampler.update(steps, wrong)
        assert (buffer.at(buffer.steps(), columns=["priority"])["priority"] == before).all()
        with pytest.raises(db.InputError, match="column= of another name"):
            buffer.sample(4, db.Prioritized())
        with pytest.raises(db.errors.SchemaError, match="belongs to a sampler"):
            buffer.columns.write("priority", steps, np.ones(8, np.float32))
        with pytest.raises(db.InputError, match="another buffer"):
            other.sample(4, sampler)
        with pytest.raises(db.InputError, match="beta"):
            sampler.load_state_dict({"seed": 1, "batches": 0, "ahead": []})
        with pytest.raises(db.errors.EmptyBufferError, match="25 steps"):
            buffer.sample(4, db.Prioritized(length=25, column="other"))
    with db.ReplayBuffer(tmp_path / "store", mode="r") as reader, pytest.raises(db.errors.ReadOnlyError):
        reader.sample(4, db.Prioritized())
    with pytest.raises(db.errors.ClosedError):
        sampler.update(steps, np.ones(8))


def test_a_disk_that_is_full_for_a_while_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world, sampler = Experience(2, 20, (9,)), db.Prioritized(1.0, epsilon=1e-12, seed=1)
    with world.open(tmp_path / "store", 150, segment_rows=8) as buffer:
        feed, files, failing = Feeder(world, buffer), buffer._store.files, 0
        create = files.create

        def full(name: str, size: int, *, reserve: bool) -> int:
            nonlocal failing
            failing += 1
            if name.startswith("priority/") and failing % 3:
                raise OSError(28, "No space left on device")
            return create(name, size, reserve=reserve)

        monkeypatch.setattr(files, "create", full)
        for _ in range(12):
            feed.add(25)
            for _ in range(40):
                try:
                    buffer.sample(8, sampler)
                    break
                except OSError as error:
                    assert error.errno == 28  # noqa: PT017
            else:
                pytest.fail("it never came along")
            steps = buffer.steps()
            assert set(draw(buffer, sampler, 8000).tolist()) == set(steps.tolist())
            assert sampler.update(steps, np.ones(len(steps))) == len(steps)
