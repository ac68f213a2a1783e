"""The store's lock is held for microseconds: what takes the disk's time is done without it."""

from __future__ import annotations

import gc
import itertools
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import diskbuffer as db
from diskbuffer.store.store import Store
from diskbuffer.store.system.files import Files
from tests.support.experience import Experience, Feeder


def hold_a_sync(
    monkeypatch: pytest.MonkeyPatch, is_it: Callable[[str], bool], nth: int = 1
) -> tuple[threading.Event, threading.Event]:
    """Hold the nth sync of which that is so, by the name of its file, from now on; return (it is there, let it on)."""
    there, on, real, calls = threading.Event(), threading.Event(), Files.sync, itertools.count(1)

    def sync(self: Files, name: str) -> None:
        if is_it(name) and next(calls) == nth:
            there.set()
            assert on.wait(60)
        real(self, name)

    monkeypatch.setattr(Files, "sync", sync)
    return there, on


def by_the_flush(_: str) -> bool:
    return threading.current_thread().name == "flushing"


def beside(buffer: db.ReplayBuffer, held: threading.Event, call: Callable[[], Any], act: Callable[[], Any]) -> None:
    """Call in a thread, and act as soon as that is held somewhere, which a lock that it holds would keep from ending."""
    failed: list[BaseException] = []

    def run() -> None:
        try:
            call()
        except BaseException as error:  # noqa: BLE001
            failed.append(error)

    calling = threading.Thread(target=run, name="flushing")
    calling.start()
    assert held.wait(60)
    acting = threading.Thread(target=act)
    acting.start()
    acting.join(60)
    assert not acting.is_alive(), "waits for a lock that is held while the disk is waited for"
    calling.join(60)
    assert not calling.is_alive()
    assert failed == []


@pytest.mark.some(2)
@pytest.mark.parametrize("nth", [1, 5, 9, 14, 20])
def test_others_add_and_sample_while_flush_syncs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nth: int) -> None:
    world = Experience(2)
    with world.open(tmp_path / "store", 500, segment_rows=64) as buffer:
        adding = Feeder(world, buffer)
        adding.add(100)
        buffer.columns.write("value", buffer.steps()[:50], np.ones(50))

        def act() -> None:
            adding.add(300)
            world.check_batch(buffer.sample(64))
            buffer.columns.write("value", buffer.steps()[-50:], np.ones(50))
            assert len(buffer) >= 500
            done.set()

        there, done = hold_a_sync(monkeypatch, by_the_flush, nth)
        beside(buffer, there, buffer.flush, act)
        buffer.flush()
        world.check(buffer)
    report = db.check(tmp_path / "store", progress=False)
    assert report.problems == []
    with world.open(tmp_path / "store") as buffer:
        world.check(buffer)


def test_others_sample_while_the_next_segment_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which syncs that values written for the slot's former rows are gone: they could come back with a power loss."""
    world = Experience(1)
    with world.open(tmp_path / "store", 1000, segment_rows=512) as buffer:
        adding = Feeder(world, buffer)
        adding.extend(0, 100)
        buffer.columns.write("value", buffer.steps(), np.ones(100))
        world.check_batch(buffer.sample(64))

        there, done = hold_a_sync(monkeypatch, lambda name: name == "value")

        def act() -> None:
            world.check_batch(buffer.sample(64))
            done.set()

        beside(buffer, there, lambda: adding.add(350), act)  # half of the segment is full on the way
        adding.add(100)
        world.check(buffer)


def test_others_add_while_stats_walks_the_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world, real, there, done = Experience(1), Store.disk_bytes, threading.Event(), threading.Event()
    with world.open(tmp_path / "store", segment_rows=64) as buffer:
        adding = Feeder(world, buffer)
        adding.add(10)

        def walk(self: Store) -> int:
            there.set()
            assert done.wait(60)
            return real(self)

        def act() -> None:
            adding.add(5)
            done.set()

        monkeypatch.setattr(Store, "disk_bytes", walk)
        beside(buffer, there, buffer.stats, act)


