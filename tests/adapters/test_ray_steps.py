"""Steps by name over Ray's shards, beside a model: reading and writing them, passes, and functions over all of them."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import diskbuffer as db

ray = pytest.importorskip("ray", reason="needs Ray: pip install 'diskbuffer[ray]'")

from diskbuffer.adapters.ray import RayReplayBuffer  # noqa: E402
from diskbuffer.adapters.ray.names import SHARDS  # noqa: E402

COLUMNS = {"obs": db.Column((32, 40), "uint8"), "action": db.Column((), "int64")}
STACK = 2
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.nightly]  # warnings of Ray's own


class Model:
    """What is in the buffer, as plain Python: of each step its number, and where its episode begins."""

    def __init__(self, buffer: RayReplayBuffer) -> None:
        self.buffer = buffer
        self.begins: dict[int, int] = {}
        self.written: dict[str, dict[int, float]] = {}
        self.names: dict[int, int] = {}

    @staticmethod
    def frame(number: int) -> np.ndarray[Any, Any]:
        return np.full((32, 40), number % 251, np.uint8)

    def add_episode(self, length: int, buffer: RayReplayBuffer) -> None:
        first = 1000 * len(self.begins_of_episodes())
        n = np.arange(first, first + length)
        frames = np.stack([self.frame(number) for number in range(first, first + length + 1)])
        buffer.extend(frames, n, n.astype(np.float64), terminated=n == n[-1], new_episode=True)
        self.begins |= dict.fromkeys(n.tolist(), first)

    def begins_of_episodes(self) -> set[int]:
        return set(self.begins.values())

    def learn_names(self) -> None:
        """See which name each step has, and that it has one."""
        names = self.buffer.steps()
        assert len(np.unique(names)) == len(names) == len(self.begins)
        numbers = self.buffer.at(names, columns=["action"])["action"].tolist()
        self.names = dict(zip(numbers, names.tolist(), strict=True))
        assert set(self.names) == set(self.begins)

    def check(self, batch: dict[str, Any], numbers: list[int]) -> None:
        """See that a batch is of these steps."""
        assert batch["action"].tolist() == batch["reward"].tolist() == numbers
        assert batch["steps"].tolist() == [self.names[n] for n in numbers]
        assert batch["terminated"].tolist() == [n + 1 not in self.begins for n in numbers]
        for at, key in ((0, "obs"), (1, "next_obs")):
            for row, n in zip(batch[key].numpy(), numbers, strict=True):
                stack = [self.frame(max(n + at - back, self.begins[n])) for back in range(STACK - 1, -1, -1)]
                assert (row == np.stack(stack)).all()
        for column, values in self.written.items():
            assert batch[column].tolist() == [values.get(n, 0.0) for n in numbers]


def test_steps_are_read_and_written_by_name_as_a_model_has_them(cluster: None, tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    how: dict[str, Any] = {"shards": 2, "columns": COLUMNS, "frame_stack": STACK, "block": 8, "seed": 0, "patience": 20.0}
    how["compress"] = True  # what shards send
    with RayReplayBuffer(tmp_path / "all", **how) as buffer:
        model = Model(buffer)
        home = RayReplayBuffer._attached(*buffer.__reduce__()[1])
        for number, one in enumerate((buffer, home)):  # each to a shard of its own
            one._adding.lane._nearest = partial(list, [one._shards.known[number]])
            for _ in range(6):
                model.add_episode(int(random.integers(1, 30)), one)
            one.flush(sync=False)
        model.learn_names()
        numbers = list(model.begins)
        assert {name % SHARDS for name in model.names.values()} == {0, 1}
        assert buffer.steps().tolist() == sorted(model.names.values(), key=lambda name: (name % SHARDS, name))

        for size in (0, 1, 7, 60):
            some = random.choice(numbers, size).tolist()
            model.check(buffer.at([model.names[n] for n in some]), some)
        long = [n for n in numbers if all(n + k in model.begins for k in range(3))]
        some = random.choice(long, 20).tolist()
        sequences = buffer.at([model.names[n] for n in some], 3)
        assert sequences["action"].tolist() == [[n, n + 1, n + 2] for n in some]

        # Written by one, seen by all, in every batch.
        for column in ("value", "advantage"):
            which = random.choice(numbers, 25, replace=False).tolist()
            values = random.random(25)
            assert buffer.write(column, [model.names[n] for n in which], values) == 25
            model.written[column] = dict(zip(which, values.tolist(), strict=True))
        two = np.array([[model.names[n], -1] for n in numbers[:4]])  # as sequences have them, padded
        assert home.write("value", two, torch.arange(8, dtype=torch.float64).reshape(4, 2)) == 4
        model.written["value"] |= {n: 2.0 * k for k, n in enumerate(numbers[:4])}
        model.check(home.at([model.names[n] for n in numbers]), numbers)
        home.refresh()
        for one in (buffer, home):
            batch = one.sample(32)
            model.check(batch, batch["action"].tolist())

        # Passes
        in_order = [int(n) for n in buffer.at(buffer.steps())["action"]]
        for size, merge_last in ((1, True), (16, True), (16, False), (10_000, True)):
            batches = buffer.batches(size, merge_last=merge_last)
            found = list(batches)
            assert len(found) == len(batches)
            for batch in found:
                model.check(batch, batch["action"].tolist())
            assert torch.cat([batch["action"] for batch in found]).tolist() == in_order
            assert all(len(batch["action"]) == size for batch in found[:-1])
        orders = [torch.cat([b["action"] for b in buffer.batches(16, shuffle=True, seed=seed)]).tolist() for seed in (1, 1, 2)]
        assert orders[0] == orders[1] != orders[2]
        assert sorted(orders[0]) == sorted(numbers)
        given = [model.names[n] for n in numbers[:5]]
        assert next(iter(buffer.batches(5, steps=given)))["steps"].tolist() == given

        # A function over all
        done = buffer.map(lambda batch: (batch["reward"] * 2, batch["value"] + 1), 16, ("twice", "more"), progress=False)
        assert done == len(numbers)
        model.written |= {"twice": {n: 2.0 * n for n in numbers}}
        model.written["more"] = {n: model.written["value"].get(n, 0.0) + 1 for n in numbers}
        model.check(buffer.at([model.names[n] for n in numbers]), numbers)

        # What cannot be
        with pytest.raises(db.InputError, match="is of no shard"):
            buffer.at([2 + SHARDS])
        with pytest.raises(db.InputError, match="cannot be read"):
            buffer.at([1_000_000 * SHARDS])
        with pytest.raises(db.InputError, match="no column"):
            buffer.at(given, columns=["nothing"])
        with pytest.raises(db.errors.SchemaError):
            buffer.write("reward", given, np.zeros(5))
        with pytest.raises(db.errors.SchemaError):
            buffer.write("value", given, np.zeros((5, 2)))
        with pytest.raises(db.InputError, match="one for each"):
            buffer.write("value", given, np.zeros(4))
        with pytest.raises(db.InputError, match="a value for each"):
            buffer.map(lambda batch: batch["reward"][:1], 16, "other", progress=False)
        home.close()
    with RayReplayBuffer(tmp_path / "all", **how) as buffer:  # opened again
        model.buffer = buffer
        model.check(buffer.at([model.names[n] for n in numbers]), numbers)
        batch = buffer.sample(32)
        model.check(batch, batch["action"].tolist())


def test_a_pass_leaves_out_what_was_evicted_and_at_refuses_it(cluster: None, tmp_path: Path) -> None:
    columns = {"obs": db.Column((), "int64"), "action": db.Column((), "int64")}
    with RayReplayBuffer(tmp_path / "all", 128, shards=1, columns=columns, streams=1, segment_rows=64) as buffer:

        def extend(count: int) -> None:
            buffer.extend(np.arange(count + 1), np.arange(count), np.zeros(count), new_episode=True)
            buffer.flush(sync=False)

        extend(120)
        old = buffer.steps()
        loop = iter(buffer.batches(10, prefetch=1))
        first = next(loop)
        extend(300)
        rest = torch.cat([first["steps"], *(batch["steps"] for batch in loop)])
        assert len(rest) < len(old)
        assert set(rest.tolist()) <= set(old.tolist())
        with pytest.raises(db.InputError, match="evicted"):
            buffer.at(old[:3])
        assert buffer.write("value", old[:3], np.ones(3)) == 0
