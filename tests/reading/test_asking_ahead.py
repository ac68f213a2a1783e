"""Pages are asked for ahead of reading as long as the disk is waited for; with counters of our own."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import diskbuffer as db
from diskbuffer.native.jobs import Job, join_pages
from diskbuffer.reading import batch_reader
from diskbuffer.reading.gather import gatherer

PAGE = 4096


class Disk:
    """Tell what jobs have waited for: pages that are not in memory are read when asked for, or else when touched."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_cold, self.counts_pages, self.asked, disk = True, True, 0, self

        class Counted(Job):
            asks = False

            def submit(self, *how: Any) -> None:
                self.asks = how[-1] > 0
                disk.asked += self.asks
                super().submit(*how)

            def run(self, scratch: Any, page_bytes: int = -1) -> bool:
                self.asks = page_bytes > 0
                disk.asked += self.asks
                return super().run(scratch, page_bytes)

            @property
            def waits(self) -> int:
                return 1000 if disk.is_cold and (disk.counts_pages or not self.asks) else 0

        monkeypatch.setattr(batch_reader, "Job", Counted)
        monkeypatch.setattr(gatherer, "Job", Counted)
        faults = itertools.count(0, 1000)
        monkeypatch.setattr(gatherer, "_major_faults", lambda: next(faults) if disk.is_cold else 0)

    def sample(self, buffer: db.ReplayBuffer, batches: int, how: str = "sample") -> int:
        """Sample; return for how many batches pages were asked for."""
        before = self.asked
        loop = iter(buffer.loader(8)) if how == "loader" else iter(lambda: buffer.sample(8), None)
        for _ in range(batches):
            next(loop)
        return self.asked - before


@pytest.fixture
def buffer(tmp_path: Path) -> Any:
    with db.ReplayBuffer(tmp_path / "store", 100, columns={"obs": db.Column((64, 64), "uint8")}, chunk_rows=4) as made:
        made.extend(obs=np.zeros((51, 64, 64), np.uint8), reward=np.zeros(50))
        yield made


@pytest.mark.parametrize("how", ["sample", "loader"])
def test_a_store_on_the_disk_is_asked_for_with_every_batch(buffer: Any, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk(monkeypatch)
    assert disk.sample(buffer, 100, how) >= 100


@pytest.mark.parametrize("how", ["sample", "loader"])
def test_a_store_in_memory_is_not_asked_for_until_it_leaves_it(buffer: Any, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk(monkeypatch)
    disk.is_cold = False
    assert disk.sample(buffer, 100, how) <= 2 * gatherer._LOOK  # some were begun before
    assert disk.sample(buffer, 100, how) == 0
    disk.is_cold = True
    assert disk.sample(buffer, 100, how) >= 100 - gatherer._LOOK


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
    assert (join_pages(memory, PAGE) // PAGE).tolist() == [list(stretch) for stretch in stretches]
