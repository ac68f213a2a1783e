"""What vouches for what: rows, entries of the table, files, attributes; and what opening makes of how a store was left."""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import diskbuffer as db
from diskbuffer.store import directory
from diskbuffer.store.format import checksums, codec
from diskbuffer.store.last_writer import LastShutdown, State
from diskbuffer.store.system.files import Files
from tests.amounts import examples
from tests.support.experience import Experience, Feeder, heads_of
from tests.support.specimens import copy_while_open, flip
from tests.support.writers import Writers

WORDS = st.integers(-(2**63), 2**63 - 1)


# Checksums


@examples(50, 1000)
@given(st.integers(0, 70_000), st.integers(0, 63), st.integers(0, 2**32 - 1))
def test_a_checksum_from_compiled_code_is_that_of_the_library(size: int, at: int, before: int) -> None:
    import google_crc32c

    array = np.random.default_rng(size).integers(0, 256, at + size + 1, np.uint8)
    expected = google_crc32c.extend(before, array[at : at + size].tobytes())
    assert codec.checksum(array[at : at + size], before) == expected


@examples(50, 1000)
@given(st.lists(WORDS, min_size=1, max_size=5), st.integers(0, 4), WORDS)
def test_another_number_makes_another_hash(fields: list[int], which: int, other: int) -> None:
    changed = [*fields]
    changed[which % len(fields)] = other
    same = checksums.fold(*(np.int64(f) for f in fields)) == checksums.fold(*(np.int64(f) for f in changed))
    assert bool(same[0]) == (changed == fields)


@examples(50, 1000)
@given(st.lists(WORDS, min_size=1, max_size=5))
def test_numbers_are_folded_one_by_one_as_all_at_once(fields: list[int]) -> None:
    assert checksums.fold(*fields)[0] == checksums.fold(*([field] for field in fields))[0]


@examples(50, 1000)
@given(WORDS, st.integers(0, 2**31 - 1), st.booleans(), st.integers(0, 63))
def test_a_word_of_a_length_is_another_once_a_bit_flips(seed: int, rows: int, no_reset: bool, bit: int) -> None:
    one = np.array([checksums.length_word(seed, rows, no_reset)], np.int64).view(np.uint64)
    assert int(one[0]) & 0xFFFFFFFF == rows
    assert int(one[0]) >> 32 & 1 == (no_reset and rows > 0)
    words = np.array([one[0], one[0] ^ np.uint64(1 << bit)])
    assert checksums.are_length_words(np.array([seed]).view(np.uint64), words).tolist() == [True, False]


# Opening


@pytest.fixture
def killed(tmp_path: Path, writers: Writers) -> tuple[Experience, Path, Any]:
    """Make a store that a killed process left; return its world, its path, and the heads that were acknowledged."""
    world = Experience(2)
    writers.start(tmp_path / "store", world, "add", segment_rows=32, steps=70)
    writers.wait_for(70)
    return world, tmp_path / "store", writers.kill()


def of_another_boot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Files, "boot_id", lambda self: "another")


