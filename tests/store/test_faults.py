"""Faults between two writes: what was acknowledged stays, and writing goes on."""

from __future__ import annotations

import errno
import itertools
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import diskbuffer as db
from diskbuffer.store.system.files import Files
from tests.support.experience import Experience, Feeder

COLUMNS = {"obs": db.Column((40, 40), "uint8"), "action": db.Column((), "int64")}


def frames(first: int, n: int) -> np.ndarray:
    noise = np.random.default_rng(first).integers(0, 256, (n, 40, 40), dtype=np.uint8)  # incompressible: fills the shards
    noise[:, 0, 0] = np.arange(first, first + n) % 251
    return noise


def fail_to_write(
    monkeypatch: pytest.MonkeyPatch, after: int, calls: Iterator[int], *, lasting: bool = False, takes_effect: bool = False
) -> None:
    """Have the disk be full at the write after so many others, and at all later ones if that is `lasting`."""
    real = Files.pwrite

    def pwrite(self: Files, fd: int, data: Any, offset: int) -> None:
        call = next(calls)
        fails = call == after or (lasting and call > after)
        if takes_effect or not fails:
            real(self, fd, data, offset)
        if fails:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Files, "pwrite", pwrite)


def check(buffer: db.ReplayBuffer, given: list[np.ndarray]) -> None:
    index = buffer._reader.index
    _, positions, *_ = index.locate(np.arange(len(buffer)))
    batch = buffer.at(positions)
    pairs = [(run[t], run[t + 1]) for run in given for t in range(len(run) - 1)]
    assert len(pairs) == len(buffer)
    for t, (obs, next_obs) in enumerate(pairs):
        assert (batch["obs"][t].numpy() == obs).all(), t
        assert (batch["next_obs"][t].numpy() == next_obs).all(), t


@pytest.mark.some(1)
@pytest.mark.parametrize("takes_effect", [False, True])
@pytest.mark.parametrize("lasting", [False, True])
def test_an_extend_that_fails_as_it_begins_a_segment_raises_that_error_and_can_be_made_again(
    lasting: bool, takes_effect: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, amount: Callable[[int, int], int]
) -> None:
    given, failed = frames(0, 80), 0
    every = amount(16, 4)
    for after in itertools.count(0, every):
        buffer, calls = db.ReplayBuffer(tmp_path / f"{after}", columns=COLUMNS, segment_rows=16), itertools.count()
        buffer.extend(obs=given[:16], action=np.zeros(15), reward=np.zeros(15))

        fail_to_write(monkeypatch, after, calls, lasting=lasting, takes_effect=takes_effect)
        error = None
        try:
            buffer.extend(obs=given[15:], action=np.zeros(64), reward=np.zeros(64))
        except OSError as caught:
            error = caught
        monkeypatch.undo()
        done = len(buffer)
        assert error is not None or done == 79
        assert error is None or error.errno == errno.ENOSPC, after
        check(buffer, [given[: done + 1]])
        buffer.extend(obs=given[done:], action=np.zeros(79 - done), reward=np.zeros(79 - done))
        check(buffer, [given])
        buffer.close()
        with db.ReplayBuffer(tmp_path / f"{after}") as again:
            check(again, [given])
        if error is None:
            break
        failed += 1
    assert failed > 20 // every


def test_an_extend_that_fails_after_a_cut_off_and_is_made_again_starts_one_episode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, amount: Callable[[int, int], int]
) -> None:
    """Whatever was committed before the error, the cut is forgotten with the first rows behind it, and not before."""
    given, lengths = frames(0, 80), set()
    for after in itertools.count(0, amount(12, 3)):
        buffer, calls = db.ReplayBuffer(tmp_path / f"{after}", columns=COLUMNS, segment_rows=16), itertools.count()
        buffer.extend(obs=given[:11], action=np.zeros(10), reward=np.zeros(10))
        buffer.cut_off()

        fail_to_write(monkeypatch, after, calls)
        failed = False
        try:
            buffer.extend(obs=given[10:], action=np.zeros(69), reward=np.zeros(69))
        except OSError:
            failed = True
        monkeypatch.undo()
        done = len(buffer)
        lengths.add(done - 10)
        buffer.extend(obs=given[done:], action=np.zeros(79 - done), reward=np.zeros(79 - done))
        assert buffer.episodes.length.tolist() == [10, 69], after
        check(buffer, [given[:11], given[10:]])
        buffer.close()
        if not failed and next(calls) <= after:  # it never failed, in no thread
            break
    assert len(lengths) > 2, lengths


