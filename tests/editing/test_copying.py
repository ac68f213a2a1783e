"""Copies have all that a user sees of the steps that are kept, however often they were interrupted."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import diskbuffer as db
from diskbuffer import editing
from diskbuffer.columns.columns import Columns
from diskbuffer.episodes import Episodes
from diskbuffer.plugin import Reader, read_info
from diskbuffer.recording.recorder import Recorder
from tests.amounts import examples
from tests.editing import stores

SEEDS = st.integers(0, 10**6)


def copy_interrupted(random: np.random.Generator, *arguments: Any, **options: Any) -> None:
    """Copy a store, with interruptions between any two additions to it, blocks of it being a few rows."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("diskbuffer.formats.rows.BLOCK", int(random.integers(1, 20)) * 1300)
        patched.setattr("diskbuffer.formats.blocks.MOST_ROWS", int(random.integers(1, 40)))
        left = 0

        def counted(function: Any) -> Any:
            def call(*given: Any, **named: Any) -> Any:
                nonlocal left
                left -= 1
                if left < 0:
                    raise KeyboardInterrupt
                return function(*given, **named)

            return call

        patched.setattr(Recorder, "extend", counted(Recorder.extend))
        for of, name in ((Columns, "write"), (Episodes, "set_tag"), (db.ReplayBuffer, "flush")):
            patched.setattr(of, name, counted(getattr(of, name)))
        for left in random.integers(0, 30, 3).tolist():  # noqa: B007  what `call` counts down
            with contextlib.suppress(KeyboardInterrupt):
                editing.copy(*arguments, **options)
                return
        left = 10**9
        editing.copy(*arguments, **options)


@pytest.mark.nightly
@examples(3, 25)
@given(seed=SEEDS, interrupted=st.booleans())
def test_a_copy_that_is_recorded_anew_shows_the_same(
    tmp_path_factory: pytest.TempPathFactory, seed: int, interrupted: bool
) -> None:
    path = tmp_path_factory.mktemp("stores")
    made = stores.make(path / "store", seed)
    before = stores.episodes(made.path)
    everything: dict[str, Any] = {"where": "length > 0", "progress": False}
    if not before:
        return
    if interrupted:
        copy_interrupted(np.random.default_rng(seed), made.path, path / "copy", **everything)
    else:
        editing.copy(made.path, path / "copy", **everything)
    stores.assert_same(stores.episodes(path / "copy"), before)
    assert stores.described(path / "copy") == stores.described(made.path)
    assert db.check(path / "copy", progress=False).ok
    assert sorted(file.name for file in path.iterdir()) == ["copy", "store"]
    if made.options["capacity"] is None:  # nothing was evicted, so that any stack shows the same steps
        for frames in (2, 5):
            stores.assert_same(stores.episodes(path / "copy", frame_stack=frames), stores.episodes(made.path, frame_stack=frames))


@examples(1, 15)
@given(seed=SEEDS, where=st.sampled_from(["length > 9", "tag == 'good' or stream == 1", "episode in (0, 2, 3)", "not whole"]))
def test_conditions_choose_episodes(tmp_path_factory: pytest.TempPathFactory, seed: int, where: str) -> None:
    path = tmp_path_factory.mktemp("stores")
    made = stores.make(path / "store", seed)
    every = stores.episodes(made.path)
    chosen = Reader(made.path).episodes().where(where).tolist()
    for target, condition, holds in (("some", where, True), ("others", f"not ({where})", False)):
        wanted = [one for one, held in zip(every, chosen, strict=True) if held == holds]
        if wanted:
            editing.copy(made.path, path / target, where=condition, progress=False)
            stores.assert_same(stores.episodes(path / target), wanted)
            assert db.check(path / target, progress=False).ok
        else:
            with pytest.raises(db.InputError, match="no such episode"):
                editing.copy(made.path, path / target, where=condition, progress=False)
            assert not (path / target).exists()


@pytest.mark.nightly
@examples(1, 15)
@given(seed=SEEDS, capacity=st.integers(8, 150), frames=st.sampled_from([None, 1, 2, 4]))
def test_a_smaller_capacity_keeps_the_newest_steps(
    tmp_path_factory: pytest.TempPathFactory, seed: int, capacity: int, frames: int | None
) -> None:
    """With both ways to have one: a snapshot that is resized, and a store that is recorded anew."""
    path = tmp_path_factory.mktemp("stores")
    made = stores.make(path / "store", seed, n_envs=1, capacity=None)
    every = stores.episodes(made.path, frame_stack=frames)
    if not every:
        return
    steps = sum(len(one["reward"]) for one in every)
    editing.copy(made.path, path / "linked", capacity=capacity, frame_stack=frames, progress=False)
    editing.copy(made.path, path / "anew", capacity=capacity, frame_stack=frames, where="length > 0", progress=False)
    for name in ("linked", "anew"):
        there = stores.episodes(path / name)
        kept = sum(len(one["reward"]) for one in there)
        assert kept >= min(capacity, steps)
        assert name == "linked" or kept == min(capacity, steps)
        newest = [dict(one) for one in every[len(every) - len(there) :]]
        gone = sum(len(one["reward"]) for one in newest) - kept
        for column, array in newest[0].items():
            if isinstance(array, np.ndarray):
                newest[0][column] = array[gone:]
        stores.assert_same(there, newest)
        assert stores.described(path / name)["capacity"] == capacity
        assert stores.described(path / name)["frame_stack"] == frames or made.options["frame_stack"]
        assert db.check(path / name, progress=False).ok


