"""Statistics of columns: equal to numpy's of what is there, whatever happens to the store, and read once."""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import threading
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch

import diskbuffer as db
from diskbuffer.columns import statistics
from diskbuffer.columns.partial_statistics import Places
from diskbuffer.commands.cli import main
from diskbuffer.formats import export, import_
from diskbuffer.store.system.files import Files
from tests.support.in_fork import in_fork
from tests.support.specimens import flip

Array = np.ndarray[Any, Any]
COLUMNS = {
    "obs/state": db.Column((3,), "float64", allow_nan=True),
    "obs/camera": db.Column((12, 10, 3), "uint8"),
    "action": db.Column((2,), "float32"),
    "info/level": db.Column((), "int16"),
}
FIGURES = ("count", "mean", "std", "min", "max")


def opened(path: Path, capacity: int | None = None, n_envs: int = 2, **options: Any) -> db.ReplayBuffer:
    how: dict[str, Any] = {"n_envs": n_envs, "autoreset": "disabled", "segment_rows": 256, "threads": 2}
    return db.ReplayBuffer(path, capacity, columns=COLUMNS, **(how | options))


def add(buffer: db.ReplayBuffer, rng: np.random.Generator, steps: int, env: int = 0, ended: bool = True) -> None:
    state = rng.normal(5, 3, (steps + 1, 3))
    state[rng.random(state.shape) < 0.02] = np.nan
    camera = rng.integers(3, 200, (steps + 1, 12, 10, 3), np.uint8)
    terminated = np.arange(steps) == (steps - 1 if ended else -1)
    numbers = {"action": rng.normal(size=(steps, 2)), "reward": rng.normal(size=steps), "terminated": terminated}
    buffer.extend(env=env, obs={"state": state, "camera": camera}, info={"level": rng.integers(-9, 900, steps)}, **numbers)


def rows_of(buffer: db.ReplayBuffer, path: str) -> Array:
    """All rows of a column that count: of observations with the final ones."""
    parts: list[Any] = [np.zeros((0, *COLUMNS.get(path, db.Column()).shape))]
    for episode in buffer.episodes.read(columns=(path,)):
        value: Any = episode[path.split("/")[0]]
        for part in path.split("/")[1:]:
            value = value[part]
        parts.append(np.asarray(value, np.float64))
    return np.concatenate(parts)


def check(buffer: db.ReplayBuffer) -> None:
    """Compare with numpy, and with what a reader elsewhere finds that knows nothing yet."""
    with db.ReplayBuffer(buffer.path, mode="r", threads=1) as other:
        for path in (*COLUMNS, "reward"):
            found, anew = buffer.columns.statistics(path), other.columns.statistics(path)
            rows = rows_of(buffer, path)
            flat = rows.reshape(-1, *([3] if path == "obs/camera" else rows.shape[1:]))
            np.testing.assert_array_equal(found.count, np.isfinite(flat).sum(axis=0))
            for name in FIGURES:
                np.testing.assert_array_equal(getattr(found, name), getattr(anew, name), err_msg=f"{path} {name}")
            if not len(flat):
                assert np.isnan([found.mean, found.std]).all()
                continue
            np.testing.assert_allclose(found.mean, np.nanmean(flat, axis=0), rtol=1e-9, atol=1e-9)
            np.testing.assert_allclose(found.std, np.nanstd(flat, axis=0), rtol=1e-9)
            np.testing.assert_array_equal(found.min, np.nanmin(flat, axis=0))
            np.testing.assert_array_equal(found.max, np.nanmax(flat, axis=0))
            span = np.nanmax(flat, axis=0) - np.nanmin(flat, axis=0)
            for q, values in found.quantiles.items():
                exact = np.nanquantile(flat, q, axis=0, method="inverted_cdf")
                assert (np.abs(values - exact) <= 0.01 * span).all(), (path, q)


