"""A writer whose name has a "*" takes the first store that nobody writes to, as restarted actors and short tasks do."""

from __future__ import annotations

import pickle
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import diskbuffer as db

COLUMNS = {"obs": db.Column((), "int64"), "action": db.Column((), "int64")}


def opened(root: Path, **how: Any) -> db.ReplayBuffer:
    return db.ReplayBuffer(root, columns=COLUMNS, writer="actor-*", **how)


ACT = """
import os, signal, sys
import diskbuffer as db

root, who, steps, kill = sys.argv[1], *map(int, sys.argv[2:])
columns = {"obs": db.Column((), "int64"), "action": db.Column((), "int64")}
with db.ReplayBuffer(root, columns=columns, writer="actor-*") as buffer:
    for n in range(1_000 * who, 1_000 * who + steps):
        buffer.add(n, who, 1.0, n + 1, False, False)
    if kill:
        os.kill(os.getpid(), signal.SIGKILL)
"""


def test_names_that_nobody_has_are_taken_again_in_order(tmp_path: Path) -> None:
    root = tmp_path / "all"
    first, second = opened(root), opened(root)
    several = opened(root, n_envs=2, autoreset="next_step")
    assert [buffer.path.name for buffer in (first, second, several)] == ["actor-0", "actor-1", "actor-2"]
    for buffer in (first, second):
        buffer.add(0, 0, 1.0, 1, False, False)
    first.close()
    several.close()
    third = opened(root)
    assert (third.path.name, len(third)) == ("actor-0", 1)
    third.add(1, 0, 1.0, 2, False, False)  # where the other stopped, and yet an episode of its own
    assert third.episodes.length.tolist() == [1, 1]
    assert opened(root, n_envs=2, autoreset="next_step").path.name == "actor-2"
    assert opened(root).path.name == "actor-3"
    third.close()
    pickled = pickle.dumps(second)
    second.close()
    assert pickle.loads(pickled).path == second.path


@pytest.mark.nightly
def test_processes_that_start_together_and_are_killed_use_few_names_and_lose_nothing(tmp_path: Path) -> None:
    root, steps = tmp_path / "all", 20
    for wave in range(3):
        numbers = [(4 * wave + n, steps, int(n % 2 == 0)) for n in range(4)]
        actors = [subprocess.Popen([sys.executable, "-c", ACT, str(root), *map(str, each)]) for each in numbers]
        assert [actor.wait() for actor in actors] == [-signal.SIGKILL, 0] * 2
    with db.ReplayBuffer(root, mode="r") as buffer:
        batch = buffer.at(buffer.steps(), numpy=True)
        expected = [1_000 * who + n for who in range(12) for n in range(steps)]
        assert sorted(batch["obs"].tolist()) == expected
        assert (batch["next_obs"] == batch["obs"] + 1).all()
        assert len(buffer.episodes) == 12
        assert set(buffer.episodes.length.tolist()) == {steps}
    assert len([path for path in root.iterdir() if path.name.startswith("actor-")]) <= 4


@pytest.mark.parametrize("how", [{"mode": "r"}, {"mode": "r+"}, {"mark": "one"}])
def test_a_free_name_is_for_writing(tmp_path: Path, how: dict[str, Any]) -> None:
    with pytest.raises(db.InputError, match="leave out mode= and mark="):
        opened(tmp_path / "all", **how)
    with pytest.raises(db.InputError, match="a name of letters"):
        db.ReplayBuffer(tmp_path / "all", columns=COLUMNS, writer="*-*")
    assert not (tmp_path / "all").exists()


def test_a_store_whose_learner_reads_is_free(tmp_path: Path) -> None:
    root = tmp_path / "all"
    opened(root).close()
    with db.ReplayBuffer(root, mode="r") as learner, opened(root) as buffer:
        assert buffer.path.name == "actor-0"
        buffer.extend(obs=np.arange(11), action=np.zeros(10, np.int64), reward=np.ones(10))
        learner.refresh()
        assert len(learner) == 10
