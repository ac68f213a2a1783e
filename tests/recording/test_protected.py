"""Episodes that are never evicted."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

import diskbuffer as db
from tests.conftest import steps_of

if TYPE_CHECKING:
    from tests.conftest import Experience


def feed(buffer: db.ReplayBuffer, n: int, first: int) -> None:
    """Add `n` steps of two environments, in episodes of 10; frames tell the number of the step."""
    for k in range(first, first + n):
        frame = np.full((2, 40, 40), k % 200, np.uint8)
        buffer.add(frame, np.full(2, k), np.full(2, 1.0), frame + 1, np.zeros(2, bool), np.full(2, k % 10 == 9))


def demonstrate(buffer: db.ReplayBuffer, number: int, length: int) -> int:
    frames = np.full((length + 1, 40, 40), 201 + number, np.uint8)
    return buffer.extend(frames, np.full(length, -number), np.full(length, 5.0), protect=True)


@pytest.mark.parametrize("stack", [1, 3])
def test_protected_episodes_stay_and_the_capacity_is_for_the_others(stack: int, tmp_path: Path) -> None:
    columns = {"obs": db.Column((40, 40), "uint8"), "action": db.Column((), "int64")}
    options = {
        "columns": columns,
        "n_envs": 2,
        "frame_stack": stack,
        "autoreset": "disabled",
        "segment_rows": 16,
        "protected": True,
    }
    lengths = [7, 30, 3, 41]

    def check(buffer: db.ReplayBuffer, newest: int) -> None:
        episodes = buffer.episodes
        mine = episodes[episodes.stream == 2]
        assert mine.length.tolist() == lengths
        assert set(mine.ending[:-1]) == {"cut off"}
        for n, episode in enumerate(mine[k] for k in range(len(mine))):
            batch = buffer.at(episode.start + 3 * np.arange(episode.length))
            assert (batch["action"] == -n).all()
            assert (batch["obs"] == 201 + n).all()
            assert (batch["next_obs"] == 201 + n).all()
        for stream in (0, 1):
            steps = steps_of(buffer)
            actions = buffer.at(steps[steps % 3 == stream])["action"].numpy()
            np.testing.assert_array_equal(actions[-50:], np.arange(newest - 50, newest), "the newest 100 are always there")
            assert len(actions) <= 50 + 2 * 16 + stack

    with db.ReplayBuffer(tmp_path / "store", 100, **options) as buffer:  # type: ignore[arg-type]
        assert buffer.n_envs == 2
        assert demonstrate(buffer, 0, 7) == 7
        feed(buffer, 60, 0)
        demonstrate(buffer, 1, 30)
        feed(buffer, 100, 60)
        demonstrate(buffer, 2, 3)
        demonstrate(buffer, 3, 41)
        check(buffer, 160)
    with db.ReplayBuffer(tmp_path / "store", mode="r") as reader:
        check(reader, 160)
    with db.ReplayBuffer(tmp_path / "store", autoreset="disabled") as buffer:
        feed(buffer, 300, 160)
        buffer.seal()
        check(buffer, 460)
        episodes = buffer.episodes
        buffer.tag("demonstration", episodes.start[episodes.stream == 2])
        mine = buffer.episodes[buffer.episodes.tag == "demonstration"]
        assert mine.length.tolist() == lengths
        mixture = db.Mixture([(buffer, 0.5), (buffer, 0.5, db.Uniform(episodes=mine))])
        assert (mixture.sample(32)["reward"][16:] == 5).all()
        sampler = db.Prioritized(seed=1)
        for _ in range(5):
            batch = buffer.sample(64, sampler)
            sampler.update(batch["steps"], batch["reward"])
            feed(buffer, 20, 460)


def test_it_must_be_asked_for(tmp_path: Path, experience: type[Experience]) -> None:
    world = experience(1)
    with world.open(tmp_path / "store") as buffer, pytest.raises(db.InputError, match="protected=True"):
        buffer.extend(np.zeros((3, 34, 33), np.uint8), [0, 0], [0.0, 0.0], protect=True)
    with pytest.raises(db.errors.SchemaError, match="protected: stored False, asked for True"):
        world.open(tmp_path / "store", protected=True)
    with pytest.raises(db.InputError, match="protected must be"):
        world.open(tmp_path / "other", protected="yes")
    with world.open(tmp_path / "other", protected=True) as buffer, pytest.raises(db.InputError, match="env= or protect"):
        buffer.extend(np.zeros((3, 34, 33), np.uint8), [0, 0], [0.0, 0.0], protect=True, env=1)
