"""Samplers that leave out the episodes that have a tag."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import diskbuffer as db
from tests.chi_square import assert_uniform

COLUMNS = {"obs": db.Column((), "int64"), "action": db.Column((), "int64")}
EPISODES, LENGTH = 40, 7


def fill(path: Path, n_envs: int = 1) -> db.ReplayBuffer:
    """Return a buffer whose observations tell their episode, in hundreds."""
    buffer = db.ReplayBuffer(path, columns=COLUMNS, segment_rows=16, n_envs=n_envs, autoreset="next_step")
    for episode in range(EPISODES):
        obs, ends = np.arange(LENGTH + 1) + 100 * episode, np.arange(LENGTH) == LENGTH - 1
        env: dict[str, Any] = {"env": episode % n_envs} if n_envs > 1 else {}
        buffer.extend(obs=obs, action=np.zeros(LENGTH, int), reward=np.ones(LENGTH), terminated=ends, **env)
    return buffer


def episodes_of(batch: dict[str, Any]) -> set[int]:
    return set((batch["obs"].reshape(len(batch["obs"]), -1)[:, 0] // 100).tolist())  # behind a short one there are zeros


SAMPLERS: list[Any] = [
    lambda **how: db.Uniform(0, **how),
    lambda **how: db.Uniform(0, n_step=3, **how),
    lambda **how: db.Uniform(0, replace=False, **how),
    lambda **how: db.Slices(4, 0, **how),
    lambda **how: db.Slices(4, 0, over="episodes", **how),
    lambda **how: db.Slices(4, 0, strict=False, **how),
    lambda **how: db.Slices(4, 0, replace=False, **how),
]


@pytest.mark.some(3)
@pytest.mark.parametrize("make", SAMPLERS)
@pytest.mark.parametrize("n_envs", [1, 3])
def test_what_has_the_tag_is_never_drawn(make: Any, n_envs: int, tmp_path: Path) -> None:
    with fill(tmp_path / "store", n_envs) as buffer:
        sampler, every = make(without="dropped"), buffer.episodes
        number = {int(start): int(buffer.at([start])["obs"][0]) // 100 for start in every.start}
        assert episodes_of(buffer.sample(1000, sampler)) == set(range(EPISODES))  # there are no tags yet
        every[:3].set_tag("another")
        for dropped in (every.start[::2], every.start[:-1]):
            buffer.episodes.of(dropped).set_tag("dropped")
            left = set(range(EPISODES)) - {number[int(start)] for start in dropped}
            assert episodes_of(buffer.sample(1000, sampler)) == left
        assert episodes_of(next(iter(buffer.loader(8, make(without="dropped"))))) == left
        every[-1:].set_tag("dropped")
        with pytest.raises(db.errors.EmptyBufferError, match="without='dropped'"):
            buffer.sample(4, sampler)
        every[5:6].set_tag(None)
        assert episodes_of(buffer.sample(4, sampler)) == {number[int(every.start[5])]}


def test_the_others_are_as_likely_as_each_other(tmp_path: Path) -> None:
    with fill(tmp_path / "store") as buffer:
        buffer.episodes[::3].set_tag("dropped")
        left = np.concatenate([episode.start + np.arange(LENGTH) for n, episode in enumerate(buffer.episodes) if n % 3])
        sampler = db.Uniform(1, without="dropped")
        assert_uniform(np.concatenate([buffer.sample(1000, sampler)["steps"].numpy() for _ in range(20)]), left)


def test_an_epoch_has_each_of_the_others_once(tmp_path: Path) -> None:
    with fill(tmp_path / "store") as buffer:
        buffer.episodes[::4].set_tag("dropped")
        left = np.concatenate([episode.start + np.arange(LENGTH) for n, episode in enumerate(buffer.episodes) if n % 4])
        sampler = db.Uniform(1, replace=False, without="dropped")
        for _ in range(2):
            found = np.concatenate([buffer.sample(len(left) // 6, sampler)["steps"].numpy() for _ in range(6)])
            assert sorted(found.tolist()) == sorted(left.tolist())


def test_a_tag_that_no_episode_has_is_told(tmp_path: Path) -> None:
    with fill(tmp_path / "store") as buffer:
        buffer.sample(8, db.Uniform(1, without="dropped"))  # none is tagged yet
        buffer.episodes[::4].set_tag("dropped")
        with pytest.warns(UserWarning, match="no episode has the tag 'droped'; there are dropped"):
            buffer.sample(8, db.Uniform(1, without="droped"))


def test_what_cannot_be_combined_is_told(tmp_path: Path) -> None:
    wrong: list[dict[str, Any]] = [{"max_age": 3}, {"newest": 1}, {"without": ""}]
    for how in wrong:
        with pytest.raises(db.InputError, match="without"):
            db.Uniform(**{"without": "dropped", **how})
    with pytest.raises(db.InputError, match="without"):
        db.Slices(3, crossing=True, without="dropped")
    sampler = db.Uniform(without="dropped")
    with fill(tmp_path / "one") as one, fill(tmp_path / "other") as other:
        batches = iter(one.loader(4, sampler))
        other.sample(4, sampler)
        with pytest.raises(db.InputError, match="make one for each"):
            [next(batches) for _ in range(20)]
