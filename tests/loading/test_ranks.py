"""Ranks together get what one learner would get, of batches as large as all of theirs; also when they are stopped and resumed."""

from __future__ import annotations

import itertools
import json
import multiprocessing
import random
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

import diskbuffer as db
from tests.amounts import examples
from tests.support.experience import Experience, Feeder

Batch = dict[str, Any]
SAMPLERS: dict[str, Callable[[db.ReplayBuffer], db.Sampler]] = {
    "uniform": lambda _: db.Uniform(1),
    "n-step": lambda _: db.Uniform(2, n_step=3),
    "newest": lambda _: db.Uniform(2, newest=3),
    "young": lambda _: db.Uniform(3, max_age=30),
    "epochs": lambda _: db.Uniform(4, replace=False),
    "slices": lambda _: db.Slices(5, 4),
    "padded": lambda _: db.Slices(9, 5, strict=False, burn_in=3),
    "crossing": lambda _: db.Slices(9, 6, crossing=True),
}
PASSES: dict[str, Callable[[db.ReplayBuffer], db.Sampler | None]] = {
    "all": lambda _: None,
    "slices": lambda _: db.Slices(5),
    "padded": lambda _: db.Slices(9, strict=False, burn_in=2),
    "crossing": lambda _: db.Slices(6, crossing=True),
    "some": lambda buffer: db.Uniform(episodes=buffer.episodes[::2]),
    "young": lambda _: db.Uniform(max_age=7),
}


def together(parts: list[Batch]) -> Batch:
    """Put the ranks' shares of a batch together, as one learner would have it."""
    size, world = sum(len(part["steps"]) for part in parts), len(parts)
    found: Batch = {}
    for name, value in parts[0].items():
        found[name] = value.new_zeros(size, *value.shape[1:])
        for rank, part in enumerate(parts):
            found[name][rank::world] = part[name]
    return found


def assert_same(a: Batch, b: Batch) -> None:
    assert a.keys() == b.keys()
    assert [name for name in a if not torch.equal(a[name], b[name])] == []


