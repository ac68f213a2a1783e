"""What limits sampling: the parts add up, the slow part is the one that is named, and nothing is changed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import diskbuffer as db
from diskbuffer.inspect.disk import ColumnFiles, seconds_a_step, share_in_memory
from diskbuffer.inspect.limits import find_limits, limit_of
from soak.specimens import contents


@pytest.fixture
def on_disk() -> Iterator[Path]:
    """A directory on a disk: a tmpfs has everything in memory, and cannot be read past it."""
    directory = Path(os.environ.get("DISKBUFFER_DISK", Path(__file__).parent)) / f".limits-{os.getpid()}"
    directory.mkdir()
    yield directory
    shutil.rmtree(directory)


def fill(path: Path, shape: tuple[int, ...], steps: int, *, noise: bool) -> None:
    columns = {"obs": db.Column(shape, "uint8"), "action": db.Column((), "int64")}
    rng = np.random.default_rng(0)
    frames = rng.integers(0, 256, (steps + 1, *shape), np.uint8) if noise else np.zeros((steps + 1, *shape), np.uint8)
    if not noise:
        frames[:, 0] = rng.integers(0, 256, (steps + 1, *shape[1:]))
    with db.ReplayBuffer(path, columns=columns, segment_rows=256) as buffer:
        buffer.extend(frames, np.zeros(steps, np.int64), np.zeros(steps))
        buffer.flush(recompress=True)


def test_the_parts_add_up_and_nothing_is_written(tmp_path: Path) -> None:
    fill(tmp_path / "store", (84, 84), 1000, noise=False)
    before = contents(tmp_path / "store")
    found = find_limits(tmp_path / "store", 64, seconds=1.5)
    assert contents(tmp_path / "store") == before
    assert (found.batch_size, found.learner, found.waited) == (64, None, None)
    assert min(found.fixed, found.copying, found.decoding) >= 0
    assert found.fixed + found.copying + found.decoding == pytest.approx(found.batch * found.speedup)
    assert found.batch > 0
    assert 0.9 < found.resident <= 1  # it was just written
    assert found.advice


@pytest.mark.nightly
def test_a_batch_of_one_is_all_fixed_cost(tmp_path: Path) -> None:
    fill(tmp_path / "store", (4,), 300, noise=True)
    found = find_limits(tmp_path / "store", 1, seconds=1)
    assert found.limit == "fixed cost"
    assert "larger batches" in found.advice


@pytest.mark.nightly
def test_large_frames_that_compress_are_limited_by_decoding_or_copying(tmp_path: Path) -> None:
    fill(tmp_path / "store", (210, 160, 3), 300, noise=False)
    assert find_limits(tmp_path / "store", 64, seconds=1.5).limit in ("decoding", "copying")


@pytest.mark.some(1)
@pytest.mark.parametrize(("takes", "waited"), [(0.05, 1 / 53), (0.0, 1 / 3)])
def test_a_slow_learner_is_told_that_it_is_the_limit(
    takes: float, waited: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a clock of our own, in which each look takes a millisecond."""
    fill(tmp_path / "store", (84, 84), 300, noise=False)
    seen, now = list[Any](), 0.0

    def look() -> float:
        nonlocal now
        now += 0.001
        return now

    def learner(batch: dict[str, Any]) -> None:
        nonlocal now
        seen.append(batch["obs"].shape)
        now += takes

    for module in ("inspect.limits", "loading.loader"):
        monkeypatch.setattr(f"diskbuffer.{module}.time", SimpleNamespace(perf_counter=look))
    found = find_limits(tmp_path / "store", 32, seconds=3, learner=learner)
    assert (found.limit == "learner") == (takes > 0)
    assert found.learner == pytest.approx(takes, abs=0.003)
    assert found.waited == pytest.approx(waited, rel=0.2)
    assert set(seen) == {(32, 84, 84)}


@pytest.mark.parametrize(
    ("measured", "limit"),
    [
        ({"fixed": 21e-6, "copying": 18e-6, "decoding": 0.0, "disk": 0.5, "resident": 0.97, "read": False}, "fixed cost"),
        ({"fixed": 99e-6, "copying": 303e-6, "decoding": 318e-6, "disk": 0.57, "resident": 0.99, "read": False}, "decoding"),
        ({"fixed": 99e-6, "copying": 303e-6, "decoding": 318e-6, "disk": 0.57, "resident": 0.99, "read": True}, "disk"),
        ({"fixed": 99e-6, "copying": 303e-6, "decoding": 318e-6, "disk": None, "resident": 0.1, "read": True}, "decoding"),
    ],
)
def test_the_disk_is_no_limit_where_nothing_is_read_from_it(measured: dict[str, Any], limit: str) -> None:
    """Some pages that no step needs are not in memory, and one read takes as long as a thousand batches."""
    assert limit_of(**measured, waited=None) == limit


@pytest.mark.nightly
def test_a_small_store_on_a_disk_is_not_limited_by_it(on_disk: Path) -> None:
    fill(on_disk / "store", (84, 84), 600, noise=False)
    for file in sorted((on_disk / "store/obs").glob("c.*"))[:1]:  # which comes back as soon as it is sampled from
        with file.open("rb") as opened:
            os.fsync(opened.fileno())
            if hasattr(os, "posix_fadvise"):
                os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    found = find_limits(on_disk / "store", 64, seconds=1.5)
    assert (found.read, found.limit != "disk") == (False, True)


def test_what_cannot_be_measured_is_refused(tmp_path: Path) -> None:
    with pytest.raises(db.errors.NotAStoreError):
        find_limits(tmp_path / "store")
    columns = {"obs": db.Column((4,), "float32"), "action": db.Column((), "int64")}
    db.ReplayBuffer(tmp_path / "store", columns=columns).close()
    with pytest.raises(db.errors.EmptyBufferError, match="nothing to measure"):
        find_limits(tmp_path / "store")
    for wrong in ({"batch_size": 0}, {"seconds": 0}):
        with pytest.raises(db.InputError):
            find_limits(tmp_path / "store", **wrong)  # type: ignore[arg-type]


def test_what_is_in_memory_is_what_the_system_has_read(on_disk: Path) -> None:
    for n in range(4):
        with (on_disk / f"c.{n}").open("wb") as file:
            file.write(os.urandom(1024**2))
            file.flush()
            os.fsync(file.fileno())
            if n < 3 and hasattr(os, "posix_fadvise"):
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    column = ColumnFiles.of(on_disk, segment_rows=1024, rows_a_read=4)
    assert column.bytes_a_read == 4096
    assert sorted(file.name for file in column.files) == ["c.0", "c.1", "c.2", "c.3"]
    taken = seconds_a_step([column], threads=2, seconds=0.2)
    if taken is None:
        pytest.skip("this file system cannot be read past the page cache")
    assert taken > 0
    if os.major(on_disk.stat().st_dev) == 0:
        pytest.skip("this file system is not on a block device, and may have everything in memory")
    assert share_in_memory([column]) == pytest.approx(0.25, abs=0.05)