def test_environments_share_a_smaller_capacity_by_age(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    with db.ReplayBuffer(tmp_path / "store", columns=stores.COLUMNS["vectors"], n_envs=3, autoreset="next_step") as buffer:
        for env, steps in enumerate((50, 4, 30)):
            stores.add_episode(buffer, steps, random, "truncated", env)
    editing.copy(tmp_path / "store", tmp_path / "copy", capacity=25, where="length > 0", progress=False)
    assert sorted(len(one["reward"]) for one in stores.episodes(tmp_path / "copy")) == [4, 10, 11]


@pytest.mark.nightly
def test_a_copied_ring_goes_on_as_a_ring(tmp_path: Path) -> None:
    made = stores.make(tmp_path / "store", 2, columns=stores.COLUMNS["frames"], n_envs=1, capacity=None)
    with db.ReplayBuffer(made.path) as buffer:
        random = np.random.default_rng(0)
        for _ in range(30):
            stores.add_episode(buffer, 20, random, "truncated")
        buffer.resize(300)
    editing.copy(made.path, tmp_path / "copy", where="length > 0", progress=False)
    there = stores.episodes(tmp_path / "copy")
    stores.assert_same(there, stores.episodes(made.path))
    capacity = sum(len(one["reward"]) for one in there)
    assert capacity == 300
    with db.ReplayBuffer(tmp_path / "copy", autoreset="disabled") as buffer:
        assert buffer.capacity == capacity
        for _ in range(30):
            stores.add_episode(buffer, 20, random, "truncated")
            assert len(buffer) == capacity
    assert db.check(tmp_path / "copy", progress=False).ok


@pytest.mark.nightly
def test_a_copy_without_conditions_or_changes_shares_its_files(tmp_path: Path) -> None:
    made = stores.make(tmp_path / "store", 25, capacity=None, columns=stores.COLUMNS["frames"], segment_rows=8)
    with db.ReplayBuffer(made.path) as buffer:
        buffer.flush(recompress=True)
    editing.copy(made.path, tmp_path / "copy", progress=False)
    editing.copy(made.path, tmp_path / "resized", capacity=70, progress=False)
    editing.copy(made.path, tmp_path / "stacked", frame_stack=2, progress=False)
    stores.assert_same(stores.episodes(tmp_path / "copy"), stores.episodes(made.path))
    for name in ("copy", "resized"):
        shared = [file for file in (tmp_path / name).rglob("c.*") if os.stat(file).st_nlink > 1]
        assert shared
        with db.ReplayBuffer(tmp_path / name, mode="r") as buffer, db.ReplayBuffer(made.path, mode="r") as source:
            assert set(buffer.steps().tolist()) <= set(source.steps().tolist())
    assert stores.described(tmp_path / "stacked")["frame_stack"] == 2


@pytest.mark.nightly
def test_a_copy_is_as_compressed_as_a_sealed_store(tmp_path: Path) -> None:
    made = stores.make(tmp_path / "store", 3, capacity=None, columns=stores.COLUMNS["frames"], n_envs=1, segment_rows=8)
    with db.ReplayBuffer(made.path) as buffer:
        for _ in range(40):
            stores.add_episode(buffer, 20, np.random.default_rng(0), "truncated")
    editing.copy(made.path, tmp_path / "copy", where="length > 0", progress=False)
    with db.ReplayBuffer(tmp_path / "copy", mode="r") as buffer:
        complete = buffer.stats()["segments"] - 1
    editing.copy(tmp_path / "copy", tmp_path / "again", progress=False)  # which shares files that are sealed
    assert sum(os.stat(file).st_nlink > 1 for file in (tmp_path / "again" / "obs").rglob("c.*")) >= complete > 90


@pytest.mark.nightly
def test_a_copy_of_a_small_store_is_not_compressed_either(tmp_path: Path) -> None:
    with db.ReplayBuffer(tmp_path / "store", 500, columns={"obs": db.Column((64, 64), "uint8")}) as buffer:
        buffer.extend(obs=np.zeros((21, 64, 64)), reward=np.zeros(20))
    editing.copy(tmp_path / "store", tmp_path / "copy", where="length > 5", progress=False)
    made, copied = read_info(tmp_path / "store"), read_info(tmp_path / "copy")
    assert made.chunk_rows == copied.chunk_rows == {}
    assert made.segment_rows == copied.segment_rows


def test_columns_codecs_and_chunks_are_chosen(tmp_path: Path) -> None:
    made = stores.make(tmp_path / "store", 1, columns=stores.COLUMNS["dict"])
    options: dict[str, Any] = {"columns": ["obs/camera", "action"], "codec": {"obs/camera": "zstd:3"}, "chunk_rows": 8}
    editing.copy(made.path, tmp_path / "copy", **options, progress=False)
    with db.ReplayBuffer(tmp_path / "copy", mode="r", chunk_rows=8) as buffer:
        flags = {"reward", "terminated", "truncated", "is_last", "row_checksum", "tag"}
        assert set(buffer.columns) - flags == {"obs/camera", "action/grip", "action/move"}
        assert buffer.columns["obs/camera"].codec == "zstd:3"
    wanted = stores.episodes(made.path)
    for one in wanted:
        for gone in ("obs/arm%20joints", "priority", "advantage"):
            one.pop(gone, None)
    stores.assert_same(stores.episodes(tmp_path / "copy"), wanted)
    editing.copy(tmp_path / "copy", tmp_path / "again", where="length > 0", progress=False)
    assert stores.described(tmp_path / "again")["chunks_of"] == {"obs/camera": 8}
    with pytest.raises(db.errors.SchemaError, match="chunk_rows: stored 8, asked for 4"):
        db.ReplayBuffer(tmp_path / "again", chunk_rows=4)


def test_what_does_not_fit_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    made = stores.make(tmp_path / "store", 1, columns=stores.COLUMNS["dict"])
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "file").touch()
    wrong: list[tuple[str, dict[str, Any]]] = [
        ("no column 'obs/none'", {"columns": ["obs/none"]}),
        ("observations", {"columns": ["action"]}),
        ("a list of names", {"columns": "obs"}),
        ("no recorded column 'priority'", {"codec": {"priority": "lz4"}}),
        ("not compressed", {"codec": {"action/move": "lz4"}}),
        ("codec must be", {"codec": {"obs/camera": "zip"}}),
        ("chunk_rows must be 1, 2, 4 or 8", {"chunk_rows": 3}),
        ("capacity", {"capacity": 0}),
        ("frame_stack", {"frame_stack": 0}),
        ("no such episode", {"where": "length > 10000"}),
        ("lenght", {"where": "lenght > 1"}),
    ]
    for message, options in wrong:
        with pytest.raises(db.InputError, match=message):
            editing.copy(made.path, tmp_path / "copy", **options, progress=False)
    with pytest.raises(db.InputError, match="already"):
        editing.copy(made.path, tmp_path / "there", where="length > 0", progress=False)
    with pytest.raises(db.InputError, match="inside"):
        editing.copy(made.path, made.path / "copy", where="length > 0", progress=False)
    with pytest.raises(db.errors.NotAStoreError, match="no store"):
        editing.copy(tmp_path / "nothing", tmp_path / "copy", progress=False)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["store", "there"]


