"""Threads that gather a share of a batch: with any number of callers, called before or not, and until they are closed."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import diskbuffer as db
from diskbuffer.samplers.draws import Steps

STEPS = 400
FRAMES = np.random.default_rng(0).integers(0, 9, (STEPS + 1, 40, 40), np.uint8)
NAME = "diskbuffer-gather"


@pytest.fixture
def buffer(tmp_path: Path) -> Iterator[db.ReplayBuffer]:
    with db.ReplayBuffer(tmp_path / "store", STEPS, columns={"obs": db.Column((40, 40), "uint8")}, chunk_rows=4) as made:
        made.extend(obs=FRAMES, reward=np.zeros(STEPS))
        yield made


def gathers(buffer: db.ReplayBuffer, seed: int, threads: int) -> bool:
    """Gather a batch, in so many threads; return whether it is what was recorded."""
    rng, reader = np.random.default_rng(seed), buffer._reader
    steps = rng.integers(0, STEPS, int(rng.integers(1, 80)))
    if seed % 2:
        reader.gatherer.call_threads()
    planned = reader.plan(reader.draw_named(steps), Steps(None), reader.pool.take)
    planned.submit(threads - 1)
    arrays = planned.wait()
    batch = arrays.batch()
    same = bool((batch["obs"].numpy() == FRAMES[steps]).all() and (batch["next_obs"].numpy() == FRAMES[steps + 1]).all())
    del batch
    reader.pool.give(arrays)
    return same


def threads() -> int:
    return sum(thread.name == NAME for thread in threading.enumerate())


def test_any_number_of_callers_gather_at_once(buffer: db.ReplayBuffer) -> None:
    with ThreadPoolExecutor(5) as pool:
        assert all(pool.map(lambda seed: gathers(buffer, seed, 1 + seed % 4), range(300)))


def test_threads_are_kept_for_the_next_batch_and_end_when_they_are_closed(buffer: db.ReplayBuffer) -> None:
    before = threads()
    for seed in range(20):
        assert gathers(buffer, seed, 3)
    assert threads() == before + 2
    ending = [thread for thread in threading.enumerate() if thread.name == NAME]
    buffer._reader.gatherer.close()
    for thread in ending[-2:]:
        thread.join(60)
    assert threads() <= before
    assert gathers(buffer, 1, 2)  # by a thread that goes on; it ends after that


def test_damage_is_found_whoever_finds_it(buffer: db.ReplayBuffer) -> None:
    buffer.flush(recompress=True)
    root = buffer._store.files.root
    path = root / buffer._store.layout.data_file("obs", 0)
    with db.ReplayBuffer(root, mode="r") as other:
        reader = other._reader
        assert gathers(other, 0, 1)
        with path.open("r+b") as file:
            file.seek(20)
            byte = file.read(1)
            file.seek(20)
            file.write(bytes([byte[0] ^ 1]))
        for more in (0, 1, 3):
            planned = reader.plan(reader.draw_named(np.arange(STEPS)), Steps(None), reader.pool.take)
            planned.submit(more)
            with pytest.raises(db.CorruptionError, match="chunk 0: its checksum does not match"):
                planned.wait()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_the_child_of_a_fork_has_threads_of_its_own(buffer: db.ReplayBuffer) -> None:
    assert gathers(buffer, 0, 3)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            status = int(not (gathers(buffer, 2, 3) and threads() == 2))
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
