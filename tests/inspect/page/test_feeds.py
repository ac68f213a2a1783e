"""What the page is told, against what the buffer itself says."""

from __future__ import annotations

import io
import itertools
import json
import operator
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from starlette.testclient import TestClient

import diskbuffer as db
from diskbuffer.commands.info import info
from diskbuffer.inspect.page import app
from diskbuffer.inspect.page.app import create_app, status
from diskbuffer.inspect.page.watched import Watched
from diskbuffer.plugin import human_size
from tests.inspect.stores import COLUMNS, EXTRA, add_episode, frames_of, make_store
from tests.support.specimens import KINDS, contents, make

LENGTHS = (30, 45, 20, 60, 33, 7)
OUTSIDE = (
    *(
        "/../../etc/passwd",
        "/static/../app.py",
        "/static/%2e%2e/app.py",
        "/static/..%2fapp.py",
        "/static/%2e%2e%2f%2e%2e%2fapp.py",
    ),
    *(
        "/static/..%5capp.py",
        "/static//etc/passwd",
        "/static/%2fetc%2fpasswd",
        "/static/uplot/../../app.py",
        "/static/....//app.py",
    ),
    *(
        "/static/%252e%252e/app.py",
        "/static/main.js%00.css",
        "/api/../app.py",
        "/zarr.json",
        "/store/zarr.json",
        "/static/",
        "/static/uplot",
    ),
    *("/api/__init__", "/api/_watched", "//etc/passwd", "/static/.%2e/guard.py", "/%2e%2e/%2e%2e/etc/passwd"),
)


def client_of(path: Path) -> TestClient:
    return TestClient(create_app(Watched(path)), base_url="http://127.0.0.1:8460")


def get(client: TestClient, what: str, status: int = 200, **parameters: Any) -> Any:
    answer = client.get(f"/api/{what}", params=parameters)
    assert answer.status_code == status, answer.text
    return json.loads(answer.text, parse_constant=lambda text: pytest.fail(f"{text} is no JSON"))


def pixels(answer: Any) -> Any:
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "image/png"
    return np.array(Image.open(io.BytesIO(answer.content)))


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_store(tmp_path_factory.mktemp("feeds") / "store", LENGTHS)


@pytest.fixture
def client(store: Path) -> Iterator[TestClient]:
    with client_of(store) as client:
        get(client, "state")
        yield client


def test_the_state(client: TestClient, store: Path) -> None:
    found = get(client, "state")
    assert (found["here"], found["steps"], found["added"], found["writer"]) == (True, sum(LENGTHS), sum(LENGTHS), None)
    assert (found["path"], found["name"]) == (str(store), "store")
    assert get(client, "state")["version"] == found["version"]


def test_the_overview_adds_up(client: TestClient, store: Path) -> None:
    found = get(client, "overview")
    summary = found["summary"]
    with db.ReplayBuffer(store, mode="r") as buffer:
        stats = buffer.stats()
    assert {name: summary[name] for name in ("steps", "episodes")} == {name: stats[name] for name in ("steps", "episodes")}
    assert summary["raw"] == human_size(stats["raw_bytes"])
    assert sum(column["disk_bytes"] for column in found["columns"]) == pytest.approx(stats["disk_bytes"], rel=0.05)
    assert {column["name"] for column in found["columns"]} >= {*buffer.columns}
    assert summary["recent_returns"] == pytest.approx(np.mean(range(len(LENGTHS))))
    assert dict(found["facts"])["writer"] == "none; closed"


def test_the_table_is_sorted_filtered_and_cut_as_python_would(client: TestClient, store: Path) -> None:
    with db.ReplayBuffer(store, mode="r") as buffer:
        episodes, returns = buffer.episodes[:], buffer.episodes.returns
    rows = [{"episode": e.id, "length": e.length, "ending": e.ending, "return": returns[n]} for n, e in enumerate(episodes)]
    some = [row for row in rows if row["length"] > 25 and row["ending"] == "terminated"]
    filters = (("", rows), ("length > 25 and ending == 'terminated'", some))
    for sort, descending, (where, matching) in itertools.product(("episode", "length", "return"), (False, True), filters):
        wanted = sorted(matching, key=operator.itemgetter(sort), reverse=descending)
        found = get(client, "episodes", where=where, sort=sort, descending=str(descending).lower(), limit=3)
        assert [{name: row[name] for name in rows[0]} for row in found["rows"]] == wanted[:3]
        assert (found["matching"], found["total"]) == (len(wanted), len(rows))
    last = get(client, "episodes", offset=10**6, limit=4, descending="false")
    assert (last["offset"], [row["episode"] for row in last["rows"]]) == (4, episodes.id[[4, 5]].tolist())