@pytest.mark.parametrize("seed", range(3))
def test_they_are_those_of_what_is_there_whatever_happens(seed: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(seed)
    with contextlib.ExitStack() as stack:
        buffer = stack.enter_context(opened(tmp_path / "store", 1500, seed=0))
        for turn in range(10):
            what = int(rng.integers(8))
            if what == 0 or (what == 3 and "here" in buffer.copies.marks):
                buffer.close()
                buffer = stack.enter_context(opened(tmp_path / "store", mark=None if what == 0 else "here"))
            elif what == 1 and turn > 2:
                buffer.clear()
            elif what == 2:
                buffer.copies.mark("here", replace=True)
            for _ in range(int(rng.integers(1, 4))):
                add(buffer, rng, int(rng.integers(1, 400)), int(rng.integers(2)), bool(rng.integers(2)))
            check(buffer)


def test_what_is_known_is_not_read_again_and_what_is_damaged_is_computed_anew(tmp_path: Path) -> None:
    with opened(tmp_path / "store", n_envs=1) as buffer:
        add(buffer, np.random.default_rng(0), 1000)
        first = buffer.columns.statistics("obs/camera")
        buffer.flush(recompress=True)
    kept = tmp_path / "store" / "obs" / "camera" / "statistics"
    contents = kept.read_bytes()
    shard = tmp_path / "store" / "obs" / "camera" / "c.1.0.0.0"
    with db.ReplayBuffer(tmp_path / "store") as buffer:
        flip(shard, 100)
        np.testing.assert_array_equal(buffer.columns.statistics("obs/camera").mean, first.mean)
    for damaged in (contents[:-1], contents[:50] + bytes([contents[50] ^ 1]) + contents[51:], b"", b"x" * 10_000_000):
        kept.write_bytes(damaged)
        with db.ReplayBuffer(tmp_path / "store", mode="r") as buffer, pytest.raises(db.CorruptionError, match="obs/camera"):
            buffer.columns.statistics("obs/camera")
        flip(shard, 100)
        with db.ReplayBuffer(tmp_path / "store", mode="r") as buffer:
            np.testing.assert_array_equal(buffer.columns.statistics("obs/camera").mean, first.mean)
        flip(shard, 100)


def test_rows_that_are_read_in_parts(tmp_path: Path) -> None:
    columns = {"obs": db.Column((200,), "float32"), "action": db.Column()}
    with mock.patch.object(statistics, "_READ_BYTES", 100_000), db.ReplayBuffer(tmp_path / "store", columns=columns) as buffer:
        obs = np.random.default_rng(0).normal(3, 2, (20_000, 200)).astype(np.float32)
        buffer.extend(obs=obs, action=np.zeros(len(obs) - 1), reward=np.zeros(len(obs) - 1))
        found = buffer.columns.statistics("obs")
        np.testing.assert_allclose(found.mean, obs.mean(0, np.float64), rtol=1e-9)
        np.testing.assert_allclose(found.std, obs.std(0, np.float64), rtol=1e-7)
        np.testing.assert_array_equal([found.min, found.max], [obs.min(0), obs.max(0)])
        assert (found.count == len(obs)).all()


def test_a_column_without_a_finite_number_is_read_once(tmp_path: Path) -> None:
    columns = {"obs": db.Column((2,), "float32", allow_nan=True), "action": db.Column()}
    with db.ReplayBuffer(tmp_path / "store", columns=columns) as buffer:
        buffer.extend(obs=np.full((101, 2), np.nan), action=np.zeros(100), reward=np.zeros(100))
        with mock.patch.object(statistics.StatisticsOfColumn, "_compute", autospec=True) as compute:
            compute.side_effect = lambda self: self._places.together(self._places.side_by_side([]))
            buffer.columns.statistics("obs")
        assert compute.call_count == 1


def test_a_disk_that_is_full_when_results_are_saved_is_no_error(tmp_path: Path) -> None:
    real = Files.replace_contents

    def full(files: Files, name: str, data: bytes, *, sync: bool = True) -> None:
        if name.endswith("/statistics"):
            raise OSError(errno.ENOSPC, "No space left on device")
        real(files, name, data, sync=sync)

    with opened(tmp_path / "store") as buffer:
        add(buffer, np.random.default_rng(0), 1500)
        with mock.patch.object(Files, "replace_contents", full):
            check(buffer)
        assert not list(tmp_path.rglob("statistics"))
        check(buffer)
    assert list(tmp_path.rglob("statistics"))


def test_a_fork_computes_its_own(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as buffer:
        add(buffer, np.random.default_rng(0), 1500)
        before = buffer.columns.statistics("obs/state")
        add(buffer, np.random.default_rng(1), 700)

        def child() -> None:
            buffer.refresh()
            found, rows = buffer.columns.statistics("obs/state"), rows_of(buffer, "obs/state")
            assert found.count.max() > before.count.max()
            np.testing.assert_allclose(found.mean, np.nanmean(rows, 0), rtol=1e-9)

        assert in_fork(child) == 0
        check(buffer)


def test_a_writer_elsewhere_goes_on_meanwhile(tmp_path: Path) -> None:
    over = threading.Event()
    with opened(tmp_path / "store", 600, n_envs=1) as buffer:
        add(buffer, np.random.default_rng(0), 300)

        def write() -> None:
            rng = np.random.default_rng(1)
            for _ in range(40):
                add(buffer, rng, int(rng.integers(1, 200)))
            over.set()

        with db.ReplayBuffer(tmp_path / "store", mode="r") as reader:
            writing = threading.Thread(target=write)
            writing.start()
            while not over.is_set():
                reader.refresh()
                assert reader.columns.statistics("obs/camera").min.min() >= 3  # a byte that was never written is 0
                assert buffer.columns.statistics("action").count.min() > 0
            writing.join()
            reader.refresh()
            check(buffer)
            np.testing.assert_array_equal(reader.columns.statistics("action").mean, buffer.columns.statistics("action").mean)


def test_several_writers_are_read_as_one_and_columns_written_later_as_they_are(tmp_path: Path) -> None:
    rng, rewards = np.random.default_rng(0), []
    for name in ("a", "b"):
        with opened(tmp_path / "stores", n_envs=1, writer=name) as buffer:
            add(buffer, rng, 500)
            rewards.append(rows_of(buffer, "reward"))
    with db.ReplayBuffer(tmp_path / "stores", mode="r") as every:
        found = every.columns.statistics("reward")
        assert found.count == 1000
        np.testing.assert_allclose(found.mean, np.concatenate(rewards).mean())
        for factor in (1, 2):
            every.columns.write("value", every.steps(), np.full(1000, factor, np.float32))
            found = every.columns.statistics("value")
            assert [float(each) for each in (found.mean, found.std, found.min)] == [factor, 0, factor]


def test_they_standardize_batches_and_are_kept_with_a_mark(tmp_path: Path) -> None:
    columns = {"obs/image": db.Column((3, 9, 8), "uint8"), "obs/state": db.Column((4,), "float64"), "action": db.Column()}
    with db.ReplayBuffer(tmp_path / "store", columns=columns, frame_stack=2) as buffer:
        rng = np.random.default_rng(0)
        obs = {"image": rng.integers(0, 256, (101, 3, 9, 8), np.uint8), "state": rng.normal(4, 2, (101, 4))}
        buffer.extend(obs=obs, action=rng.normal(size=100), reward=np.zeros(100))
        image, state = buffer.columns.statistics("obs/image"), buffer.columns.statistics("obs/state", (0.5,))
        assert (image.mean.shape, image.axis, state.axis, list(state.quantiles)) == ((3,), -3, -1, [0.5])
        raw: Any = buffer.sample(8, db.Uniform(5))["obs"]
        done: Any = buffer.sample(
            8, db.Uniform(5), transform=lambda batch: image.standardize(batch["obs"]["image"]), columns=("obs/image",)
        )
        assert (done.dtype, done.shape) == (torch.float32, (8, 2, 3, 9, 8))
        expected = (raw["image"].numpy() - image.mean.reshape(3, 1, 1)) / image.std.reshape(3, 1, 1)
        np.testing.assert_allclose(done, expected, rtol=1e-4, atol=1e-5)
        numbers = state.standardize(raw["state"].numpy())
        assert [numbers.dtype, state.standardize(raw["state"]).dtype] == [np.float64, torch.float64]
        np.testing.assert_allclose(numbers, (raw["state"].numpy() - obs["state"].mean(0)) / obs["state"].std(0))
        assert buffer.columns.statistics("reward").standardize(np.ones(3, np.float32)).tolist() == [1e8] * 3
        buffer.copies.mark("here", arrays=state.arrays("obs/state"))
        again = db.ColumnStatistics.from_arrays(buffer.copies.arrays("here"), "obs/state")
        np.testing.assert_array_equal(again.mean, state.mean)
        assert (again.axis, list(again.quantiles)) == (-1, [0.5])
        with pytest.raises(db.InputError, match="no statistics of column 'action' among"):
            db.ColumnStatistics.from_arrays(buffer.copies.arrays("here"), "action")
        wrong: list[tuple[str, Any, str]] = [
            ("nowhere", (0.5,), "there is no column 'nowhere'"),
            ("obs/state", (2,), "quantiles must be numbers from 0 to 1, found"),
            ("obs/state", ("a",), "quantiles must be numbers from 0 to 1, found"),
        ]
        for path, quantiles, message in wrong:
            with pytest.raises(db.InputError, match=message):
                buffer.columns.statistics(path, quantiles)


def test_complex_numbers_are_left_out_of_what_lerobot_knows(tmp_path: Path) -> None:
    columns, extra = {"obs": db.Column((4,)), "action": db.Column((2,))}, {"wave": db.Column((3,), "complex64")}
    with db.ReplayBuffer(tmp_path / "store", columns=columns, extra=extra, metadata={"fps": 30}) as buffer:
        numbers: dict[str, Any] = {"action": np.zeros((10, 2)), "reward": np.zeros(10), "wave": np.full((10, 3), 1 + 2j)}
        buffer.extend(np.zeros((11, 4)), **numbers, terminated=np.arange(10) == 9)
        with pytest.raises(db.InputError, match="numbers that have an order, found complex64"):
            buffer.columns.statistics("wave")
    export("lerobot", tmp_path / "store", tmp_path / "set", allow_loss=("final_obs",), progress=False)
    import_("lerobot", tmp_path / "set", tmp_path / "again", progress=False)
    with db.ReplayBuffer(tmp_path / "again", mode="r") as buffer:
        assert {name.split("/")[1] for name in buffer.copies.arrays()} >= {"obs", "action"}
        assert not any("wave" in name for name in buffer.copies.arrays())


def test_those_of_a_data_set_of_lerobot_come_with_it_and_a_command_shows_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    columns = {"obs/state": db.Column((4,), "float32"), "obs/eye": db.Column((16, 16), "uint8"), "action": db.Column((2,))}
    with db.ReplayBuffer(tmp_path / "store", columns=columns, metadata={"fps": 30}) as buffer:
        rng = np.random.default_rng(0)
        for _ in range(3):
            eyes = np.full((41, 16, 16), 100, np.uint8) + rng.integers(0, 3, (41, 1, 1), np.uint8)
            obs = {"state": rng.normal(4, 2, (41, 4)), "eye": eyes}
            ended = {"terminated": np.arange(40) == 39}
            buffer.extend(obs=obs, action=rng.normal(size=(40, 2)), reward=np.zeros(40), **ended)
        action = buffer.columns.statistics("action")
    assert main(["stats", str(tmp_path / "store"), "--column", "action", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["mean"], shown["10 %"]) == (action.mean.tolist(), action.quantiles[0.1].tolist())
    assert main(["stats", str(tmp_path / "store"), "--column", "action"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()[-2:]] == ["[0]", "[1]"]
    export("lerobot", tmp_path / "store", tmp_path / "set", allow_loss=("final_obs", "pixels"), progress=False)
    import_("lerobot", tmp_path / "set", tmp_path / "again", progress=False)
    with db.ReplayBuffer(tmp_path / "again", mode="r") as buffer:
        arrays = buffer.copies.arrays()
        there = db.ColumnStatistics.from_arrays(arrays, "action")
        assert (there.count.tolist(), there.axis, sorted(there.quantiles)) == ([120] * 2, -1, [0.01, 0.1, 0.5, 0.9, 0.99])
        for name in FIGURES:
            np.testing.assert_allclose(getattr(there, name), getattr(action, name), rtol=1e-6)
        eye = db.ColumnStatistics.from_arrays(arrays, "obs/eye")
        assert (eye.mean.shape, eye.axis) == ((), 0)
        assert float(eye.mean) == pytest.approx(101, abs=4)
    (tmp_path / "set" / "meta" / "stats.json").write_text('{"action": {"mean": "x"}}')
    with pytest.raises(db.DiskBufferError, match=r"stats\.json is damaged"):
        import_("lerobot", tmp_path / "set", tmp_path / "third", progress=False)


@pytest.mark.parametrize("seed", range(20))
def test_parts_together_are_the_whole(seed: int) -> None:
    rng = np.random.default_rng(seed)
    dtype = np.dtype(("float16", "float32", "float64", "int8", "int64", "uint64", "uint16", "bool", "uint8")[seed % 9])
    shape = ((), (3,), (2, 3), (9, 8), (9, 8, 3), (2, 9, 8))[int(rng.integers(6))]
    places = Places.of(db.Column(shape, dtype, allow_nan=True))
    numbers = rng.normal(size=(60, *shape)) * 10.0 ** rng.integers(-6, 5) + rng.normal() * 10.0 ** rng.integers(-2, 4)
    low, high = {"u": (0, 255), "b": (0, 1), "i": (-128, 127), "f": (-6e4, 6e4)}[dtype.kind]
    rows = np.clip(numbers, low, high).astype(dtype)
    if dtype.kind == "f":
        rows[rng.random(rows.shape) < 0.1] = np.inf
    counting = rng.random(60) < 0.9
    cuts = [0, *np.sort(rng.integers(0, 61, 4)).tolist(), 60]
    parts = [places.of_rows(rows[a:b], counting[a:b]) for a, b in itertools.pairwise(cuts)]
    together, whole = (
        places.finish(record) for record in (places.together(np.concatenate(parts)), places.of_rows(rows, counting))
    )
    for name in ("n", "min", "max", "exponent", "first", "counts"):
        np.testing.assert_array_equal(together[name], whole[name], err_msg=name)
    for name in ("mean", "squares"):
        np.testing.assert_allclose(together[name], whole[name], rtol=1e-9, atol=1e-12, err_msg=name)
    assert (together["counts"].sum(axis=2) == together["n"]).all()
    width = np.ldexp(1.0, together["exponent"]) / np.maximum(1e-300, together["max"].astype(float) - together["min"])
    assert (width[together["max"] > together["min"]] <= (1 if dtype.kind in "uib" else 0.01)).all()
