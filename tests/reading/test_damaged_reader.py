"""What a view shows of damaged stores of format 2: steps that were recorded, and none that was not; a repair then mends them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import diskbuffer as db
from diskbuffer.inspect.gathered import open_view

COLUMNS = {"obs": db.Column((8, 8), "uint8"), "action": db.Column((), "int64")}
STEPS = 150


def reward_of(environment: int, at: int) -> float:
    return environment * 1000.0 + at


def fill(path: Path, *, closed: bool) -> None:
    """Record two environments, whose rewards tell which step each is; leave a copy that was not closed, if it is not to be."""
    rng = np.random.default_rng(0)
    with db.ReplayBuffer(path, columns=COLUMNS, n_envs=2, segment_rows=32) as buffer:
        obs = rng.integers(0, 256, (2, 8, 8), np.uint8)
        for at in range(STEPS):
            rewards = np.array([reward_of(environment, at) for environment in range(2)])
            following, ends = rng.integers(0, 256, (2, 8, 8), np.uint8), rng.random(2) < 0.1
            buffer.add(obs, np.array([at, at]), rewards, following, ends, np.zeros(2, bool))
            obs = np.where(ends[:, None, None], following // 2, following)
        buffer.flush()
        if not closed:
            shutil.copytree(path, path.with_name("copy"))
    if not closed:
        shutil.rmtree(path)
        path.with_name("copy").rename(path)


def damage(path: Path, rng: np.random.Generator) -> str:
    """Damage a file or a directory; return what was done."""
    places = sorted(place for place in path.rglob("*") if place.name != "lock")
    place = places[int(rng.integers(len(places)))]
    if place.is_dir():
        shutil.rmtree(place)
        if rng.random() < 0.5:
            place.write_text("no directory")
    elif rng.random() < 0.3 or place.stat().st_size == 0:
        place.unlink()
    else:
        data = bytearray(place.read_bytes())
        at = int(rng.integers(len(data)))
        if rng.random() < 0.5:
            del data[at:]
        else:
            data[at] ^= 1 << int(rng.integers(8))
        place.write_bytes(data)
    return str(place.relative_to(path))


def shown(path: Path) -> tuple[str | None, dict[int, list[float]]]:
    """Return what is wrong, and the rewards of each episode, by the id of its first step that is shown."""
    view = open_view(path)
    table, streams = view.episodes(), view.layout.streams
    found = {}
    for start, length in zip(table.start.tolist(), table.length.tolist(), strict=True):
        found[start] = view.read("reward", start + np.arange(length) * streams).tolist()
    return view.damage, found


@pytest.mark.parametrize("closed", [True, False], ids=["closed", "killed"])
def test_what_is_left_is_what_was_recorded(
    closed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, any_seed: int, amount: Any
) -> None:
    monkeypatch.setattr("diskbuffer.open_store.FORMAT", 2)
    whole, path, rng = tmp_path / "whole", tmp_path / "store", np.random.default_rng(any_seed)
    fill(whole, closed=closed)
    wrong, episodes = shown(whole)
    assert wrong is None
    steps = {start + n * 2: reward for start, rewards in episodes.items() for n, reward in enumerate(rewards)}
    assert len(steps) == len({*steps.values()}) == 2 * STEPS
    was_damaged = 0
    for _ in range(amount(12, 400)):
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(whole, path)
        what = damage(path, rng)
        wrong, left = shown(path)
        was_damaged += wrong is not None
        for start, rewards in left.items():
            assert rewards == [steps[start + n * 2] for n in range(len(rewards))], what
        if wrong is None:
            assert sum(map(len, left.values())) == len(steps), what
        db.check(path, repair=True, progress=False)
        assert db.check(path, progress=False).ok, what
        after = shown(path)
        assert after[0] is None, what
        assert {start: len(rewards) for start, rewards in after[1].items()}.keys() <= steps.keys(), what
    assert was_damaged


def test_a_store_that_nothing_tells_of_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("diskbuffer.open_store.FORMAT", 2)
    fill(tmp_path / "store", closed=True)
    (tmp_path / "store" / "zarr.json").write_text("{}")
    (tmp_path / "store" / "_segments" / "manifest").write_bytes(b"")
    with pytest.raises(db.CorruptionError, match="nothing else tells what this store is"):
        open_view(tmp_path / "store")
