"""What a `StoreView` shows, against what a buffer that is opened to read shows of the same store."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import diskbuffer as db
from diskbuffer.inspect.view import StoreView
from soak.specimens import KINDS, MOMENTS, history, make
from soak.workloads import boot
from tests.golden.make import BOOT, STORES, unpack

if TYPE_CHECKING:
    from tests.conftest import Experience, Feeder

WITHOUT = """
import sys
from diskbuffer.inspect.view import StoreView
view = StoreView(sys.argv[1])
view.episodes()
for column in view.schema:
    view.frames(column, 0, int(view.lows[0]), 1)
print(*sorted({"numba", "torch", "zarr", "llvmlite"} & sys.modules.keys()))
"""


def flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in values.items():
        found |= flat(value, f"{prefix}{name}/") if isinstance(value, dict) else {prefix + name: value.numpy()}
    return found


def compare(path: Path) -> StoreView:
    """Open a store in both ways, and compare all that there is."""
    view = StoreView(path)
    with db.ReplayBuffer(path, mode="r") as buffer:
        index, streams = buffer._reader.index, view.layout.streams
        assert view.damage is None
        assert view.heads.tolist() == index.heads.tolist()
        assert view.index.table[:, :5].tolist() == index.table[:, :5].tolist()  # all but addresses
        assert (view.steps, view.added) == (len(buffer), index.added())
        table, episodes = view.episodes(), buffer.episodes
        assert table.episode.tolist() == episodes.id.tolist()
        for name in ("stream", "start", "length", "ending", "tag"):
            assert table.column(name).tolist() == getattr(episodes, name).tolist(), name
        np.testing.assert_array_equal(table.returns, episodes.returns.reshape(len(episodes), -1).sum(axis=1))
        steps = buffer.steps()
        rng = np.random.default_rng(0)
        rng.shuffle(steps)
        batch = flat(buffer.at(steps)) if len(steps) else {}
        for column in set(batch) & set(view.schema):
            expected = batch[column][:, -1] if column.startswith("obs") and buffer.frame_stack > 1 else batch[column]
            np.testing.assert_array_equal(view.read(column, steps), expected, err_msg=column)
        for episode in (buffer.episodes[n] for n in range(len(episodes))):
            whole = flat(buffer.episode(episode))
            for column in view.schema.obs:
                expected = whole[column][:, -1] if buffer.frame_stack > 1 else whole[column]
                found = view.frames(column, episode.stream, episode.start // streams, episode.length + 1)
                np.testing.assert_array_equal(found, expected)
    return view


@pytest.mark.parametrize("booted_since", [False, True])
@pytest.mark.parametrize("name", [name for name, store in STORES.items() if not store.damage])
def test_stores_of_every_version_look_as_a_buffer_has_them(name: str, booted_since: bool, tmp_path: Path) -> None:
    with boot(BOOT + booted_since):
        compare(unpack(name, tmp_path))


@pytest.mark.some(2)
@pytest.mark.parametrize("kind", sorted(KINDS))
def test_random_stores_look_as_a_buffer_has_them(kind: str, tmp_path: Path, any_seed: int) -> None:
    """Closed, killed, not sealed; nested, flat, of many environments; tagged, evicted."""
    make(tmp_path / "store", kind, any_seed)
    compare(tmp_path / "store")
    for moment in range(MOMENTS):  # copies that were made while it was written
        with contextlib.suppress(db.CorruptionError):  # not all of them are of one instant
            db.ReplayBuffer(history(tmp_path / "store", moment), mode="r").close()
            compare(history(tmp_path / "store", moment))


def test_a_view_follows_its_writer(tmp_path: Path, experience: type[Experience], feeder: type[Feeder], any_seed: int) -> None:
    rng, world = np.random.default_rng(any_seed), experience(2)
    with world.open(tmp_path / "store", 200, segment_rows=16) as buffer:
        fed = feeder(world, buffer)
        view = StoreView(tmp_path / "store")
        assert view.writer is not None
        assert view.writer["pid"] == os.getpid()
        assert not view.refresh()
        for _ in range(12):
            before = buffer.episodes
            fed.add(int(rng.integers(1, 60)))
            if rng.random() < 0.4:
                over = buffer.episodes[buffer.episodes.ending != "running"]
                buffer.tag("some", over.start[rng.random(len(over)) < 0.5])
            if rng.random() < 0.2:
                buffer.seal()
            assert view.refresh()
            assert len(view.episodes()) == len(buffer.episodes)
            assert view.episodes().tag.tolist() == buffer.episodes.tag.tolist()
            np.testing.assert_array_equal(view.episodes().returns, buffer.episodes.returns)
            steps = buffer.steps()
            for stream in range(2):
                positions = steps[steps % 2 == stream] // 2
                np.testing.assert_array_equal(view.read("obs", steps[steps % 2 == stream]), world.frames(stream, positions))
            gone = np.setdiff1d(before.start, buffer.episodes.start)
            if len(gone) and (gone // 2 < view.lows[gone % 2]).any():
                with pytest.raises(db.EvictedError, match="was evicted"):
                    view.read("obs", gone[gone // 2 < view.lows[gone % 2]])
    assert view.writer is None


def test_a_store_that_is_replaced_or_removed(tmp_path: Path, experience: type[Experience], feeder: type[Feeder]) -> None:
    world = experience()
    for name, steps in (("store", 30), ("other", 50)):
        with world.open(tmp_path / name) as buffer:
            feeder(world, buffer).add(steps)
    view = StoreView(tmp_path / "store")
    assert view.steps == 30
    (tmp_path / "store").rename(tmp_path / "away")
    (tmp_path / "other").rename(tmp_path / "store")
    assert view.refresh()
    assert view.steps == 50
    shutil.rmtree(tmp_path / "store")
    with pytest.raises(db.NotAStoreError):
        view.refresh()


def test_rows_that_are_not_there(tmp_path: Path, experience: type[Experience], feeder: type[Feeder]) -> None:
    world = experience()
    with world.open(tmp_path / "store") as buffer:
        feeder(world, buffer).add(30)
    view = StoreView(tmp_path / "store")
    for steps in ([-1], [view.heads[0] + 1], [2**62]):
        with pytest.raises(db.InputError, match="has no row"):
            view.read("obs", steps)
    with pytest.raises(db.InputError, match="there is no column 'nothing'; there are obs"):
        view.read("nothing", [0])
    assert view.read("obs", []).shape == (0, 34, 33)


def test_looking_imports_neither_numba_nor_torch(tmp_path: Path) -> None:
    path = unpack("closed", tmp_path)
    done = subprocess.run([sys.executable, "-c", WITHOUT, str(path)], capture_output=True, text=True, check=False)
    assert (done.stdout.strip(), done.stderr) == ("", "")