def test_the_time_line_and_a_stretch_of_it(client: TestClient) -> None:
    found = get(client, "timeline")
    assert found["length"] == list(LENGTHS)
    assert found["return"] == list(range(len(LENGTHS)))
    assert [found["ending"][n] for n in (0, 2)] == ["terminated", "truncated"]
    assert found["ended"] == sorted(found["ended"])
    some = get(client, "timeline", where=f"ended >= {found['ended'][1]} and ended <= {found['ended'][3]}")
    assert some["episode"] == found["episode"][1:4]
    assert get(client, "timeline", where="length < 25")["episode"] == [found["episode"][n] for n in (2, 5)]
    assert get(client, "timeline", where="return > 99")["matching"] == 0


def test_stumps_and_what_still_runs_tell_nothing_of_returns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = make_store(tmp_path / "store", (30, 45))  # with returns of 0 and 1
    for episode, length in ((90, 20), (99, 10)):  # the first of which is cut off, and the second runs
        with db.ReplayBuffer(path) as buffer:
            reward = np.full(length, episode)
            buffer.extend(
                obs=frames_of(episode, length),
                action=np.zeros(length),
                reward=reward,
                log_prob=np.zeros(length),
                new_episode=True,
            )
    with client_of(path) as client:
        get(client, "state")
        line, seen = get(client, "timeline"), get(client, "overview")
        assert get(client, "timeline", where="ending == 'cut off'")["means"]["return"] == [1800]
    assert line["ending"] == ["terminated", "terminated", "cut off"]
    assert (line["means"]["return"], line["matching"]) == ([0, 0.5, 0.5], 4)
    assert (seen["summary"]["recent_returns"], seen["summary"]["recent_episodes"]) == (0.5, 2)
    assert info(str(path)) == 0
    shown = capsys.readouterr().out
    assert "mean 0.5000, from 0 to 1; mean of the newest 100: 0.5000" in shown
    assert " to 1)" not in shown  # a second ratio, beside those of the columns


@pytest.mark.parametrize(
    ("feed", "parameters"),
    [
        ("episodes", {"where": "return >"}),
        ("timeline", {"where": "nothing == 3"}),
        ("timeline", {"where": "__import__('os').system('true')"}),
        ("episodes", {"sort": "nothing"}),
        ("episodes", {"offset": "x"}),
        ("episode", {"id": 99}),
        ("episode", {"id": -1}),
        ("episode", {"id": "x"}),
        ("episode", {"step": "1e3"}),
    ],
)
def test_what_makes_no_sense_is_told_in_words(client: TestClient, feed: str, parameters: dict[str, Any]) -> None:
    found = get(client, feed, 400, **parameters)
    assert len(found["message"]) > 10
    assert "Traceback" not in found["message"]


def test_an_episode_is_what_the_buffer_reads(client: TestClient, store: Path) -> None:
    with db.ReplayBuffer(store, mode="r") as buffer:
        for episode in buffer.episodes:
            batch = buffer.episode(episode)
            for asked in ({"id": episode.id}, {"step": episode.start}, {"step": episode.start + episode.length}):
                found = get(client, "episode", **asked)
                assert (found["episode"], found["start"], found["length"]) == (episode.id, episode.start, episode.length)
                assert (found["ending"], found["frame_stack"], found["pictures"]) == (episode.ending, 4, ["obs"])
                curves = {curve["name"]: curve for curve in found["curves"]}
                assert list(curves) == ["reward", "action", "log_prob"]
                for name, curve in curves.items():
                    assert curve["x"] == list(range(episode.length))
                    assert curve["series"][0] == pytest.approx(batch[name].numpy())
        newest = get(client, "episode")
        ids = buffer.episodes.id.tolist()
        assert newest["episode"] == ids[-1]
        for by, row in ((-1, -2), (-3, -4), (1, -1), (-99, 0)):
            assert get(client, "episode", id=newest["episode"], by=by)["episode"] == ids[row]


