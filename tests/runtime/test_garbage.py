"""Buffers that the garbage collector finds are closed wherever it runs, and waited for where somebody needs that."""

from __future__ import annotations

import gc
from concurrent.futures import thread
from pathlib import Path

import numpy as np

import diskbuffer as db
from diskbuffer.runtime import garbage

COLUMNS = {"obs": db.Column((2,), "float32"), "action": db.Column((), "int64")}


def dropped(path: Path) -> None:
    """Leave a buffer to the collector."""
    buffer = db.ReplayBuffer(path, 40, columns=COLUMNS, segment_rows=8)
    buffer.extend(np.zeros((301, 2), np.float32), np.zeros(300, int), np.zeros(300))
    ring: list[object] = [buffer]
    ring.append(ring)


def test_a_buffer_that_is_collected_while_a_lock_of_the_interpreter_is_held_is_closed(tmp_path: Path) -> None:
    """As inside of `ThreadPoolExecutor.submit`, which closing calls, too."""
    dropped(tmp_path / "store")
    with thread._global_shutdown_lock:
        gc.collect()
        assert garbage._running
    with db.ReplayBuffer(tmp_path / "store") as again:
        assert len(again) >= 40


def test_opening_waits_for_one_that_was_collected_and_is_being_closed(tmp_path: Path) -> None:
    for _ in range(10):
        dropped(tmp_path / "store")
        gc.collect()
    assert garbage.wait_for_dropped(10)
    assert not garbage.wait_for_dropped()
