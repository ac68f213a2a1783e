"""Statistics of a store: the same as numpy's of the same values; what is planted is found, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import diskbuffer as db
from diskbuffer.commands.stats import stats
from diskbuffer.inspect.distributions import distribution
from diskbuffer.inspect.findings import of_values
from diskbuffer.inspect.statistics import statistics
from diskbuffer.plugin import Reader
from tests.support.specimens import contents

Array = npt.NDArray[Any]
DTYPES = ("bool", "uint8", "int8", "int16", "int64", "float32", "float64")
FRAME = (12, 12)


def drawn(rng: np.random.Generator, dtype: str, n: int) -> Array:
    kind = np.dtype(dtype).kind
    if kind == "f":
        values = rng.normal(rng.normal() * 100, 1 + rng.random() * 50, n).astype(dtype)
        values[rng.random(n) < 0.02] = np.nan
        values[rng.random(n) < 0.02] = np.inf
        return values
    if kind == "b":
        return rng.random(n) < 0.3
    high = int(rng.integers(1, min(2**15, np.iinfo(dtype).max)))
    return rng.integers(-high if kind == "i" else 0, high, n, endpoint=True).astype(dtype)


@pytest.mark.nightly
@given(seed=st.integers(0, 2**32), dtype=st.sampled_from(DTYPES), n=st.integers(1, 3000))
@settings(max_examples=150, deadline=None)
def test_a_distribution_is_the_one_that_numpy_has(seed: int, dtype: str, n: int) -> None:
    values = drawn(np.random.default_rng(seed), dtype, n)
    found = distribution(values.reshape(1, -1))
    there = values[np.isfinite(values)]
    assert found["n"] == len(there)
    assert found["nan"] == np.isnan(values.astype(float)).sum()
    assert found["infinite"] == np.isinf(values.astype(float)).sum()
    if not len(there):
        return
    numbers = there.astype(float)
    assert found["mean"] == pytest.approx(numbers.mean(), rel=1e-9, abs=1e-9)
    assert found["std"] == pytest.approx(numbers.std(), rel=1e-6, abs=1e-9)
    assert (found["min"], found["max"]) == (numbers.min(), numbers.max())
    for q, value in found["quantiles"].items():
        assert value == np.quantile(numbers, float(q), method="inverted_cdf")
    edges, heights = found["histogram"]["edges"], found["histogram"]["counts"]
    assert heights == np.histogram(numbers, edges)[0].tolist()
    assert sum(heights) == len(there)
    if "counts" in found:
        some, counts = np.unique(there, return_counts=True)
        assert found["counts"] == dict(zip(map(str, some.tolist()), counts.tolist(), strict=True))
    else:
        assert dtype.startswith("float") or len(np.unique(there)) > 64
    json.dumps(found, allow_nan=False)


# Whole stores


class Episodes:
    """Random episodes, into which something is planted."""

    def __init__(self, rng: np.random.Generator, n: int, length: int) -> None:
        self.obs = [rng.integers(0, 256, (length + 1, *FRAME), np.uint8) for _ in range(n)]
        self.vector = [rng.normal(size=(length + 1, 5)).astype(np.float32) for _ in range(n)]
        self.action = [rng.normal(size=(length, 3)).astype(np.float32) for _ in range(n)]
        self.choice = [rng.integers(0, 4, length) for _ in range(n)]
        self.reward = [rng.normal(size=length).astype(np.float32) for _ in range(n)]
        self.cut = [False] * n

    def store(self, path: Path) -> Reader:
        columns = {
            "obs/frame": db.Column(FRAME, "uint8"),
            "obs/vector": db.Column((5,), "float32", allow_nan=True),
            "action": db.Column((3,), "float32"),
            "choice": db.Column((), "int64"),
        }
        with db.ReplayBuffer(path, columns=columns, segment_rows=256, n_envs=2, autoreset="next_step") as buffer:
            for n, actions in enumerate(self.action):
                ends = np.zeros(len(actions), bool)
                ends[-1] = not self.cut[n]
                buffer.extend(
                    {"frame": self.obs[n], "vector": self.vector[n]},
                    actions,
                    self.reward[n],
                    terminated=ends,
                    env=n % 2,
                    choice=self.choice[n],
                )
                if self.cut[n]:
                    buffer.cut_off(n % 2)
        return Reader(path)


PLANTS = ("duplicate", "black", "constant frame", "nan", "infinite", "cut off", "action", "constant", "no reward", "saturated")


def plant(kind: str, episodes: Episodes, rng: np.random.Generator) -> tuple[str, int]:
    """Plant something; return the column, and how often it is there."""
    n, at = int(rng.integers(len(episodes.obs))), int(rng.integers(1, len(episodes.reward[0])))
    if kind == "duplicate":
        episodes.obs[n][at] = episodes.obs[n][at - 1]
        return "obs/frame", 1
    if kind == "black":
        episodes.obs[n][at] = 0
        return "obs/frame", 1
    if kind == "constant frame":
        episodes.obs[n][at] = rng.integers(1, 256)
        return "obs/frame", 1
    if kind in ("nan", "infinite"):
        episodes.vector[n][at, rng.integers(5)] = np.nan if kind == "nan" else np.inf
        return "obs/vector", 1
    if kind == "cut off":
        episodes.cut[n] = True
        return "", 1
    steps = sum(map(len, episodes.reward))
    if kind == "action":
        which = int(rng.integers(3))
        for actions in episodes.action:
            actions[:, which] = 0.25
        return "action", 1
    if kind == "constant":
        for values in episodes.choice:
            values[:] = 3
        return "choice", steps
    if kind == "no reward":
        for rewards in episodes.reward:
            rewards[:] = 0
        return "reward", steps
    count = 0
    for actions in episodes.action:
        np.clip(actions, -10, 0.5, out=actions)
        count += int((actions == 0.5).sum())
    return "action", count


PLANTED = given(seed=st.integers(0, 2**32), planted=st.sets(st.sampled_from(PLANTS), max_size=3))


@PLANTED
@settings(max_examples=4, deadline=None)
def test_what_is_planted_is_found_and_nothing_else(
    tmp_path_factory: pytest.TempPathFactory, seed: int, planted: set[str]
) -> None:
    find_planted(tmp_path_factory.mktemp("stats"), seed, planted)


@pytest.mark.nightly
@PLANTED
@settings(max_examples=100, deadline=None)
def test_much_that_is_planted_is_found(tmp_path_factory: pytest.TempPathFactory, seed: int, planted: set[str]) -> None:
    find_planted(tmp_path_factory.mktemp("stats"), seed, planted)


def find_planted(directory: Path, seed: int, planted: set[str]) -> None:
    if {"action", "saturated"} <= planted or len(planted & {"duplicate", "black", "constant frame"}) > 1:
        planted -= {"action", "black", "constant frame"}  # these may hide each other
    rng = np.random.default_rng(seed)
    episodes = Episodes(rng, 4, 100)
    expected = {kind: plant(kind, episodes, rng) for kind in sorted(planted)}
    found = statistics(episodes.store(directory / "store"))
    told = {finding["kind"]: (finding["column"], finding["count"]) for finding in found["findings"]}
    assert told == expected
    assert all(finding["text"] for finding in found["findings"])
    assert found["looked_at"]["rows"] == found["looked_at"]["of_rows"] == 404
    assert found["looked_at"]["steps"] == 400


def test_figures_are_those_of_what_was_added(tmp_path: Path) -> None:
    episodes = Episodes(np.random.default_rng(1), 6, 50)
    found = statistics(episodes.store(tmp_path / "store"))
    for path, added in (("obs/frame", episodes.obs), ("obs/vector", episodes.vector), ("reward", episodes.reward)):
        values = np.concatenate(added).astype(float)
        assert found["columns"][path]["mean"] == pytest.approx(values.mean(), rel=1e-6)
        assert found["columns"][path]["n"] == values.size
    returns = sorted(float(rewards.astype(float).sum()) for rewards in episodes.reward)
    assert found["returns"]["min"] == pytest.approx(returns[0])
    assert found["returns"]["max"] == pytest.approx(returns[-1])
    assert found["lengths"]["counts"] == {"50": 6}
    assert found["endings"] == {"terminated": 6}
    assert found["columns"]["terminated"]["counts"] == {"False": 294, "True": 6}


def test_a_large_store_is_looked_at_in_part_and_the_same_part_again(tmp_path: Path) -> None:
    columns = {"obs": db.Column((3,), "float32"), "action": db.Column((), "int64")}
    rng = np.random.default_rng(0)
    with db.ReplayBuffer(tmp_path / "store", columns=columns) as buffer:
        buffer.extend(rng.normal(size=(20_001, 3)), np.arange(20_000) % 3, rng.normal(size=20_000))
        buffer.cut_off()
    view = Reader(tmp_path / "store")
    first, again, other = (statistics(view, most_rows=1000, seed=seed) for seed in (0, 0, 1))
    assert first == again
    assert first["columns"]["reward"] != other["columns"]["reward"]
    assert 900 <= first["looked_at"]["rows"] <= 1000
    assert first["looked_at"]["of_rows"] == 20_001
    assert first["columns"]["reward"]["mean"] == pytest.approx(0, abs=0.2)


def test_cleared_steps_do_not_count(tmp_path: Path) -> None:
    columns = {"obs": db.Column((3,), "float32"), "action": db.Column((), "int64")}
    with db.ReplayBuffer(tmp_path / "store", columns=columns) as buffer:
        buffer.extend(np.full((101, 3), 7.0), np.zeros(100, int), np.zeros(100))
        buffer.cut_off()
        buffer.clear()
        buffer.extend(np.random.default_rng(0).normal(size=(51, 3)), np.arange(50), np.arange(50.0))
    found = statistics(Reader(tmp_path / "store"))
    assert found["looked_at"]["steps"] == 50
    assert found["columns"]["obs"]["max"] < 7


def test_equal_frames_of_two_episodes_are_no_duplicates() -> None:
    frames = np.random.default_rng(0).integers(0, 256, (4, *FRAME), np.uint8)
    frames[2] = frames[1]
    assert list(of_values({"obs": frames}, np.array([True, False, True]))) == []


@pytest.mark.parametrize("at", [(0, 10), (60, 68), (1, 200)])
def test_a_stretch_of_equal_frames_is_measured_across_parts(tmp_path: Path, at: tuple[int, int]) -> None:
    episodes = Episodes(np.random.default_rng(0), 1, 300)
    first, end = at
    episodes.obs[0][first:end] = episodes.obs[0][first]
    (finding,) = statistics(episodes.store(tmp_path / "store"))["findings"]
    assert (finding["kind"], finding["count"], finding["of"]) == ("duplicate", end - first - 1, 300)
    assert finding["text"].endswith(f"the longest stretch is of {end - first}")


# The command


def test_the_command_tells_in_words_and_changes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(0)
    episodes = Episodes(rng, 4, 40)
    plant("black", episodes, rng)
    episodes.store(tmp_path / "store")
    before = contents(tmp_path)
    assert stats(str(tmp_path / "store")) == 0
    said = capsys.readouterr().out
    assert contents(tmp_path) == before
    assert "1 of 164 frames (0.61 %) is black" in said
    assert "4 terminated" in said
    assert stats(str(tmp_path / "store"), json=True) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["findings"][0]["kind"] == "black"


def test_an_empty_store_and_bad_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    columns = {"obs": db.Column((3,), "float32"), "action": db.Column((), "int64")}
    db.ReplayBuffer(tmp_path / "store", columns=columns).close()
    assert stats(str(tmp_path / "store")) == 0
    assert "no steps yet" in capsys.readouterr().out
    assert stats(str(tmp_path / "store"), json=True) == 0
    assert json.loads(capsys.readouterr().out)["looked_at"]["rows"] == 0
    with pytest.raises(db.InputError, match="rows"):
        stats(str(tmp_path / "store"), rows=0)
    with pytest.raises(db.errors.NotAStoreError):
        stats(str(tmp_path / "none"))


def test_damage_is_told_and_the_rest_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    columns = {"obs": db.Column((40, 40), "uint8"), "action": db.Column((), "int64")}
    rng = np.random.default_rng(0)
    with db.ReplayBuffer(tmp_path / "store", columns=columns, segment_rows=64) as buffer:
        buffer.extend(rng.integers(0, 256, (301, 40, 40), np.uint8), np.arange(300) % 5, rng.normal(size=300))
        buffer.cut_off()
        buffer.flush(recompress=True)
    file = tmp_path / "store/obs/c.1.0.0"
    data = bytearray(file.read_bytes())
    data[1000] ^= 255
    file.write_bytes(data)
    assert stats(str(tmp_path / "store")) == 1
    assert "run diskbuffer check" in capsys.readouterr().out


def test_the_spread_of_huge_values_is_a_number() -> None:
    found = distribution(np.array([-1e300, 1e300, 1e300, 3e300]))
    assert (found["mean"], found["min"], found["max"]) == (1e300, -1e300, 3e300)
    assert found["std"] == pytest.approx(2**0.5 * 1e300)