def test_frames_and_stacks_are_what_the_agent_sees(client: TestClient, store: Path) -> None:
    with db.ReplayBuffer(store, mode="r") as buffer:
        steps = buffer.steps()
        stacks = buffer.at(steps)["obs"].numpy()
    for n in [*range(8), *range(28, 36), len(steps) - 1]:
        step = int(steps[n])
        assert (pixels(client.get("/frame.png", params={"step": step})) == stacks[n, -1]).all()
        wide = pixels(client.get("/frame.png", params={"step": step, "stack": 1}))
        assert wide.shape == (36, 4 * 40 + 3 * 2)
        for k in range(4):
            assert (wide[:, 42 * k : 42 * k + 40] == stacks[n, k]).all()


@pytest.mark.parametrize("padding", ["first", "zeros"])
def test_stacks_that_begin_in_the_middle_of_an_episode(tmp_path: Path, padding: Any) -> None:
    rng = np.random.default_rng(0)
    with db.ReplayBuffer(tmp_path / "store", columns=COLUMNS, frame_stack=4, padding=padding) as buffer:
        for begin in (0, 3, 2, 1, 7):
            frames = rng.integers(0, 256, (20, 36, 40), np.uint8)
            rolling = np.stack([frames[max(0, n - 3) : n + 1] if n >= 3 else _filled(frames, n, padding) for n in range(20)])
            for n in range(begin, 19):
                buffer.add(rolling[n], 0, 0.0, rolling[n + 1], n == 18, False)
        steps = buffer.steps()
        stacks = buffer.at(steps)["obs"].numpy()
    with client_of(tmp_path / "store") as client:
        get(client, "state")
        for step, stack in zip(steps.tolist(), stacks, strict=True):
            wide = pixels(client.get("/frame.png", params={"step": step, "stack": 1}))
            for k in range(4):
                assert (wide[:, 42 * k : 42 * k + 40] == stack[k]).all(), (step, k)


def _filled(frames: Any, n: int, padding: str) -> Any:
    first = frames[:1] if padding == "first" else np.zeros_like(frames[:1])
    return np.concatenate([first.repeat(3 - n, axis=0), frames[: n + 1]])


def test_dict_observations_floats_and_many_environments(tmp_path: Path) -> None:
    columns = {
        "obs/left": db.Column((24, 30, 3), "uint8"),
        "obs/depth": db.Column((20, 20), "float32"),
        "obs/joints": db.Column((5,), "float32"),
        "action": db.Column((2,), "float32"),
    }
    rng = np.random.default_rng(0)
    with db.ReplayBuffer(tmp_path / "store", columns=columns, n_envs=3, autoreset="next_step") as buffer:
        for env in range(3):
            obs = {
                "left": rng.integers(0, 256, (12, 24, 30, 3), np.uint8),
                "depth": rng.random((12, 20, 20), np.float32) * 7,
                "joints": rng.normal(size=(12, 5)).astype(np.float32),
            }
            buffer.extend(obs=obs, action=rng.normal(size=(11, 2)), reward=np.ones(11), env=env)
            buffer.cut_off(env)
    with client_of(tmp_path / "store") as client:
        get(client, "state")
        found = get(client, "episode", id=2)
        assert (found["stream"], found["streams"], found["pictures"]) == (2, 3, ["obs/left", "obs/depth"])
        assert {curve["name"]: (len(curve["x"]), len(curve["series"])) for curve in found["curves"]} == {
            "reward": (11, 1),
            "action": (11, 2),
            "obs/joints": (12, 5),
        }
        step = found["start"] + 4 * 3
        assert (pixels(client.get("/frame.png", params={"step": step, "column": "obs/left"})) == obs["left"][4]).all()
        assert pixels(client.get("/frame.png", params={"step": step, "column": "obs/depth"})).shape == (20, 20)
        assert "stream" in get(client, "episodes")["columns"]
        for wrong in ("obs/joints", "action", "nothing", "../zarr.json", "obs/left/c.0"):
            assert client.get("/frame.png", params={"step": step, "column": wrong}).status_code == 400


def test_a_store_with_nothing_in_it(tmp_path: Path) -> None:
    db.ReplayBuffer(tmp_path / "store", columns=COLUMNS).close()
    with client_of(tmp_path / "store") as client:
        assert get(client, "state")["steps"] == 0
        summary = get(client, "overview")["summary"]
        assert (summary["episodes"], summary["recent_returns"]) == (0, None)
        assert get(client, "episodes")["rows"] == get(client, "timeline")["episode"] == []
        assert "no steps yet" in get(client, "episode", 410)["message"]
        assert get(client, "findings")["findings"]