def test_a_copy_is_made_beside_a_writer(tmp_path: Path) -> None:
    """It has what was there when it began; an interrupted one does not go on where the writer has added since."""
    with db.ReplayBuffer(tmp_path / "store", columns=stores.COLUMNS["frames"], frame_stack=3) as buffer:
        random = np.random.default_rng(0)
        for n in range(6):
            stores.add_episode(buffer, 9, random, "running" if n == 5 else "truncated")
        before = stores.episodes(tmp_path / "store")
        editing.copy(tmp_path / "store", tmp_path / "copy", where="length > 0", progress=False)
        editing.copy(tmp_path / "store", tmp_path / "snapshot", progress=False)
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(db.ReplayBuffer, "flush", interrupted)
            with pytest.raises(KeyboardInterrupt):
                editing.copy(tmp_path / "store", tmp_path / "later", where="length > 0", progress=False)
        stores.add_episode(buffer, 9, random, "truncated")
        with pytest.raises(db.InputError, match="restart=True"):
            editing.copy(tmp_path / "store", tmp_path / "later", where="length > 0", progress=False)
        editing.copy(tmp_path / "store", tmp_path / "later", where="length > 0", restart=True, progress=False)
        after = stores.episodes(tmp_path / "store")
    assert len(after) == len(before) + 1
    for name, wanted in (("copy", before), ("snapshot", before), ("later", after)):
        stores.assert_same(stores.episodes(tmp_path / name), wanted)


@pytest.mark.nightly
def test_a_full_disk_is_told_and_leaves_nothing_at_the_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = stores.make(tmp_path / "store", 4, columns=stores.COLUMNS["frames"], n_envs=1)
    extend, left = Recorder.extend, 2

    def full(self: Recorder, *given: Any, **named: Any) -> int:
        nonlocal left
        left -= 1
        if left < 0:
            raise OSError(28, "No space left on device")
        return extend(self, *given, **named)

    with monkeypatch.context() as patched:
        patched.setattr(Recorder, "extend", full)
        with pytest.raises(OSError, match="No space left"):
            editing.copy(made.path, tmp_path / "copy", where="length > 0", progress=False)
    assert not (tmp_path / "copy").exists()
    editing.copy(made.path, tmp_path / "copy", where="length > 0", progress=False)
    stores.assert_same(stores.episodes(tmp_path / "copy"), stores.episodes(made.path))


def interrupted(*_: Any, **__: Any) -> None:
    raise KeyboardInterrupt
