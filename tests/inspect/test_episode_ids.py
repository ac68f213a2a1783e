"""An episode's id names the same episode for good, whatever comes and goes, and wherever it is shown."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from starlette.testclient import TestClient

import diskbuffer as db
from diskbuffer.commands.app import run
from diskbuffer.inspect.page.app import create_app
from diskbuffer.inspect.page.watched import Watched
from diskbuffer.plugin import Reader
from tests.support.experience import heads_of

COLUMNS = {"obs": db.Column((2,), "float32"), "action": db.Column((), "int64")}


class Recording:
    """Episodes of several environments; every step's action is the number of its episode, in the order in which they began."""

    def __init__(self, buffer: db.ReplayBuffer, streams: int) -> None:
        self.buffer, self.streams = buffer, streams
        self.rows = [0] * streams
        self.ids: dict[int, int] = {}  # the number of each episode, by its id

    def extend(self, env: int, length: int) -> None:
        number = len(self.ids)
        self.ids[self.rows[env] * self.streams + env] = number
        self.rows[env] += length + 1
        ends = np.arange(length) == length - 1
        obs = np.full((length + 1, 2), number, np.float32) + np.arange(length + 1)[:, None] / 1000
        action = np.full(length, number)
        self.buffer.extend(obs=obs, action=action, reward=np.ones(length), terminated=ends, truncated=ends & False, env=env)


def in_all_places(path: Path, capsys: pytest.CaptureFixture[str]) -> list[list[int]]:
    """Return the ids that a reader, a view, the page, and the command line list."""
    with db.ReplayBuffer(path, mode="r") as buffer:
        found = [buffer.episodes.id.tolist(), buffer.episodes.to_pandas(returns=False).index.tolist()]
        found.append(list(dict.fromkeys(buffer.episodes.to_pandas(steps=True, columns=["reward"])["episode"].tolist())))
    found.append(Reader(path).episodes().episode.tolist())
    with TestClient(create_app(Watched(path)), base_url="http://127.0.0.1:8460") as client:
        client.get("/api/state")
        found.append([row["episode"] for row in client.get("/api/episodes", params={"limit": 1000}).json()["rows"]])
        found.append(client.get("/api/timeline").json()["episode"])
    capsys.readouterr()
    assert run(["episodes", str(path), "--json"]) == 0
    found.append([row["episode"] for row in json.loads(capsys.readouterr().out)])
    return [sorted(ids) for ids in found]


@pytest.mark.nightly
def test_ids_name_the_same_episodes_while_several_environments_are_trained(
    tmp_path: Path, any_seed: int, capsys: pytest.CaptureFixture[str]
) -> None:
    rng, path = np.random.default_rng(any_seed), tmp_path / "store"
    with db.ReplayBuffer(path, 400, columns=COLUMNS, n_envs=3, autoreset="next_step", segment_rows=32) as buffer:
        made = Recording(buffer, 3)
        for turn in range(60):
            made.extend(int(rng.integers(3)), int(rng.integers(1, 60)))
            if turn % 20 == 19:
                actions = {id_: int(buffer.at([start])["action"][0]) for id_, start in zip(*ids_and_starts(buffer), strict=True)}
                assert actions.items() <= made.ids.items()
                assert all(ids == sorted(actions) for ids in in_all_places(path, capsys))
        gone = set(made.ids) - set(actions)
        cut = buffer.episodes[buffer.episodes.start != buffer.episodes.id]
        assert gone
        assert len(cut)
        for episode in (cut[0], buffer.episodes[-1]):
            assert buffer.episodes.find(episode.id) == episode
            assert (buffer.episode(episode.id)["action"] == made.ids[episode.id]).all()
            assert f"Episode {episode.id}" in episode._repr_html_()
            assert run(["show", str(path), str(episode.id), "--json"]) == 0
            assert set(json.loads(capsys.readouterr().out)["columns"]["action"]) == {made.ids[episode.id]}
        with pytest.raises(db.InputError, match=f"no episode {min(gone)}"):
            buffer.episode(min(gone))
    assert run(["copy", str(path), str(tmp_path / "one"), "--where", f"episode == {cut[0].id}", "--quiet"]) == 0
    with db.ReplayBuffer(tmp_path / "one", mode="r") as buffer:
        assert set(buffer.at(buffer.steps())["action"].tolist()) == {made.ids[cut[0].id]}


def ids_and_starts(buffer: db.ReplayBuffer) -> tuple[list[int], list[int]]:
    return buffer.episodes.id.tolist(), buffer.episodes.start.tolist()


def test_ids_of_several_writers_are_those_of_the_directory(tmp_path: Path) -> None:
    numbers: dict[int, int] = {}
    for turn in range(3):
        for name in ("a", "b"):
            with db.ReplayBuffer(tmp_path / "all", writer=name, columns=COLUMNS, n_envs=2, autoreset="next_step") as buffer:
                made = Recording(buffer, 2)
                made.rows = [int(row) + 1 for row in heads_of(buffer)]
                for env in (0, 1, 0):
                    made.extend(env, 5)
        with db.ReplayBuffer(tmp_path / "all", mode="r") as every:
            found = {episode.id: episode for episode in every.episodes}
            assert len(found) == 6 * (turn + 1)
            assert all(every.episodes.find(id_).start == id_ for id_ in found)
            assert numbers.items() <= {id_: episode.length for id_, episode in found.items()}.items()
            numbers = {id_: episode.length for id_, episode in found.items()}


def test_newer_and_older_go_by_time_and_not_by_environment(tmp_path: Path) -> None:
    """Two environments, one of which begins late and is ten times as fast."""
    path = tmp_path / "store"
    with db.ReplayBuffer(path, columns=COLUMNS, n_envs=2, autoreset="next_step", segment_rows=16) as buffer:
        made = Recording(buffer, 2)
        for _ in range(20):
            made.extend(0, 40)
        for _ in range(10):
            made.extend(0, 4)
            for _ in range(4):
                made.extend(1, 20)
    table = Reader(path).episodes()
    numbers = [made.ids[id_] for id_ in table.select(np.argsort(table.ended, kind="stable")).episode.tolist()]
    assert np.abs(np.argsort(numbers) - np.arange(len(numbers))).max() <= 4  # as exactly as a segment's few episodes are known
    assert numbers[:15] == list(range(15))  # the second environment had not begun