@pytest.mark.some(3)
@pytest.mark.parametrize("kind", [*sorted(KINDS), "damaged"])
def test_stores_of_every_kind_damaged_and_killed_ones_too(kind: str, tmp_path: Path) -> None:
    damaged = kind == "damaged"
    make(tmp_path / "store", "pixels, closed" if damaged else kind, 0)
    if damaged:
        for file in (tmp_path / "store" / "action").glob("c.*"):
            file.write_bytes(b"")
    with client_of(tmp_path / "store") as client:
        assert get(client, "state")["here"]
        assert get(client, "overview")["summary"]["episodes"] == get(client, "timeline")["total"] > 0
        assert get(client, "episodes")["rows"]
        words = [curve["words"] for curve in get(client, "episode")["curves"]]
        assert any("action/c." in text for text in words) == damaged
        assert get(client, "findings")["findings"]


def test_nothing_is_written(tmp_path: Path) -> None:
    store = make_store(tmp_path / "store")
    before = contents(store)
    with client_of(store) as client:
        for feed in ("state", "overview", "timeline", "episodes", "episode", "findings", "state"):
            get(client, feed)
        assert client.get("/frame.png", params={"step": 3, "stack": 1}).status_code == 200
    assert contents(store) == before


@pytest.mark.some(1)
@pytest.mark.parametrize("path", OUTSIDE)
def test_no_other_file_is_served(client: TestClient, path: str) -> None:
    answer = client.get(path)
    assert answer.status_code == 404
    assert b"root:" not in answer.content
    assert b"import" not in answer.content


def test_nothing_is_fetched_from_elsewhere(client: TestClient) -> None:
    static = Path(app.__file__).parent / "static"
    for file in (file for file in static.rglob("*.*") if file.is_file()):
        answer = client.get("/" if file.name == "index.html" else f"/static/{file.relative_to(static).as_posix()}")
        assert (answer.status_code, answer.content) == (200, file.read_bytes())
        for elsewhere in ("https://", "http://", "//cdn", "@import", "eval("):
            allowed = {"/*! https://github.com/leeoniya/uPlot", 'xmlns="http://www.w3.org/2000/svg"'}
            lines = [line for line in answer.text.splitlines() if elsewhere in line and not any(one in line for one in allowed)]
            assert lines == [], file


def test_a_prefix_keeps_out_who_does_not_know_it(store: Path) -> None:
    with TestClient(create_app(Watched(store), "/k3x9"), base_url="http://127.0.0.1:8460") as client:
        for path in ("/", "/api/state", "/static/main.js", "/frame.png?step=0", "/k3x", "/k3x9x/"):
            answer = client.get(path)
            assert (answer.status_code, "printed" in answer.text) == (404, True)
        assert client.get("/k3x9/").status_code == client.get("/k3x9/api/state").status_code == 200


def test_what_was_evicted_is_said_to_be(tmp_path: Path) -> None:
    store = tmp_path / "store"
    with (
        db.ReplayBuffer(store, 300, columns=COLUMNS, extra=EXTRA, frame_stack=4, segment_rows=32) as buffer,
        client_of(store) as client,
    ):
        for episode in range(5):
            add_episode(buffer, episode, 40)
        first = get(client, "state")
        assert first["writer"]["pid"] is not None
        shown = get(client, "episode", id=41)
        for episode in range(5, 25):
            add_episode(buffer, episode, 40)
        found = client.get("/frame.png", params={"step": shown["start"] + 3, "of": first["token"]})
        assert found.status_code in (200, 410)  # of the last look, it may still be there
        _look_again(client, first["version"])
        assert client.get("/frame.png", params={"step": shown["start"] + 3, "of": first["token"]}).status_code == 410
        assert "evicted" in get(client, "episode", 410, step=shown["start"])["message"]
        assert get(client, "episode")["return"] == 24


def _look_again(client: TestClient, version: str) -> Any:
    until = time.monotonic() + 60
    while time.monotonic() < until:
        found = get(client, "state")
        if found["version"] != version:
            return found
        time.sleep(0.05)
    raise AssertionError("nothing has changed")


