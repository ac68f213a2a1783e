"""What is summed up over all episodes at once is what one episode after the other gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import diskbuffer as db
from diskbuffer.reading import episode_columns
from diskbuffer.reading.episode_columns import EpisodeColumns
from tests.amounts import amount

Array = npt.NDArray[Any]


def fill(buffer: db.ReplayBuffer, rng: np.random.Generator, environments: int, shape: tuple[int, ...]) -> None:
    """Add episodes of random lengths, of some environments more than of others."""
    pace = rng.integers(1, 40, environments)
    for n in range(12):
        for env in rng.permutation(environments).tolist():
            steps = int(rng.integers(1, pace[env] + 1))
            terminated, reward = rng.random(steps) < 0.2, rng.standard_normal((steps, *shape))
            obs = np.full(steps + 1, n * 1000 + env) + np.arange(steps + 1)
            zeros = np.zeros(steps)
            buffer.extend(obs[:-1], zeros, reward, obs[1:], terminated, env=env if environments > 1 else 0)
        if n == 5 and rng.random() < 0.5:
            buffer.clear()


def one_by_one(buffer: db.ReplayBuffer, episodes: EpisodeColumns) -> tuple[list[Any], list[int]]:
    """Return the sums of rewards, and when episodes ended, by their steps and by their streams' segments."""
    store, index, sums, ended = buffer._store, buffer._reader.index, [], []
    streams, envs = store.layout.streams, store.layout.environments
    for stream, start, length in zip(episodes.stream.tolist(), episodes.start.tolist(), episodes.length.tolist(), strict=True):
        names = start + np.arange(length) * streams
        sums.append(buffer.at(names, columns=["reward"])["reward"].numpy().astype(np.float64).sum(axis=0))
        end, (firsts, numbers) = start // streams + length, index.segments(stream).T
        noted = store.completed(numbers) * (envs if store.layout.capacity_each else 1)
        ends = np.minimum(firsts + index.segment_rows, np.append(firsts[1:], firsts[-1] + index.segment_rows))
        at, noted = ends[noted > 0] + index.context, noted[noted > 0]
        if not len(at):
            ended.append(end * envs)
            continue
        outside = min(end - at[0], 0) + max(end - at[-1], 0)
        ended.append(int(np.rint(np.interp(end, at, noted))) + int(outside) * envs)
    return sums, ended


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("seed", range(amount(3, 100)))
@pytest.mark.parametrize("environments", [1, 3, 40])
def test_sums_and_ends_are_those_of_each_episode_alone(
    tmp_path: Path, environments: int, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng([seed, environments])
    monkeypatch.setattr(episode_columns, "_AT_ONCE", int(rng.choice([1, 20, 1000])))
    shape, capacity = ((), (2,))[seed % 2], [None, 40 * environments, 8 * environments][int(rng.integers(3))]
    columns = {"obs": db.Column((), "int64"), "action": db.Column((), "int8"), "reward": db.Column(shape, "float32")}
    each = bool(rng.integers(2)) and capacity is not None
    path = tmp_path / "store"
    with db.ReplayBuffer(path, capacity, columns=columns, n_envs=environments, segment_rows=8, capacity_each=each) as buffer:
        fill(buffer, rng, environments, shape)
        with db.ReplayBuffer(path, mode="r") as reader:
            for one in (buffer, reader):
                episodes = one.episodes
                columns_of = EpisodeColumns(*(getattr(episodes, f) for f in ("stream", "start", "length", "ending", "tag", "id")))
                for some in (columns_of, columns_of.some(rng.permutation(len(columns_of))[:9]), columns_of.some(slice(0, 0))):
                    sums, ended = one_by_one(one, some)
                    found = one._reader.sum_rewards(some)
                    np.testing.assert_allclose(found, np.array(sums).reshape(len(some), *shape), atol=1e-9)
                    np.testing.assert_array_equal(one._reader.when_they_ended(some), np.array(ended, np.int64))
