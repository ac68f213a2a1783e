"""Native calls that take long look for signals, and stop between two blocks."""

from __future__ import annotations

import mmap
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

import numpy as np
import pytest

import diskbuffer as db
from diskbuffer.native.arrays import address_of
from diskbuffer.native.checksums import crc32c
from diskbuffer.native.transforms import interleave, transform_pictures

Interrupt = Callable[..., float]


@pytest.fixture
def interrupted() -> Iterator[Interrupt]:
    """Return what calls a function, has SIGINT come after seconds of work, and returns after how many it raised."""

    def strike(number: int, frame: FrameType | None) -> None:
        signal.raise_signal(signal.SIGINT)

    def interrupt(call: Callable[[], object], after: float = 0.02) -> float:
        began = time.process_time()
        signal.setitimer(signal.ITIMER_PROF, after)
        with pytest.raises(KeyboardInterrupt):
            call()
        return time.process_time() - began

    before = signal.signal(signal.SIGPROF, strike)
    try:
        yield interrupt
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def test_the_checksum_of_a_file_stops(interrupted: Interrupt) -> None:
    size = 1 << 36
    with mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000, prot=mmap.PROT_READ) as zeros:  # MAP_NORESERVE
        address = address_of(np.frombuffer(zeros, np.uint8))
        began = time.process_time()
        half = crc32c(0, address, size >> 5)
        seconds = 32 * (time.process_time() - began)
        assert interrupted(lambda: crc32c(0, address, size)) < seconds / 4
        joined = 0
        for part in range(8):
            joined = crc32c(joined, address + part * (size >> 8), size >> 8)
        assert joined == half


def test_pictures_are_made_small_until_a_signal_comes(interrupted: Interrupt) -> None:
    pictures = np.random.default_rng(0).integers(0, 256, (1500, 210, 160, 3), np.uint8)
    results, whole, which = np.zeros((1500, 84, 84, 1), np.uint8), np.zeros((1500, 84, 84, 1), np.uint8), np.full(1500, -1)
    which[700:] = np.arange(800)  # another one's, and so transformed
    interrupted(lambda: transform_pictures(pictures, results, which, pictures, results, True))
    assert not results[-1].any()
    assert transform_pictures(pictures, whole, which, pictures, whole, True) == 1500
    for n in (0, 700, 1499):
        one = np.zeros((1, 84, 84, 1), np.uint8)
        transform_pictures(pictures[n : n + 1], one, np.array([-1]), pictures, whole, True)
        assert (one[0] == whole[n]).all()


def test_stacks_are_turned_until_a_signal_comes(interrupted: Interrupt) -> None:
    stacks = np.broadcast_to(np.arange(1, 4, dtype=np.uint8)[:, None, None], (20_000, 3, 84 * 84, 1)).copy()
    turned = np.zeros((20_000, 84 * 84, 3, 1), np.uint8)
    interrupted(lambda: interleave(stacks, turned))
    assert not turned[-1].any()
    interleave(stacks, turned)
    assert (turned[:, :, :, 0] == [1, 2, 3]).all()


@pytest.mark.parametrize("threads", [1, 2])
def test_a_huge_batch_is_gathered_until_a_signal_comes(threads: int, tmp_path: Path, interrupted: Interrupt) -> None:
    rng, n = np.random.default_rng(0), 400
    columns = {"obs": db.Column((84, 84), "uint8"), "action": db.Column((), "int64")}
    frames = np.repeat(rng.integers(0, 256, (n + 1, 84, 42), np.uint8), 2, axis=2)
    with db.ReplayBuffer(tmp_path / "store", columns=columns, threads=threads) as buffer:
        buffer.extend(obs=frames, action=np.arange(n), reward=np.zeros(n))
        steps = np.sort(rng.integers(0, n, 40_000))
        began = time.process_time()
        whole = buffer.at(steps)
        seconds = time.process_time() - began
        assert (whole["obs"].numpy()[::997] == frames[steps[::997]]).all()
        assert (whole["next_obs"].numpy()[::997] == frames[steps[::997] + 1]).all()
        # The next one is gathered into new memory, too, which takes most of the time.
        assert interrupted(lambda: buffer.at(steps), 0.3 * seconds) < 0.7 * seconds
        again = buffer.at(steps)
        assert (again["action"].numpy() == steps).all()
        assert (again["next_obs"].numpy()[-1] == frames[steps[-1] + 1]).all()