@pytest.mark.nightly
def test_a_store_that_goes_and_comes_back(tmp_path: Path) -> None:
    store = make_store(tmp_path / "store")
    with client_of(store) as client:
        first = get(client, "state")
        store.rename(tmp_path / "away")
        gone = _look_again(client, first["version"])
        assert (gone["here"], "goes on" in gone["message"]) == (False, True)
        for feed in ("overview", "timeline", "episodes", "episode", "findings"):
            assert "no store" in get(client, feed, 503)["message"]
        assert client.get("/frame.png", params={"step": 0}).status_code == 503
        (tmp_path / "away").rename(store)
        back = _look_again(client, gone["version"])
        assert (back["here"], back["steps"]) == (True, first["steps"])
        assert back["token"] != first["token"]
        store.rename(tmp_path / "old")
        make_store(store, (11, 12))  # another one
        other = _look_again(client, back["version"])
        while not other["here"]:
            other = _look_again(client, other["version"])
        assert (other["steps"], other["token"] != back["token"]) == (23, True)
        assert client.get("/frame.png", params={"step": 0, "of": back["token"]}).status_code == 503
        assert pixels(client.get("/frame.png", params={"step": 0, "of": other["token"]})).shape == (36, 40)


@pytest.mark.parametrize("name", ["zarr.json", "is_last/c.0"])
def test_a_store_that_is_damaged_and_repaired(name: str, tmp_path: Path) -> None:
    store = make_store(tmp_path / "store", segment_rows=32)
    with client_of(store) as client:
        first = get(client, "state")
        (store / name).unlink()
        damaged = _look_again(client, first["version"])
        assert (damaged["here"], f"Run: diskbuffer check {store}. This page goes on" in damaged["message"]) == (False, True)
        for feed in ("overview", "timeline", "episodes", "episode", "findings"):
            assert name in get(client, feed, 503)["message"]
        db.check(store, repair=True, progress=False)
        repaired = _look_again(client, damaged["version"])
        assert (repaired["here"], repaired["token"] != first["token"]) == (True, True)
        assert get(client, "episodes")["rows"]


def test_rewards_that_are_damaged_and_repaired(tmp_path: Path) -> None:
    store = make_store(tmp_path / "store", segment_rows=32)
    (store / "reward" / "c.0").unlink()
    with client_of(store) as client:
        first = get(client, "state")
        for feed in ("overview", "timeline", "episodes", "episode", "findings"):
            assert f"Run: diskbuffer check {store}" in get(client, feed, 500)["message"]
        db.check(store, repair=True, progress=False)
        assert _look_again(client, first["version"])["here"]
        assert get(client, "episodes")["matching"] == get(client, "overview")["summary"]["episodes"]


def test_the_status_of_each_kind_of_error() -> None:
    wrong = {"InputError", "SchemaError", "StackError", "LossError"}
    told = {"MissingPackageError": 501, "EvictedError": 410} | dict.fromkeys(wrong, 400)
    for name in db.errors.__all__:
        assert status(getattr(db.errors, name)("")) == told.get(name, 500), name


@pytest.mark.parametrize("episodes", [20_000, pytest.param(200_000, marks=pytest.mark.nightly)])
def test_the_mean_line_is_of_all_episodes_and_not_of_those_that_are_drawn(tmp_path: Path, episodes: int) -> None:
    columns = {"obs": db.Column((), "float32"), "action": db.Column((), "int8")}
    lengths = np.resize([1, 2, 3], episodes)
    ends = np.cumsum(lengths) - 1
    over, reward = np.zeros(ends[-1] + 1, np.bool_), np.zeros(ends[-1] + 1, np.float32)
    over[ends], reward[ends] = True, np.resize(np.arange(10), episodes)
    reward[ends[:1000:7]] = np.nan
    with db.ReplayBuffer(tmp_path / "store", columns=columns | {"reward": db.Column((), allow_nan=True)}) as buffer:
        obs = np.arange(len(over), dtype=np.float32)
        buffer.extend(obs=obs, next_obs=obs + 1, action=obs % 5, reward=reward, terminated=over)
    with client_of(tmp_path / "store") as client:
        get(client, "state")
        found = get(client, "timeline")
    assert (found["matching"], found["window"]) == (episodes, round(episodes / 30))
    assert len(found["episode"]) < 5000
    returns = reward[ends]
    places = np.searchsorted(np.append(0, ends[:-1] + 1) + np.arange(episodes), found["episode"])
    for name, values in (("return", returns), ("length", lengths.astype(np.float64))):
        for place, mean in list(zip(places.tolist(), found["means"][name], strict=True))[::97]:
            some = values[max(0, place + 1 - found["window"]) : place + 1]
            assert mean == (pytest.approx(np.nanmean(some), rel=1e-4) if np.isfinite(some).any() else None)
    assert found["means"]["return"][-1] == pytest.approx(4.5, abs=0.05)
    assert found["means"]["length"][-1] == pytest.approx(2, abs=0.05)
