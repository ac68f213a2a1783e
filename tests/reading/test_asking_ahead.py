"""Pages are asked for ahead of reading as long as the disk is waited for; with counters of our own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import diskbuffer as db
from diskbuffer.native import gather
from diskbuffer.reading.gather import gatherer

PAGE = 4096


class Disk:
    """Count what a store's batches wait for: pages that are not in memory are read when asked for, or else when touched."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_cold, self.counts_pages = True, True
        self.asked = self.pages = self.faults = 0
        self.is_asked = False  # for what is read next
        monkeypatch.setattr(gather, "request_pages", self.ask)
        monkeypatch.setattr(gatherer, "_pages_read", lambda: self.pages)
        monkeypatch.setattr(gatherer, "_major_faults", lambda: self.faults)
        for read in (gather.gather, gather.gather_random):
            monkeypatch.setattr(gather, read.__name__, lambda *args, read=read: self.fault(read, *args))

    def fault(self, read: Callable[..., Any], *args: Any) -> Any:
        self.faults += 1000 * (self.is_cold and not self.is_asked)
        self.is_asked = False
        return read(*args)

    def ask(self, *_: Any) -> None:
        self.asked, self.is_asked = self.asked + 1, True
        if self.is_cold and self.counts_pages:
            self.pages += 1000

    def sample(self, buffer: db.ReplayBuffer, batches: int) -> int:
        """Sample; return for how many batches pages were asked for."""
        before = self.asked
        for _ in range(batches):
            buffer.sample(8)
        return self.asked - before


@pytest.fixture
def buffer(tmp_path: Path) -> Any:
    with db.ReplayBuffer(tmp_path / "store", 100, columns={"obs": db.Column((64, 64), "uint8")}) as made:
        made.extend(obs=np.zeros((51, 64, 64), np.uint8), reward=np.zeros(50))
        yield made


def test_a_store_on_the_disk_is_asked_for_with_every_batch(buffer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk(monkeypatch)
    assert disk.sample(buffer, 100) == 100


def test_a_store_in_memory_is_not_asked_for_until_it_leaves_it(buffer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk(monkeypatch)
    disk.is_cold = False
    assert disk.sample(buffer, 100) <= gatherer._LOOK
    assert disk.sample(buffer, 100) == 0
    disk.is_cold = True
    assert disk.sample(buffer, 100) >= 100 - gatherer._LOOK


def test_where_the_system_does_not_count_reading_faults_tell(buffer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk(monkeypatch)
    disk.counts_pages = False
    assert 85 <= disk.sample(buffer, 100) < 100


@pytest.mark.parametrize(
    ("pieces", "stretches"),
    [
        ([], []),
        ([(10, 5, 20), (10, 100, PAGE), (12, 0, 1), (13, PAGE - 1, 2)], [(10, 15)]),
        ([(10, 0, 1), (12, 0, 1), (9, 0, 8), (10, 0, 1)], [(10, 11), (12, 13), (9, 11)]),
        ([(3, 0, 0)], []),
    ],
)
def test_pages_that_follow_each_other_are_asked_for_at_once(
    pieces: list[tuple[int, int, int]], stretches: list[tuple[int, int]]
) -> None:
    memory = np.array([(page * PAGE + byte, size) for page, byte, size in pieces], np.int64).reshape(-1, 2)
    assert (gather.join_pages(memory, PAGE) // PAGE).tolist() == [list(stretch) for stretch in stretches]