@pytest.mark.some(2)
@pytest.mark.parametrize("after", [0, 1, 2, 3])
def test_an_extend_that_fails_half_way_leaves_the_steps_that_were_committed_by_then(
    after: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    buffer = db.ReplayBuffer(tmp_path / "store", columns=COLUMNS, segment_rows=1024)
    first, failed, then = frames(0, 12), frames(1000, 901), frames(5000, 700)
    buffer.extend(obs=first, action=np.zeros(11), reward=np.zeros(11))
    fail_to_write(monkeypatch, after, itertools.count(), lasting=True)
    with pytest.raises(OSError, match="No space left"):
        buffer.extend(obs=failed, action=np.zeros(900), reward=np.zeros(900))
    monkeypatch.undo()
    committed = failed[: len(buffer) - 11 + 1]
    check(buffer, [first, committed])
    for t in range(699):
        buffer.add(then[t], 0, 0.0, then[t + 1], False, False)
    check(buffer, [first, committed, then])
    buffer.close()
    with db.ReplayBuffer(tmp_path / "store") as again:
        check(again, [first, committed, then])


def test_a_kill_between_a_sealing_rename_and_its_note_does_not_matter(tmp_path: Path) -> None:
    given = frames(0, 75)
    with db.ReplayBuffer(tmp_path / "store", columns=COLUMNS, segment_rows=64) as buffer:
        buffer.extend(obs=given, action=np.zeros(74), reward=np.zeros(74))
        buffer.flush(recompress=True)
        slot = int(buffer._reader.index.slots(0)[0])
        assert buffer._store.verification.is_sealed(slot)
        buffer._store.table.unseal(slot)
    with db.ReplayBuffer(tmp_path / "store") as again:
        check(again, [given])
        again.flush(recompress=True)
        assert again._store.verification.is_sealed(slot)
        check(again, [given])


def test_temporary_files_that_a_kill_left_are_removed(tmp_path: Path) -> None:
    world = Experience(2, 20)
    with world.open(tmp_path / "store") as buffer:
        Feeder(world, buffer).add(30)
    directories = [path.parent for path in (tmp_path / "store").rglob("zarr.json") if "_tail" not in path.parts]
    arrays = [path for path in directories if 'node_type": "array' in (path / "zarr.json").read_text()]
    strays = [path / "zarr.json.0123abcd.tmp" for path in [tmp_path / "store", *arrays]]
    strays.append(tmp_path / "store" / "obs" / "c.0.0.0.new.tmp")
    for stray in strays:
        stray.write_bytes(b"half")
    with db.ReplayBuffer(tmp_path / "store", mode="r"):
        assert all(stray.exists() for stray in strays)  # a reader leaves them to the writer, whose they may be
    with world.open(tmp_path / "store") as buffer:
        assert not any(stray.exists() for stray in strays)
        world.check(buffer)


@pytest.mark.parametrize("name", ["pwrite", "posix_fallocate", "fsync"])
def test_an_error_of_the_disk_names_the_file(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    columns = {"obs": db.Column(()), "action": db.Column(())}
    with db.ReplayBuffer(tmp_path / "store", columns=columns) as buffer:
        buffer.extend(obs=np.zeros(9), action=np.zeros(8), reward=np.zeros(8))
        with monkeypatch.context() as patch:
            patch.setattr(os, name, fail)
            with pytest.raises(db.errors.DiskFullError, match=f"the disk is full: no room for {tmp_path}/store/"):
                buffer.columns.write("value", [0], np.ones(1))


def test_a_copy_with_holes_has_its_space_before_it_is_written_to(tmp_path: Path) -> None:
    """Or a store through a map to a hole, on a disk that is full, would end the process (SIGBUS)."""
    with db.ReplayBuffer(tmp_path / "store", columns=COLUMNS, segment_rows=1024) as buffer:
        buffer.add(np.ones((40, 40), np.uint8), 1, 0.0, np.ones((40, 40), np.uint8), False, False)
    subprocess.run(["cp", "-r", "--sparse=always", tmp_path / "store", tmp_path / "copy"], check=True)
    written = [*(tmp_path / "copy" / "action").glob("c.*"), *(tmp_path / "copy" / "_segments" / "stream").glob("c.*")]
    assert any(file.stat().st_blocks * 512 < file.stat().st_size for file in written)
    with db.ReplayBuffer(tmp_path / "copy"):
        assert all(file.stat().st_blocks * 512 >= file.stat().st_size for file in written)


@pytest.mark.nightly
def test_many_environments_with_pictures_need_few_descriptors(tmp_path: Path) -> None:
    program = (
        "import resource, sys, numpy as np, diskbuffer as db\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200))\n"
        "columns = {f'obs/{k}': db.Column((34, 33), 'uint8') for k in 'abc'} | {'action': db.Column((), 'int64')}\n"
        "with db.ReplayBuffer(sys.argv[1], columns=columns, n_envs=96, autoreset='disabled', segment_rows=8) as buffer:\n"
        "    frames, zeros = {k: np.ones((96, 34, 33), np.uint8) for k in 'abc'}, np.zeros(96)\n"
        "    for _ in range(20):\n"
        "        buffer.add(frames, zeros.astype(int), zeros, frames, zeros > 0, zeros > 0)\n"
        "    assert len(buffer) == 1920\n"
    )
    subprocess.run([sys.executable, "-c", program, tmp_path / "store"], check=True)
