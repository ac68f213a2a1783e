"""Mixtures of buffers, and of parts of one."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import diskbuffer as db
from tests.chi_square import assert_uniform
from tests.support.experience import Experience, Feeder


@pytest.fixture
def pair(tmp_path: Path) -> Any:
    """Two buffers, of two environments and of one, with their worlds and feeders."""
    one, other = Experience(2, 20), Experience(1, 33)
    with one.open(tmp_path / "one", 150, segment_rows=8, frame_stack=2) as a, other.open(tmp_path / "other", frame_stack=2) as b:
        feeds = Feeder(one, a), Feeder(other, b)
        feeds[0].add(60)
        feeds[1].add(90)
        yield (one, other), (a, b), feeds


def check(batch: dict[str, Any], worlds: Any, sizes: tuple[int, int]) -> None:
    assert batch["part"].bincount().tolist() == list(sizes)
    for part, world in enumerate(worlds):
        which = batch["part"] == part
        world.check_batch({name: value[which] for name, value in batch.items()}, 2)


@pytest.mark.some(1)
@pytest.mark.parametrize("form", ["steps", "n-step", "slices"])
def test_every_batch_has_its_share_of_each(form: str, pair: Any) -> None:
    worlds, (a, b), feeds = pair

    def sampler(seed: int) -> db.Sampler:
        return {"steps": db.Uniform(seed), "n-step": db.Uniform(seed, n_step=3), "slices": db.Slices(4, seed)}[form]

    mixture = db.Mixture([(a, 1, sampler(1)), (b, 3, sampler(2))])
    for batch in (mixture.sample(40), *itertools.islice(mixture.loader(40, threads=2), 6)):
        if form == "steps":
            check(batch, worlds, (10, 30))
        parts = [a.sample(10, sampler(1)), b.sample(30, sampler(2))]
        assert batch["obs"].shape[1:] == parts[0]["obs"].shape[1:]
        feeds[0].add(20)
    again = db.Mixture([(a, 1, sampler(1)), (b, 3, sampler(2))]).sample(40)
    first = [buffer.sample(n, sampler(seed)) for buffer, n, seed in ((a, 10, 1), (b, 30, 2))]
    for name in first[0]:
        np.testing.assert_array_equal(again[name].numpy(), np.concatenate([part[name].numpy() for part in first]), err_msg=name)


def test_parts_of_one_buffer_are_selected_episodes(pair: Any) -> None:
    _, (a, _), feeds = pair
    episodes = a.episodes
    short, long = episodes[episodes.stream == 0], episodes[episodes.stream == 1]
    mixture = db.Mixture([(a, 0.5, db.Uniform(1, episodes=short)), (a, 0.25, db.Uniform(2, episodes=long)), (a, 0.25)])
    drawn = [mixture.sample(40) for _ in range(200)]
    steps = np.stack([batch["steps"].numpy() for batch in drawn])
    every = a.steps()
    assert_uniform(steps[:, :20].ravel(), every[every % 2 == 0])
    assert_uniform(steps[:, 20:30].ravel(), every[every % 2 == 1])
    feeds[0].add(20)  # evicts
    assert {int(s) for _ in range(50) for s in mixture.sample(40)["steps"][:30]} <= set(every.tolist()) & set(a.steps().tolist())
    feeds[0].add(300)
    with pytest.raises(db.errors.EmptyBufferError, match="evicted"):
        mixture.sample(40)
    with pytest.raises(db.errors.EmptyBufferError, match="evicted"):
        a.sample(4, db.Slices(3, episodes=short))


def test_slices_of_selected_episodes(pair: Any) -> None:
    _, (a, _), _ = pair
    episodes = a.episodes
    some = episodes[np.flatnonzero(episodes.length >= 12)[::2]]
    valid = np.concatenate([s + 2 * np.arange(n - 11) for s, n in zip(some.start, some.length, strict=True)])
    for options in ({}, {"replace": False}):
        sampler = db.Slices(12, 1, episodes=some, **options)  # type: ignore[arg-type]
        drawn = np.concatenate([a.sample(len(valid), sampler)["steps"][:, 0].numpy() for _ in range(60)])
        assert set(drawn.tolist()) <= set(valid.tolist())
        counts = np.unique(drawn, return_counts=True)[1]
        assert len(counts) == len(valid)
        if options:
            assert (counts == 60).all()
    over = np.concatenate(
        [a.sample(500, db.Slices(12, n, over="episodes", episodes=some))["steps"][:, 0].numpy() for n in range(6)]
    )
    which = np.searchsorted(np.sort(some.start), over, side="right")
    assert len(np.unique(which)) > 1


def test_resuming_is_exact_and_a_priority_weighs_only_its_part(pair: Any) -> None:
    worlds, (a, b), feeds = pair

    def mixture(column: str) -> db.Mixture:
        return db.Mixture([(a, 1, db.Prioritized(seed=1, column=column)), (b, 1, db.Uniform(2))])

    one, two = mixture("priority"), mixture("other")
    loop = iter(one.loader(16, prefetch=2))
    first = [next(loop)["steps"].tolist() for _ in range(3)]
    state = json.loads(json.dumps(one.state_dict()))
    expected = [next(loop)["steps"].tolist() for _ in range(4)]
    loop.close()  # type: ignore[attr-defined]
    two.load_state_dict(state)
    batches = list(itertools.islice(two.loader(16, prefetch=2), 4))
    assert [batch["steps"].tolist() for batch in batches] == expected
    assert first != expected[:3]
    assert (batches[0]["weights"][8:] == 1).all()
    sampler = one.samplers[0]
    assert isinstance(sampler, db.Prioritized)
    mine = batches[0]["steps"][batches[0]["part"] == 0]
    assert sampler.update(mine, np.ones(8)) == 8
    for batch in itertools.islice(one.loader(16), 20):  # evicted while they wait
        check({name: value for name, value in batch.items() if name not in ("priority", "other")}, worlds, (8, 8))
        feeds[0].add(15)
    with pytest.raises(db.InputError, match="state"):
        one.load_state_dict({"0": {}})


def test_weights_change_while_loops_run_and_are_resumed(pair: Any) -> None:
    _, (a, b), _ = pair

    def mixture(seed: int) -> db.Mixture:
        offsets = {"obs": (0, 1), "action": (-1, 0)}
        return db.Mixture([(buffer, 1, db.Windows(offsets, seed + n, padding="edge")) for n, buffer in enumerate((a, b))])

    def sizes(batch: Any) -> list[int]:
        return batch["part"].bincount(minlength=2).tolist()  # type: ignore[no-any-return]

    one, two = mixture(1), mixture(7)
    assert one.weights == [0.5, 0.5]
    loop = iter(one.loader(16, prefetch=2))
    assert sizes(next(loop)) == [8, 8]
    for weights, found in (([3, 1], [12, 4]), ([0, 1], [0, 16]), ([1, 0], [16, 0]), ([0.25, 0.75], [4, 12])):
        before = sizes(next(loop))
        one.weights = weights
        assert [sizes(next(loop)) for _ in range(4)][2:] == [found] * 2  # two were drawn ahead
        assert before != found
    one.weights = [1, 1]
    next(loop)
    state = json.loads(json.dumps(one.state_dict()))
    expected = [next(loop) for _ in range(5)]
    loop.close()  # type: ignore[attr-defined]
    assert [sizes(batch) for batch in expected] == [[4, 12]] + [[8, 8]] * 4
    two.load_state_dict(state)
    assert two.weights == [0.5, 0.5]
    for batch, other in zip(two.loader(16, prefetch=2), expected, strict=False):
        assert (batch["steps"] == other["steps"]).all()
        assert (batch["part"] == other["part"]).all()
    for wrong in ([1], [1, -1], [0, 0], ["1", 2], None, [1, float("inf")], {0: 1, 1: 1}, [True, True], [10**400, 1]):
        with pytest.raises(db.InputError, match="weights must be 2 numbers"):
            one.weights = wrong  # type: ignore[assignment]
    wide: Any
    for wide in (
        np.array([200, 200], np.uint8),
        np.array([6e4, 6e4], np.float16),
        [1e308, 1e308],
        torch.tensor([3, 3]),
        [np.int8(100)] * 2,
    ):
        one.weights = wide
        assert one.weights == [0.5, 0.5]
    loop, going = iter(two.loader(16, prefetch=2)), two.state_dict()
    next(loop)
    after, seeded = two.state_dict(), [sampler.seeded for sampler in two.samplers]
    for wrong_state in (going | {"weights": [1, 2, 3]}, going | {"1": {}}):
        with pytest.raises(db.InputError):
            two.load_state_dict(wrong_state)
    assert two.state_dict() == after  # nothing of it was taken
    assert [sampler.seeded for sampler in two.samplers] == seeded
    next(loop)
    assert [sampler.batches for sampler in two.samplers] == [2 + going["0"]["batches"]] * 2
    loop.close()  # type: ignore[attr-defined]


def test_bad_mixtures_are_refused(pair: Any, tmp_path: Path) -> None:
    _, (a, b), _ = pair
    same = db.Uniform(1)
    cases: list[tuple[Any, str]] = [
        ([], "list of"),
        ([a, b], "list of"),
        ([(a, 1, "x")], "list of"),
        ([(3, 1)], "list of"),
        ([(a, 0), (b, 0)], "weights must be"),
        ([(a, -1), (b, 1)], "weights must be"),
        ([(a, float("nan")), (b, 1)], "weights must be"),
        ([(a, "1"), (b, 1)], "weights must be"),
        ([(a, 1, same), (b, 1, same)], "of its own"),
        ([(a, 1, db.Slices(3)), (b, 1)], "agree"),
    ]
    for parts, message in cases:
        with pytest.raises(db.InputError, match=message):
            db.Mixture(parts)
    with pytest.raises(db.InputError, match="larger batch_size"):
        db.Mixture([(a, 1), (b, 1000)]).sample(10)
    columns = {"obs": db.Column((3,), "uint8"), "action": db.Column((), "int64")}
    with db.ReplayBuffer(tmp_path / "third", columns=columns, frame_stack=2) as third:
        third.extend(np.zeros((5, 3), np.uint8), np.zeros(4, int), np.zeros(4))
        with pytest.raises(db.InputError, match="same columns"):
            db.Mixture([(a, 1), (third, 1)]).sample(8)
    with pytest.raises(db.errors.ClosedError):
        db.Mixture([(a, 1), (third, 1)]).sample(8)