def loops(
    buffer: db.ReplayBuffer, name: str, world: int, total: int, state: Any, prefetch: int
) -> tuple[list[Iterator[Batch]], list[db.Sampler]]:
    samplers = [SAMPLERS[name](buffer) for _ in range(world)]
    for sampler in samplers:
        if state is not None:
            sampler.load_state_dict(state)
    loaders = [
        buffer.loader(total // world, sampler, prefetch=prefetch, threads=1, rank=rank, world_size=world)
        for rank, sampler in enumerate(samplers)
    ]
    return [iter(loader) for loader in loaders], samplers


@examples(3, 50)
@given(
    name=st.sampled_from(list(SAMPLERS)),
    parts=st.lists(st.tuples(st.sampled_from([1, 2, 3, 4, 6]), st.integers(1, 9)), min_size=1, max_size=4),
    prefetch=st.integers(1, 4),
)
def test_ranks_together_get_the_batches_of_one_also_resumed_with_another_number_of_them(
    name: str, parts: list[tuple[int, int]], prefetch: int
) -> None:
    """While an agent adds, between batches: steps are evicted, also some that were drawn ahead."""

    def run(path: Path, parts: list[tuple[int, int]]) -> tuple[list[Batch], Any]:
        world, state = Experience(2, 20, (9,)), None
        found = list[Batch]()
        with world.open(path, 150, frame_stack=2, segment_rows=16) as buffer:
            feed = Feeder(world, buffer)
            feed.add(60)
            for ranks, rounds in parts:
                iterators, samplers = loops(buffer, name, ranks, 24, state, prefetch)
                for _ in range(rounds):
                    each = [next(iterator) for iterator in iterators]
                    assert {len(batch["steps"]) for batch in each} == {24 // ranks}
                    found.append(together(each))
                    feed.add(5)
                states = [json.dumps(sampler.state_dict()) for sampler in samplers]
                for iterator in iterators:
                    iterator.close()  # type: ignore[attr-defined]
                assert len(set(states)) == 1
                state = json.loads(states[0])
        return found, state

    with tempfile.TemporaryDirectory() as directory:
        expected, end = run(Path(directory) / "one", [(1, sum(rounds for _, rounds in parts))])
        found, state = run(Path(directory) / "ranks", parts)
    for a, b in zip(expected, found, strict=True):
        assert_same(a, b)
    assert state == end


@examples(8, 300)
@given(
    kind=st.sampled_from([*PASSES, "steps"]),
    n=st.integers(0, 70),
    world=st.integers(1, 5),
    size=st.integers(1, 9),
    shuffle=st.booleans(),
    merge_last=st.booleans(),
    stop=st.integers(0, 6),
)
def test_a_pass_is_split_without_overlap_or_loss_and_can_be_resumed(
    kind: str, n: int, world: int, size: int, shuffle: bool, merge_last: bool, stop: int
) -> None:
    experience = Experience(2, 11, (9,))
    with tempfile.TemporaryDirectory() as directory, experience.open(Path(directory) / "store", segment_rows=16) as buffer:
        feed = Feeder(experience, buffer)
        feed.add(n // 3)
        if n % 3:
            feed.extend(1, n % 3)
        if kind == "some" and not len(buffer):
            return
        given: dict[str, Any] = {"merge_last": merge_last, "prefetch": 2, "threads": 1}
        if kind == "steps":
            given["steps"] = buffer.steps()[::-1][: n // 2]
        else:
            given |= {"sampler": PASSES[kind](buffer), "shuffle": shuffle, "seed": 7}
        whole = list(buffer.batches(1000, **given))
        passes = [buffer.batches(size, rank=rank, world_size=world, **given) for rank in range(world)]
        assert passes[0].state_dict() == {}
        lengths = [len(batches) for batches in passes]
        found = list[list[Batch]]()
        for rank, batches in enumerate(passes):
            mine = [batch for _, batch in zip(range(stop), batches, strict=False)]
            state = json.loads(json.dumps(batches.state_dict()))
            resumed = buffer.batches(size, rank=rank, world_size=world, **given)
            resumed.load_state_dict(state)
            assert resumed.state_dict() == state
            if mine and len(mine) == stop:  # it was left, and had not come to its end
                assert len(resumed) == lengths[rank] - stop
            elif mine:
                assert state == {}
                resumed = None  # type: ignore[assignment]
            mine += [] if resumed is None else list(resumed)
            found.append(mine)
            assert len(mine) == lengths[rank]
            assert all(len(batch["steps"]) >= size for batch in mine[:-1])
        total = sum(len(batch["steps"]) for batch in whole)
        if total >= world or not total:
            assert len(set(lengths)) == 1
        rounds = [together(list(each)) for each in itertools.zip_longest(*found) if None not in each]
        if total >= world:
            for name in whole[0]:
                assert torch.equal(torch.cat([batch[name] for batch in rounds]), torch.cat([batch[name] for batch in whole]))
            for k in range(lengths[0]):
                sizes = [len(mine[k]["steps"]) for mine in found]
                assert max(sizes) - min(sizes) <= 1
        else:
            steps = [step for mine in found for batch in mine for step in batch["steps"].reshape(len(batch["steps"]), -1)[:, -1]]
            assert len(steps) == total


def test_each_rank_has_the_goals_of_its_own_steps(tmp_path: Path) -> None:
    columns = {"action": db.Column((), "int64"), "obs/observation": db.Column((), "int64")}
    columns |= {f"obs/{name}_goal": db.Column((), "int64") for name in ("achieved", "desired")}
    with db.ReplayBuffer(tmp_path / "store", columns=columns) as buffer:
        rows = np.arange(101)
        obs = {"observation": rows, "achieved_goal": rows, "desired_goal": np.full(101, -1)}
        buffer.extend(obs, rows[:-1], np.zeros(100))

        def batches(rank: int, world: int) -> Iterator[Batch]:
            sampler = db.Hindsight(lambda batch: batch["obs"]["desired_goal"], seed=1)
            return iter(buffer.loader(24 // world, sampler, rank=rank, world_size=world))

        whole, parts = batches(0, 1), [batches(rank, 3) for rank in range(3)]
        for _ in range(5):
            expected, found = next(whole), [next(part) for part in parts]
            for name in ("steps", "reward", "relabelled"):
                assert torch.equal(together([{name: part[name], "steps": part["steps"]} for part in found])[name], expected[name])
            assert expected["relabelled"].any()


def test_a_mixture_gives_every_rank_its_parts(tmp_path: Path) -> None:
    world = Experience(1, 20, (9,))
    with world.open(tmp_path / "a") as a, world.open(tmp_path / "b") as b:
        Feeder(world, a).add(50)
        Feeder(world, b).add(30)

        def mixture() -> db.Mixture:
            return db.Mixture([(a, 0.75, db.Uniform(1)), (b, 0.25, db.Uniform(2))])

        mixtures = [mixture() for _ in range(3)]
        iterators = [iter(one.loader(8, rank=rank, world_size=3)) for rank, one in enumerate(mixtures)]
        expected = iter(mixture().loader(24))
        for _ in range(5):
            each = [next(iterator) for iterator in iterators]
            assert all(batch["part"].tolist() == [0] * 6 + [1] * 2 for batch in each)
            whole = next(expected)
            for part in (0, 1):
                of_part = [{name: value[batch["part"] == part] for name, value in batch.items()} for batch in each]
                assert_same(together(of_part), {name: value[whole["part"] == part] for name, value in whole.items()})
        assert mixtures[0].state_dict() == mixtures[2].state_dict()
        with pytest.raises(db.InputError, match="same seed, and Uniform has none"):
            db.Mixture([(a, 1)]).loader(8, rank=0, world_size=2)


def test_what_ranks_cannot_share_is_told(tmp_path: Path) -> None:
    world = Experience(1, 20, (9,))
    with world.open(tmp_path / "store") as buffer:
        Feeder(world, buffer).add(50)
        for wrong in ((None, 2), (0, None), (2, 2), (-1, 2), (0, 0), ("a", 2), (0.5, 2)):
            with pytest.raises(db.InputError, match=r"rank|world_size"):
                buffer.loader(8, rank=wrong[0], world_size=wrong[1])  # type: ignore[arg-type]
        for sampler in (None, db.Slices(3)):
            with pytest.raises(db.InputError, match=r"same seed, and .* has none"):
                buffer.loader(8, sampler, rank=0, world_size=2)
        with pytest.raises(db.InputError, match="give seed="):
            buffer.batches(8, True, rank=0, world_size=2)
        with pytest.raises(db.InputError, match="Uniform, Slices or Windows"):
            buffer.batches(8, sampler=db.Prioritized(1), rank=0, world_size=2)
        with (
            db.ReplayBuffer(tmp_path / "store", mode="r") as reader,
            pytest.raises(db.InputError, match="Prioritized cannot draw"),
        ):
            reader.loader(8, db.Prioritized(seed=1), rank=0, world_size=2)
        resumed = db.Uniform()
        resumed.load_state_dict(db.Uniform(7).state_dict())
        assert len(next(iter(buffer.loader(8, resumed, rank=0, world_size=2)))["steps"]) == 8
        batches = buffer.batches(8, True, seed=1)
        next(iter(batches))
        state = batches.state_dict()
        other = buffer.batches(8, True, seed=2)
        for bad in (
            3,
            {"at": 3},
            state | {"steps": 7},
            state | {"frozen": [[9, 50]]},
            state | {"seed": -1},
            state | {"left": "x"},
        ):
            with pytest.raises(db.InputError, match="state"):
                other.load_state_dict(bad)  # type: ignore[arg-type]
        with pytest.raises(db.InputError, match="shuffle"):
            buffer.batches(8).load_state_dict(state)
        with pytest.raises(db.InputError, match="other steps"):
            buffer.batches(8, steps=buffer.steps()[:9]).load_state_dict(state)
        assert other.state_dict() == {}
    with db.ReplayBuffer(tmp_path / "store", seed=3) as buffer:
        assert len(next(iter(buffer.loader(8, rank=1, world_size=2)))["steps"]) == 8


# In a process group


def learn(path: Path, group: Path, rank: int, world: int, total: int, rounds: int, state: Any) -> None:
    """Be a rank of a group: save what it got, after the others told that their states are the same."""
    dist.init_process_group("gloo", init_method=f"file://{group}", rank=rank, world_size=world)
    with db.ReplayBuffer(path, mode="r") as buffer:
        sampler = db.Uniform(5, n_step=2)
        batches = buffer.batches(total // world, shuffle=True, seed=3)
        if state is not None:
            sampler.load_state_dict(state["sampler"])
            batches.load_state_dict(state["pass"])
        loader = buffer.loader(total // world, sampler)
        found = [batch["steps"].numpy() for batch in itertools.islice(loader, rounds)]
        passed = [batch["steps"].numpy() for _, batch in zip(range(rounds), batches, strict=False)]
        states: list[Any] = [None] * world
        dist.all_gather_object(states, {"sampler": sampler.state_dict(), "pass": batches.state_dict()})
        assert all(state == states[0] for state in states)
        np.savez(f"{group}.{rank}.npz", state=json.dumps(states[0]), loaded=np.array(found), passed=np.array(passed))
    dist.destroy_process_group()


def run_group(path: Path, group: Path, world: int, total: int, rounds: int, state: Any) -> list[Any]:
    context = multiprocessing.get_context("fork")
    ranks = [context.Process(target=learn, args=(path, group, rank, world, total, rounds, state)) for rank in range(world)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(120)
    assert [process.exitcode for process in ranks] == [0] * world
    return [np.load(f"{group}.{rank}.npz") for rank in range(world)]


def test_a_process_group_shares_out_what_one_learner_would_get(
    tmp_path: Path, any_seed: int, amount: Callable[[int, int], int]
) -> None:
    rng, world = random.Random(any_seed), Experience(2, 20, (9,))
    with world.open(tmp_path / "store") as buffer:
        Feeder(world, buffer).add(300)
    with db.ReplayBuffer(tmp_path / "store", mode="r") as buffer:
        loader = buffer.loader(24, db.Uniform(5, n_step=2))
        expected = [batch["steps"].numpy() for batch in itertools.islice(loader, 25)]
        in_pass = [batch["steps"].numpy() for batch in buffer.batches(24, shuffle=True, seed=3)]
    for trial in range(amount(1, 4)):
        state, loaded, passed = None, list[Any](), list[Any]()
        for part in range(amount(2, 4)):
            ranks, rounds = 2 if not trial else rng.choice([2, 3, 4]), rng.randint(1, 5)
            found = run_group(tmp_path / "store", tmp_path / f"group {trial} {part}", ranks, 24, rounds, state)
            state = json.loads(str(found[0]["state"]))
            for name, results in (("loaded", loaded), ("passed", passed)):
                for k in range(rounds):
                    results.append(np.stack([rank[name][k] for rank in found], axis=1).ravel())
        for a, b in ((expected, loaded), (in_pass, passed)):
            np.testing.assert_array_equal(np.stack(b), np.stack(a[: len(b)]))
