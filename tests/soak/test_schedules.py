"""Threads run in an order that a seed tells, so that a race that was found can be had again."""

from __future__ import annotations

import itertools
import os
import threading
from pathlib import Path

import pytest

from diskbuffer.store.system.files import Files
from soak import schedules
from soak.schedules import DeadlockError, Schedule


@pytest.mark.nightly
def test_the_same_seed_gives_the_same_order_and_another_one_another() -> None:
    seed = int.from_bytes(os.urandom(2), "little")
    runs = [schedules.ordered(one) for one in (seed, seed, seed + 1)]
    assert [wrong for wrong, _, _ in runs] == ["", "", ""], f"seed {seed}"
    assert runs[0] == runs[1], f"seed {seed}"
    assert runs[0] != runs[2], f"seed {seed}"
    assert runs[0][2] > 200


def test_threads_of_the_library_take_turns(tmp_path: Path) -> None:
    with Schedule(0) as schedule:
        schedules.together(tmp_path / "store", 0, schedule)
    names = [place.split(":")[0] for place in schedule.order]
    assert {"main", "sample", "flush", "diskbuffer-seal"} <= set(names)
    turns = sum(a != b for a, b in itertools.pairwise(names))
    assert turns > 150


def lost_updates(seed: int, path: Path) -> int:
    """Count up in three threads, a look at a file between reading and writing; return how many counts were lost."""
    count = 0

    def work() -> None:
        nonlocal count
        for _ in range(5):
            seen = count
            Files(path).exists("nothing")
            count = seen + 1

    with Schedule(seed):
        threads = [threading.Thread(target=work, name=name) for name in "abc"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return 15 - count


def test_a_race_is_found_and_had_again_with_its_seed(tmp_path: Path) -> None:
    found = {seed: lost_updates(seed, tmp_path) for seed in range(10)}
    assert any(found.values())
    assert len(set(found.values())) > 1
    assert {seed: lost_updates(seed, tmp_path) for seed in range(10)} == found


def embrace(seed: int) -> str:
    """Take two locks in both orders; tell what came of it."""
    with Schedule(seed, 0.5):
        locks = threading.Lock(), threading.Lock()

        def take(*both: threading.Lock) -> None:
            with both[0], both[1]:
                pass

        thread = threading.Thread(target=take, args=locks[::-1], daemon=True)
        thread.start()
        try:
            take(*locks)
            thread.join()
        except DeadlockError as error:
            return str(error)[:23]
    return "fine"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_threads_that_wait_for_each_other_are_told() -> None:
    found = [embrace(seed) for seed in range(40)]
    assert "fine" in found
    assert set(found) - {"fine"}
    assert [embrace(seed) for seed in range(40)] == found


def test_waits_time_out_at_a_time_of_the_schedules_own() -> None:
    with Schedule(3) as schedule:
        condition = threading.Condition()
        with condition:
            assert not condition.wait_for(lambda: False, timeout=3600.0)
        event = threading.Event()
        assert not event.wait(3600.0)
        event.set()
        assert event.wait()
        assert schedule.clock() > 8000