def test_stats_beside_marks_that_come_and_go(tmp_path: Path, amount: Callable[[int, int], int]) -> None:
    world, stopped = Experience(1), threading.Event()
    with world.open(tmp_path / "store", segment_rows=16) as buffer:
        Feeder(world, buffer).add(100)

        def mark() -> None:
            while not stopped.is_set():
                buffer.copies.mark("one", replace=True)
                buffer.copies.remove("one")

        marking = threading.Thread(target=mark)
        marking.start()
        try:
            for _ in range(amount(40, 300)):
                assert buffer.stats()["disk_bytes"] > 0
        finally:
            stopped.set()
            marking.join()


def test_a_flush_that_is_under_way_does_not_open_what_is_closed_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or a store that was closed would count as one whose writer was killed."""
    world = Experience(1)
    buffer = world.open(tmp_path / "store", segment_rows=64)
    Feeder(world, buffer).add(100)
    there, on = hold_a_sync(monkeypatch, by_the_flush)
    flushing = threading.Thread(target=buffer.flush, name="flushing")
    flushing.start()
    assert there.wait(60)
    closing = threading.Thread(target=buffer.close)
    closing.start()
    closing.join(0.5)
    on.set()
    flushing.join(60)
    closing.join(60)
    monkeypatch.undo()
    with db.ReplayBuffer(tmp_path / "store", mode="r") as reader:
        assert reader._store.durability.state is not None
        assert reader._store.durability.state.clean
        world.check(reader)


def test_a_column_that_is_removed_while_flush_syncs_does_not_disturb_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = Experience(1)
    with world.open(tmp_path / "store", segment_rows=64) as buffer:
        Feeder(world, buffer).add(200)
        buffer.columns.write("value", buffer.steps(), np.ones(len(buffer)))

        def act() -> None:
            buffer.columns.remove("value")
            done.set()

        there, done = hold_a_sync(monkeypatch, by_the_flush)
        beside(buffer, there, buffer.flush, act)


def test_a_flush_that_comes_after_close_says_so_and_changes_nothing(tmp_path: Path) -> None:
    world = Experience(1)
    for _ in range(10):
        buffer = world.open(tmp_path / "store", segment_rows=64)
        Feeder(world, buffer).add(5)
        failed: list[BaseException] = []

        def flush(buffer: db.ReplayBuffer = buffer, failed: list[BaseException] = failed) -> None:
            try:
                while True:
                    buffer.flush()
            except db.errors.ClosedError:
                pass
            except BaseException as error:  # noqa: BLE001
                failed.append(error)

        threads = [threading.Thread(target=flush) for _ in range(2)]
        for thread in threads:
            thread.start()
        buffer.close()
        for thread in threads:
            thread.join(60)
        assert failed == []
        with db.ReplayBuffer(tmp_path / "store", mode="r") as reader:
            assert reader._store.durability.state is not None
            assert reader._store.durability.state.clean


@pytest.mark.nightly
def test_a_buffer_that_is_dropped_while_its_lock_is_held_is_closed_elsewhere(tmp_path: Path) -> None:
    """As by the garbage collector, in a thread that the sealing thread waits for."""
    columns = {"obs": db.Column((2,), "float32"), "action": db.Column((), "int64")}
    buffer = db.ReplayBuffer(tmp_path / "store", 40, columns=columns, segment_rows=8)
    buffer.extend(np.zeros((301, 2), np.float32), np.zeros(300, int), np.zeros(300))
    store = buffer._store
    with store.lock:
        del buffer
        for n in range(20):
            gc.collect(n % 3)
    for thread in threading.enumerate():
        if thread.name == "diskbuffer-close":
            thread.join(60)
    with db.ReplayBuffer(tmp_path / "store") as again:
        assert len(again) >= 40
