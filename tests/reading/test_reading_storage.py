"""Batches of a store of format 2, against those of a buffer with the same rows."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import diskbuffer as db
from diskbuffer.index.fields import FLOOR
from diskbuffer.nested import flatten
from diskbuffer.reading.batch_source import Sampling, Share
from diskbuffer.reading.reader import Reader, StorageReader
from diskbuffer.reading.recorded_column import RecordedColumn
from diskbuffer.schema import Column
from diskbuffer.storage import maps, opening
from diskbuffer.storage.format.layout import Layout
from diskbuffer.storage.store import Store
from tests.amounts import amount
from tests.reading.copied import Copied, rows_of

Array = npt.NDArray[Any]
Int64 = npt.NDArray[np.int64]
Make = Callable[..., Any]

GOALS = {"obs/achieved_goal": db.Column((2,), "float32"), "obs/desired_goal": db.Column((2,), "float32")}
PIXELS = {"obs/pixels": db.Column((70, 60), "uint8")}
OTHERS = {"action": db.Column((), "int64"), "contacts": db.Column((3,), "bool")}


def _reward(achieved: Any, desired: Any) -> Any:
    return -((achieved - desired) ** 2).sum(axis=-1)


def _rewards(batch: dict[str, Any]) -> Any:
    achieved, desired = batch["next_obs"]["achieved_goal"], batch["next_obs"]["desired_goal"]
    return _reward(*((part[:, -1] for part in (achieved, desired)) if achieved.ndim == 3 else (achieved, desired)))


SAMPLERS: dict[str, Make] = {
    "single": db.Uniform,
    "n-step": lambda seed: db.Uniform(seed, n_step=3),
    "recent": lambda seed: db.Uniform(seed, half_life=20),
    "epochs": lambda seed: db.Uniform(seed, replace=False),
    "sequences": lambda seed: db.Slices(4, seed=seed),
    "burnt in": lambda seed: db.Slices(5, burn_in=4, strict=False, seed=seed),
    "crossing": lambda seed: db.Slices(5, crossing=True, seed=seed),
    "hindsight": lambda seed: db.Hindsight(_rewards, "future", 0.8, seed=seed),
}


class Pair:
    """Two buffers with the same experience, one of which has evicted some, and the store of format 2 that it is copied to."""

    def __init__(
        self, path: Path, rng: np.random.Generator, environments: int, columns: dict[str, Column], **options: Any
    ) -> None:
        self.rng, self.n = rng, environments
        settings = {"columns": {**GOALS, **columns, **OTHERS}, "n_envs": environments, "segment_rows": 8, **options}
        episodes, longest = (40, 30) if environments < 10 else (3 * environments, 14)
        capacity = 25 * environments if rng.random() < 0.7 else None
        self.buffer = db.ReplayBuffer(path / "old", capacity, **settings)
        with db.ReplayBuffer(path / "all", None, **settings) as everything:
            for _ in range(episodes):
                self._extend([self.buffer, everything], int(rng.integers(1, longest)), columns)
            self.rows = rows_of(everything)
            old = everything._store.layout
        self.layout = Layout(
            old.schema,
            environments,
            int(rng.choice([8, 16])),
            {path: int(rng.choice([1, 4, 8])) for path in old.packed},
            16,
            frame_stack=old.frame_stack,
            padding=old.padding,
            salt=5,
        )

    def _extend(self, buffers: list[db.ReplayBuffer], n: int, columns: dict[str, Column]) -> None:
        rng = self.rng
        env = int(rng.integers(self.n) ** 2 // self.n)  # those with low numbers get more
        obs = {path[4:]: rng.integers(0, 9, (n + 1, *column.shape)) for path, column in GOALS.items()}
        for path, column in columns.items():
            obs[path[4:]] = rng.integers(0, 255 if rng.random() < 0.5 else 3, (n + 1, *column.shape))
        ends = np.arange(n) == n - 1
        how = rng.integers(4)
        values = {
            "obs": {
                name: value.astype(column.np_dtype)
                for (name, value), column in zip(obs.items(), [*GOALS.values(), *columns.values()], strict=True)
            },
            "action": rng.integers(0, 5, n),
            "contacts": rng.random((n, 3)) < 0.5,
            "reward": rng.random(n, np.float32),
            "terminated": ends & (how == 0),
            "truncated": ends & (how == 1),
            "new_episode": True,
        }
        for buffer in buffers:
            buffer.extend(**values, env=env)

    @property
    def floors(self) -> Int64:
        return self.buffer._reader.index.table[:, FLOOR].copy()

    @contextlib.contextmanager
    def copied(self, root: Path) -> Iterator[Copied]:
        """Write the rows, in any order, some files sealed, and some evicted."""
        made = Copied(root, self.layout, [dict(rows) for rows in self.rows])
        while (left := np.flatnonzero(made.left)).size:
            slow = self.rng.random() < 0.3  # the others wait for long
            made.add(int(left[0] if slow else self.rng.choice(left)), int(self.rng.integers(1, 20)))
            if self.rng.random() < 0.05:
                made.seal()
        yield made

    def readers(self, store: Store) -> tuple[Reader, Reader]:
        """Return the old reader, and one of the copy, of which the same can be sampled."""
        stack = self.layout.frame_stack
        new = StorageReader(store, stack, self.layout.padding == "zeros", threads=2)
        new.index.begin_at(np.arange(self.n), self.floors)
        return self.buffer._reader, new


def same(one: Any, other: Any) -> None:
    """Compare two batches, bit by bit."""
    one, other = flatten(one), flatten(other)
    assert list(one) == list(other)
    for path, expected in one.items():
        assert expected.dtype == other[path].dtype, path
        np.testing.assert_array_equal(np.asarray(expected), np.asarray(other[path]), path)


def sample(reader: Reader, sampler: Any, size: int, times: int) -> list[Any]:
    """Return batches of a reader; copies, as their memory may be used again."""
    sampling = Sampling([Share(reader, sampler, size)], reader.pool, lambda: None)
    return [{path: value.numpy().copy() for path, value in flatten(sampling.sample()).items()} for _ in range(times)]


def compare(old: Reader, new: Reader, rng: np.random.Generator) -> None:
    """Compare all that readers return."""
    names = old.every_name()
    np.testing.assert_array_equal(names, new.every_name())
    for one, other in zip(old.counts(), new.counts(), strict=True):
        np.testing.assert_array_equal(one, other)
    for name in SAMPLERS:
        both = [sample(reader, SAMPLERS[name](3), size, 4) for size in (1, 17, 64) for reader in (old, new)]
        for k in range(0, len(both), 2):
            for one, other in zip(both[k], both[k + 1], strict=True):
                same(one, other)
    asked = rng.choice(names, 20)
    same(old.at(asked, None), new.at(asked, None))
    same(old.at(asked, None, ("action", "reward")), new.at(asked, None, ("action", "reward")))
    some = asked[old.remaining(asked) >= 2]
    same(old.at(some, 2), new.at(some, 2))
    counts = old.counts()[0]
    streams = rng.choice(np.flatnonzero(counts), 20)
    ages = rng.integers(0, counts[streams])
    same(old.recent(ages, streams, db.Uniform().form), new.recent(ages, streams, db.Uniform().form))
    both_episodes = old.episodes(), new.episodes()
    for field in ("stream", "start", "length", "ending", "tag", "id"):
        np.testing.assert_array_equal(getattr(both_episodes[0], field), getattr(both_episodes[1], field), field)
    np.testing.assert_array_equal(old.sum_rewards(both_episodes[0]), new.sum_rewards(both_episodes[1]))
    ended, of = new.when_they_ended(both_episodes[1]), both_episodes[1].stream
    assert (np.diff(ended)[np.diff(of) == 0] >= 0).all()
    for path in ("obs/achieved_goal",):
        np.testing.assert_array_equal(old.newest(path), new.newest(path))
    columns = [RecordedColumn(reader._store, reader, "reward", lambda: None) for reader in (old, new)]
    rows = [reader.index.rows_of(asked % old.streams, asked // old.streams) for reader in (old, new)]
    read = [
        [float(column.values(int(row // reader.index.segment_rows))[row % reader.index.segment_rows]) for row in each]
        for reader, column, each in zip((old, new), columns, rows, strict=True)
    ]
    assert read[0] == read[1]


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("seed", range(amount(1, 100)))
@pytest.mark.parametrize("environments", [1, 3, 64])
@pytest.mark.parametrize("pixels", [False, True], ids=["flat", "pixels"])
def test_batches_are_those_of_the_same_rows_in_format_1(
    tmp_path: Path, environments: int, pixels: bool, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng([seed, environments, pixels])
    stack, padding = int(rng.choice([1, 3])), str(rng.choice(["first", "zeros"]))
    pair = Pair(tmp_path, rng, environments, PIXELS if pixels else {}, frame_stack=stack, padding=padding, chunk_rows=4)
    with pair.buffer, pair.copied(tmp_path / "new") as made:
        made.seal()
        removed = made.evict(pair.floors)
        compare(*pair.readers(made.store), rng)
        assert len(made.store.manifest.state.sealed) + len(removed) > 0
        made.close()
        closed = opening.open_to_read(tmp_path / "new")
        compare(*pair.readers(closed), rng)
        closed.close()
        monkeypatch.setattr(maps.BUDGET, "most_maps", 0)  # then all files are read
        unmapped = opening.open_to_read(tmp_path / "new")
        compare(*pair.readers(unmapped), rng)
        assert not unmapped.maps.sources.any()
        unmapped.close()


@pytest.mark.parametrize("format_", [1, 2])
@pytest.mark.parametrize("shape", [(3,), (40, 40)])
def test_a_reader_draws_others_where_what_it_knows_was_evicted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...], format_: int
) -> None:
    """Of what it has not mapped yet, no file is there any more."""
    monkeypatch.setattr("diskbuffer.open_store.FORMAT", format_)
    columns = {"obs": db.Column(shape, "uint8"), "action": db.Column((), "int64")}
    with db.ReplayBuffer(tmp_path / "store", 64, columns=columns, segment_rows=16) as writer:

        def extend(number: int) -> None:
            writer.extend(
                np.full((101, *shape), number, np.uint8), np.full(100, number), np.zeros(100), terminated=[0] * 99 + [1]
            )
            writer.flush()

        extend(1)
        with db.ReplayBuffer(tmp_path / "store", mode="r") as reader:
            first = reader.steps()[:1]
            for number in range(2, 5):
                extend(number)
            batch = reader.sample(32)
            assert (batch["action"] == 4).all()
            assert (batch["obs"] == 4).all()
            with pytest.raises(db.InputError, match="it was evicted"):
                reader.at(first)