def test_the_fate_of_the_last_writer_is_known(killed: tuple[Experience, Path, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    _, path, _ = killed
    files = Files(path)

    def last_shutdown() -> LastShutdown:
        state = State.read(files, directory.read_metadata(path)[0])
        assert state is not None
        return state.last_shutdown(files)

    assert last_shutdown() is LastShutdown.KILLED
    with monkeypatch.context() as elsewhere:
        of_another_boot(elsewhere)
        assert last_shutdown() is LastShutdown.POWER_LOSS
    db.ReplayBuffer(path).close()
    assert last_shutdown() is LastShutdown.CLEAN
    of_another_boot(monkeypatch)
    assert last_shutdown() is LastShutdown.CLEAN


def test_a_column_that_a_power_loss_took_back_is_empty_when_it_is_made_again(tmp_path: Path) -> None:
    world, path = Experience(1), tmp_path / "store"
    with world.open(path, segment_rows=32) as buffer:
        Feeder(world, buffer).add(100)
        steps = buffer.steps()
    tails = [str(file.relative_to(path)) for file in path.glob("_segments/length/tail.*")]
    names = ("zarr.json", "_segments/length/group.json", "_segments/length/state.json", *tails)
    before = {name: (path / name).read_bytes() for name in names}
    with db.ReplayBuffer(path) as buffer:
        buffer.columns.write("value", steps, np.ones(len(steps), np.float32))
    for name in names:
        (path / name).write_bytes(before[name])
    with db.ReplayBuffer(path) as buffer:
        buffer.columns.write("value", steps[:1], np.full(1, 2, np.float32))
        assert buffer.at(steps)["value"].tolist() == [2.0, *[0.0] * (len(steps) - 1)]
    assert db.check(path, progress=False).ok


def test_a_column_written_later_is_whole_after_a_power_loss_that_took_its_last_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = Experience(1)
    with world.open(tmp_path / "store", segment_rows=32) as buffer:
        feed = Feeder(world, buffer)
        feed.add(40)
        buffer.flush()
        feed.add(10)
        steps = buffer.steps()
        buffer.columns.write("value", steps, (steps + 1).astype(np.float32))
        copy_while_open(tmp_path / "store", tmp_path / "copy")
        head, slot = int(heads_of(buffer)[0]), int(buffer._reader.index.slots(0)[-1])
    flip(tmp_path / "copy" / "action" / f"c.{slot}", 8 * (head % 32 - 2))
    of_another_boot(monkeypatch)
    for _ in range(2):
        with db.ReplayBuffer(tmp_path / "copy") as copy:
            left = copy.steps()
            assert len(left) < len(steps)
            assert (copy.at(left)["value"].numpy() == left + 1).all()
            assert copy.check(progress=False).ok


def test_a_copy_of_a_store_that_is_open_keeps_what_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = Experience(2, 20, (40, 40))
    with world.open(tmp_path / "store", segment_rows=32) as buffer:
        Feeder(world, buffer).add(100)
        buffer.flush(recompress=True)
        copy_while_open(tmp_path / "store", tmp_path / "copy")
        of_another_boot(monkeypatch)  # on another machine
        with db.ReplayBuffer(tmp_path / "copy") as copy:
            assert world.check(copy) == len(buffer)
        with db.ReplayBuffer(tmp_path / "copy", mode="r") as copy:
            assert world.check(copy) == len(buffer)


# The group's attributes, and files


def test_damaged_attributes_are_restored_from_their_copy(
    killed: tuple[Experience, Path, Any],
) -> None:
    world, path, _ = killed
    db.ReplayBuffer(path).close()
    text = (path / "zarr.json").read_text()
    (path / "zarr.json").write_text(text.replace('"frame_stack": 1', '"frame_stack": 3'))
    for mode in ("r", "a"):
        with pytest.raises(db.CorruptionError, match="checksum"):
            db.ReplayBuffer(path, mode=mode)
    assert not db.check(path, progress=False).ok
    assert db.check(path, repair=True, progress=False).repaired
    assert db.check(path, progress=False).ok
    with db.ReplayBuffer(path) as buffer:
        world.check(buffer)
        assert buffer.frame_stack == 1


def test_a_sealed_file_that_was_swapped_is_found_when_it_is_mapped(tmp_path: Path) -> None:
    world = Experience(1, 20, (40, 40))
    with world.open(tmp_path / "store", segment_rows=16) as buffer:
        Feeder(world, buffer).add(100)
        buffer.flush(recompress=True)
    for column in ("obs", "action"):
        first, second = sorted((tmp_path / "store" / column).glob("c.*"))[1:3]
        one, two = first.read_bytes(), second.read_bytes()
        first.write_bytes(two)
        second.write_bytes(one)
        found = pytest.raises(db.CorruptionError, match=rf"{column}.*rows \d+ to \d+ of stream 0.*checksum")
        with db.ReplayBuffer(tmp_path / "store", mode="r") as reader, found:
            world.check(reader)
        first.write_bytes(one)
        second.write_bytes(two)
    with db.ReplayBuffer(tmp_path / "store", mode="r") as reader:
        world.check(reader)


def test_a_file_of_a_written_column_that_is_gone_is_no_column_of_zeros(tmp_path: Path) -> None:
    world = Experience(1, 20, (40, 40))
    with world.open(tmp_path / "store", segment_rows=16) as buffer:
        Feeder(world, buffer).add(60)
        buffer.columns.write("value", np.arange(5), np.ones(5, np.float32))
    next((tmp_path / "store" / "value").glob("c.*")).unlink()
    with db.ReplayBuffer(tmp_path / "store") as buffer, pytest.raises(db.CorruptionError, match=r"value.*missing"):
        buffer.at(np.arange(5))


def test_who_writes_to_a_store_that_is_elsewhere_by_now_is_told_and_leaves_what_came_in_its_place(tmp_path: Path) -> None:
    old, new, path = Experience(1, 20, (40, 40)), Experience(1, 30, (40, 40)), tmp_path / "store"
    buffer = old.open(path, segment_rows=32)
    feed = Feeder(old, buffer)
    feed.add(40)
    path.rename(tmp_path / "elsewhere")
    with new.open(path, segment_rows=32) as other:
        Feeder(new, other).add(100)
        with pytest.raises(db.errors.NotAStoreError, match="moved, removed or replaced"):
            feed.add(100)
        for call in (buffer.flush, buffer.close):
            with pytest.raises(db.errors.NotAStoreError, match="moved, removed or replaced"):
                call()
        new.check(other)
    assert db.check(path, progress=False).ok
    with db.ReplayBuffer(path) as other:
        assert new.check(other) == 100
    with db.ReplayBuffer(tmp_path / "elsewhere") as found:
        assert old.check(found) >= 40


@pytest.mark.parametrize("mode", ["a", "r"])
def test_of_a_store_that_is_elsewhere_by_now_nothing_is_said_by_looking_at_another(mode: Any, tmp_path: Path) -> None:
    path, columns = tmp_path / "store", {"obs": db.Column(), "action": db.Column()}
    writer = db.ReplayBuffer(path, columns=columns)
    writer.copies.mark("mine")
    if mode == "r":
        writer.close()
    buffer = writer if mode == "a" else db.ReplayBuffer(path, mode="r")
    marked = db.ReplayBuffer(path, mode="r", mark="mine")
    path.rename(tmp_path / "elsewhere")
    with db.ReplayBuffer(path, columns=columns) as other:
        other.copies.mark("anothers")
        for one in (buffer, marked):
            assert one.copies.marks == ("mine",)
            with pytest.raises(db.errors.NotAStoreError, match="moved, removed or replaced since it was opened"):
                one.check(progress=False)
    with contextlib.suppress(db.errors.NotAStoreError):
        buffer.close()


def test_without_descriptors_a_store_is_not_said_to_be_moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    columns = {"obs": db.Column(), "action": db.Column()}

    def none_left(*_: object, **__: object) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with db.ReplayBuffer(tmp_path / "store", columns=columns, segment_rows=16) as buffer:
        with monkeypatch.context() as patch:
            patch.setattr(os, "open", none_left)
            for call in (lambda: buffer.extend(obs=np.zeros(41), action=np.zeros(40), reward=np.zeros(40)), buffer.flush):
                with pytest.raises(OSError, match="Too many open files"):
                    call()
        there = len(buffer)
        buffer.extend(obs=np.zeros(41), action=np.zeros(40), reward=np.zeros(40))
        buffer.flush()
        assert len(buffer) == there + 40
