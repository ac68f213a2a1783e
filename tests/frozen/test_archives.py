"""Stores that an earlier version wrote, gone on with by the version at hand; `test_frozen` reads them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import diskbuffer as db
from diskbuffer.store.system.files import Files
from diskbuffer.store.system.writer_lock import WriterLock
from tests.frozen.archives import ARCHIVES, BOOT, HERE, unpack
from tests.frozen.batches import looked_up
from tests.frozen.digests import digest_of
from tests.frozen.stores import trajectory
from tests.support.workloads import boot

DAMAGED = {"obs/c.0.0.0", "action/c.3", "value/c.1"}


def told(buffer: db.ReplayBuffer) -> str:
    return digest_of(value for _, value in looked_up(buffer))


def require_ok(report: db.Report) -> None:
    assert report.ok, str(report)


def go_on(path: Path) -> None:
    """Record one more episode, and see that it is there beside the others."""
    with db.ReplayBuffer(path, mode="r", threads=1) as reader:
        before, added = told(reader), reader.counts()[1].sum()
    with db.ReplayBuffer(path, mode="r+", threads=1) as buffer:
        assert told(buffer) == before
        require_ok(buffer.check(progress=False))
    with db.ReplayBuffer(path, mode="r+", threads=1) as buffer:  # which nothing was done to
        assert told(buffer) == before
        buffer.cut_off()
        columns = {name: one for name, one in buffer.columns.items() if name.split("/")[0] in ("obs", "action")}
        extra = {name: one for name, one in buffer.columns.items() if name == "log_prob"}
        given = trajectory(columns, 6, 1, extra=extra)
        assert buffer.extend(**given, terminated=np.arange(6) == 5, env=0, new_episode=True) == 6
        assert buffer.counts()[1].sum() == added + 6
        batch = buffer.at(buffer.steps(np.arange(6)[::-1]))
        for name in ("action", "reward"):
            np.testing.assert_array_equal(batch[name], given[name])
        buffer.flush(recompress=True)
    require_ok(db.check(path, progress=False))


@pytest.mark.some(3)
@pytest.mark.parametrize("number", [BOOT, BOOT + 1], ids=["the same boot", "another boot"])
@pytest.mark.parametrize("name", [name for name in ARCHIVES if name != "damaged"])
def test_a_store_of_an_earlier_version_is_written_to(name: str, number: int, tmp_path: Path) -> None:
    path = unpack(name, tmp_path)
    with boot(number):
        require_ok(db.check(path, progress=False))
        go_on(path)
        for mark in db.ReplayBuffer(path, mode="r").copies.marks:
            with db.ReplayBuffer(path, mode="r+", mark=mark, threads=1) as buffer:
                require_ok(buffer.check(progress=False))


def test_a_store_is_read_beside_a_writer_that_lives(tmp_path: Path) -> None:
    path = unpack("live", tmp_path)
    with boot(BOOT), db.ReplayBuffer(path, mode="r", threads=1) as reader:
        expected = told(reader)
        lock = WriterLock(Files(path))
        try:
            with db.ReplayBuffer(path, mode="r", threads=1) as beside:
                assert told(beside) == expected
                require_ok(beside.check(progress=False))
            with pytest.raises(db.LockedError):
                db.ReplayBuffer(path, mode="r+")
        finally:
            lock.release()


def test_what_is_damaged_is_found_and_the_rest_is_kept(tmp_path: Path) -> None:
    whole, path = unpack("damaged", tmp_path / "repaired"), unpack("damaged", tmp_path)
    assert {str(problem.path.relative_to(path)) for problem in db.check(path, progress=False).problems} == DAMAGED
    assert db.check(whole, repair=True, progress=False).repaired
    require_ok(db.check(whole, progress=False))
    names = ["obs", "action", "reward"]  # a repair gives values that were written later, and damaged, up
    with db.ReplayBuffer(path, mode="r", threads=1) as reader, db.ReplayBuffer(whole, mode="r", threads=1) as repaired:
        kept, lost = repaired.steps().tolist(), []
        for step in reader.steps().tolist():
            try:
                found = reader.at([step], columns=names)
            except db.CorruptionError:
                lost.append(step)
                continue
            if step in kept:
                assert digest_of([found]) == digest_of([repaired.at([step], columns=names)])
        assert lost
        assert set(reader.steps().tolist()) - set(kept) <= set(lost)
    go_on(whole)


def test_every_archive_is_read_and_all_are_small() -> None:
    files = list(HERE.glob("*.tar.xz"))
    assert {file.name for file in files} == {f"{name}.tar.xz" for name in ARCHIVES}
    assert sum(file.stat().st_size for file in files) < 200_000
