"""The page answers whatever is asked of whatever store: in words where it makes no sense, and never with 500."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

import diskbuffer as db
from diskbuffer.inspect.page.app import create_app
from diskbuffer.inspect.page.watched import Watched
from tests.inspect.stores import COLUMNS

VECTORS = {"obs": db.Column((3,), "float32"), "action": db.Column((2,), "float32")}
Fill = Callable[[db.ReplayBuffer], object]


def running(buffer: db.ReplayBuffer) -> None:
    frame = np.zeros((36, 40), np.uint8)
    for n in range(3):
        buffer.add(frame + n, 0, 1.0, frame + n + 1, False, False)


def many(buffer: db.ReplayBuffer) -> None:
    for n in range(12):
        add_plain(buffer, n, 40, n % buffer.n_envs)


def add_plain(buffer: db.ReplayBuffer, number: int, length: int, env: int) -> None:
    frames = np.random.default_rng(number).integers(0, 256, (length + 1, *buffer.columns["obs"].shape)).astype(np.uint8)
    ends = np.arange(length) == length - 1
    buffer.extend(
        obs=frames, action=np.arange(length) % 4, reward=np.ones(length), terminated=ends, truncated=~ends & ends, env=env
    )


def vectors(buffer: db.ReplayBuffer) -> None:
    rng = np.random.default_rng(0)
    for length in (1, 30):
        reward = rng.choice([1.0, -np.inf, np.nan, 3e38], length)
        buffer.extend(obs=rng.normal(size=(length + 1, 3)), action=rng.normal(size=(length, 2)), reward=reward)
        buffer.cut_off()


STORES: dict[str, tuple[dict[str, Any], Fill]] = {
    "empty": ({"columns": COLUMNS, "frame_stack": 4}, lambda buffer: None),
    "an environment without steps": (
        {"columns": COLUMNS, "frame_stack": 4, "n_envs": 2, "autoreset": "next_step"},
        lambda b: add_plain(b, 0, 9, 1),
    ),
    "one observation": ({"columns": COLUMNS, "frame_stack": 3, "padding": "zeros"}, lambda b: add_plain(b, 0, 1, 0)),
    "running": ({"columns": COLUMNS, "frame_stack": 4}, running),
    "evicted": (
        {"columns": COLUMNS, "frame_stack": 4, "capacity": 100, "segment_rows": 16, "n_envs": 2, "autoreset": "next_step"},
        many,
    ),
    "vectors": ({"columns": VECTORS | {"reward": db.Column((), "float32", allow_nan=True)}}, vectors),
    "single frames": ({"columns": COLUMNS}, lambda b: add_plain(b, 1, 30, 0)),
}
NUMBERS = ("", "0", "-1", "1", "2", "3", "17", "41", "1000000", "-7", str(2**62), str(-(2**62)), str(2**63), "1e3", "nan", "-inf")
TEXTS = ("x", "\x00", "9" * 5000, "true", "obs", "action", "reward", "../zarr.json", "length > 3", "return == None", "(" * 300)
PARAMETERS: dict[str, tuple[str, ...]] = {
    "frame.png": ("step", "column", "stack", "of"),
    "api/state": (),
    "api/overview": (),
    "api/timeline": ("where",),
    "api/episodes": ("where", "sort", "descending", "offset", "limit"),
    "api/episode": ("step", "id", "by"),
}
LIKELY = {"column": ("obs",), "stack": ("1",), "sort": ("ended", "return"), "batch_size": ("1", "7"), "batches": ("1", "2")}


@pytest.mark.nightly
@pytest.mark.parametrize("name", STORES)
def test_nothing_that_is_asked_is_an_error_of_the_server(name: str, tmp_path: Path, any_seed: int) -> None:
    options, fill = STORES[name]
    rng = np.random.default_rng(any_seed)
    with db.ReplayBuffer(tmp_path / "store", **options) as buffer:
        fill(buffer)
    app = create_app(Watched(tmp_path / "store"))
    with TestClient(app, base_url="http://127.0.0.1:8460", raise_server_exceptions=False) as client:
        client.get("/api/state")
        asked = [
            ("frame.png", {"step": step, "stack": stack}) for step in (*map(str, range(-3, 50)), *NUMBERS) for stack in ("", "1")
        ]
        for route, names in PARAMETERS.items():
            for _ in range(2 if route == "api/overview" else 40 if names else 1):
                chosen = {one: drawn(rng, one) for one in names if rng.random() < 0.6}
                asked.append((route, chosen))
        wrong = []
        for route, parameters in asked:
            answer = client.get(f"/{route}", params=parameters)
            if answer.status_code not in (200, 400, 409, 410, 503):
                wrong.append((answer.status_code, route, parameters, answer.text[:200]))
    assert wrong == []


def drawn(rng: np.random.Generator, name: str) -> str:
    if name in LIKELY and rng.random() < 0.7:
        return str(rng.choice(LIKELY[name]))
    return str(rng.choice(np.array(NUMBERS if rng.random() < 0.7 else TEXTS, object)))
