"""Batches that threads gather while their caller does something else, and what is made of the rows, against plain numpy."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from diskbuffer.native import jobs
from diskbuffer.reading.gather import structs
from diskbuffer.store.format.codec import BAD_CHECKSUM, HEADER
from tests.amounts import examples
from tests.native.test_gather import PACKED, Bytes, World, scratch

THREADS = 2
NUMBERS = ["i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8"]


@pytest.fixture(scope="module")
def crew() -> Iterator[jobs.Crew]:
    made = jobs.Crew()
    threads = [threading.Thread(target=made.serve, daemon=True) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    yield made
    made.end()
    for thread in threads:
        thread.join()


class Planned:
    """A job of a world, of windows around drawn steps in several shares, and what it should give."""

    def __init__(self, seed: int, shares: int = 2, n: int = 30) -> None:
        rng = np.random.default_rng(seed)
        self.world, self.job, self.largest = World(rng), jobs.Job(), 0
        self.batches, self.expected = list[list[Bytes]](), list[list[Bytes]]()
        world, self.largest = self.world, self.world.chunk_rows * self.world.row_bytes[PACKED]
        for _ in range(shares):
            drawn, before, zeros = world.draw(int(rng.integers(n))), int(rng.integers(4)), bool(rng.integers(2))
            rows = before + int(rng.integers(1, 9))
            batch = [np.full((drawn.shape[1], rows, row_bytes), 9, np.uint8) for row_bytes in world.row_bytes]
            self.batches.append(batch)
            self.expected.append([array.copy() for array in batch])
            world.expected(drawn, before, 0, rows, zeros, self.expected[-1])
            mapped = world.mapped if rng.random() < 0.7 else world.mapped[:, :0].copy()
            targets = world.targets(batch, 0, rows, zeros)
            how = (*drawn, before, rows, world.segment_rows, 0, world.lanes)
            complete = self.job.plan(world.table, mapped, targets, *how)
            assert complete is not None
            if not complete:
                assert set(self.job.files().tolist()) <= set(range(world.n_files))
                assert self.job.find_sources(world.mapped)

    def is_right(self) -> bool:
        pairs = zip(self.batches, self.expected, strict=True)
        return all((one == other).all() for batch, expected in pairs for one, other in zip(batch, expected, strict=True))


@given(seed=st.integers(0, 2**32), parts=st.integers(1, 9), threads=st.integers(0, 2))
@examples(40, 1_000)
def test_batches_are_windows_of_the_environments_rows(crew: jobs.Crew, seed: int, parts: int, threads: int) -> None:
    several = [Planned(seed + n, shares=1 + (seed + n) % 3) for n in range(4)]
    for n, planned in enumerate(several):
        planned.job.submit(crew, planned.largest, parts, threads, urgent=n == 2, page_bytes=4096 * (n % 2))
    for planned in several:
        while not planned.job.wait(scratch(planned.world), 0.01):
            pass
        assert planned.job.is_over
        assert planned.job.damage is None
        assert planned.is_right()


def test_threads_gather_while_nobody_waits(crew: jobs.Crew) -> None:
    planned = Planned(5)
    crew.call(1)
    planned.job.submit(crew, planned.largest, 4, 1)
    while not planned.job.is_over:
        pass
    assert planned.is_right()


def test_a_job_that_is_left_is_gathered_no_more(crew: jobs.Crew) -> None:
    several = [Planned(seed, n=200) for seed in range(20)]
    for planned in several:
        planned.job.submit(crew, planned.largest, 16, THREADS)
    for planned in several:
        del planned.job  # no thread has it once this returns
        before = [array.copy() for batch in planned.batches for array in batch]
        assert all((a == b).all() for a, b in zip(before, (array for batch in planned.batches for array in batch), strict=True))


def test_a_job_that_is_collected_as_garbage_is_gathered_no_more(crew: jobs.Crew) -> None:
    for seed in range(20):
        planned = Planned(seed, n=200)
        planned.job.submit(crew, planned.largest, 16, THREADS * (seed % 2))
        cycle: list[Any] = [planned.job]
        cycle.append(cycle)
        del planned.job, cycle
        gc.collect()
        before = [array.copy() for batch in planned.batches for array in batch]
        assert all((a == b).all() for a, b in zip(before, (array for batch in planned.batches for array in batch), strict=True))
    test_threads_gather_while_nobody_waits(crew)  # nothing of them is left in the queue


def test_a_damaged_chunk_is_named_by_its_share(crew: jobs.Crew) -> None:
    hits = 0
    for seed in range(20):
        planned = Planned(seed)
        for (file, _, _), (at, _) in planned.world.shards.items():
            planned.world.files[PACKED][file][at + HEADER] ^= 1
        planned.job.submit(crew, planned.largest, 3, THREADS)
        while not planned.job.wait(scratch(planned.world), 0.01):
            pass
        if planned.job.damage is not None:
            share, reason, target, run, chunk = planned.job.damage
            hits += 1
            assert (reason, target) == (BAD_CHECKSUM, PACKED)
            assert share in (0, 1)
            assert (run[structs.FILE], run[structs.LANE], chunk) in planned.world.shards
    assert hits > 5


def test_a_fork_gathers_anew_what_was_under_way(crew: jobs.Crew) -> None:
    planned = Planned(3, n=100)
    planned.job.submit(crew, planned.largest, 16, THREADS)
    child = os.fork()
    if child == 0:
        try:
            crew.renew()
            planned.job.submit(crew, planned.largest, 16, THREADS)
            is_right = planned.job.wait(scratch(planned.world), 0.0) and planned.is_right()
            del planned.job
            os._exit(0 if is_right else 1)
        finally:
            os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    while not planned.job.wait(scratch(planned.world), 0.01):
        pass
    assert planned.is_right()


def finished(crew: jobs.Crew, what: str, out: npt.NDArray[Any], samples: int, rows: int, **fields: Any) -> None:
    """Do one thing as a job of nothing else does it."""
    finishes, job = jobs.Finishes(), jobs.Job()
    finishes.add(what, out, samples, rows, **fields)
    job.finish(finishes)
    job.submit(crew, 0, 1, 0)
    assert job.is_over


@given(seed=st.integers(0, 2**32), rows=st.integers(1, 6), name=st.sampled_from(NUMBERS), inner=st.integers(1, 3))
@examples(60, 2_000)
def test_sums_of_rewards(crew: jobs.Crew, seed: int, rows: int, name: str, inner: int) -> None:
    rng, n = np.random.default_rng(seed), 7
    dtype, out_dtype = np.dtype(name), np.dtype(name if name.startswith("f") else "f4")
    values: npt.NDArray[Any] = (rng.normal(size=(n, rows, inner)) * 100).astype(dtype)
    end, factors = rng.integers(1, rows + 3, n), np.multiply.accumulate(np.append(1.0, np.full(rows, 0.9)))
    out = np.zeros((n, inner), out_dtype)
    how = {"number": name, "rounded": out_dtype.str[1:], "row_bytes": inner * dtype.itemsize}
    finished(crew, "sum", out, n, rows, source=values, end=end, factors=factors, **how)
    expected = np.zeros((n, inner))
    for row in range(rows):
        expected += np.where((row < end)[:, None], values[:, row].astype(np.float64) * factors[row], 0.0)
    assert (out == expected.astype(out_dtype)).all()


def test_every_float16_is_read_and_written_as_numpy_does(crew: jobs.Crew) -> None:
    halves = np.arange(2**16, dtype=np.uint16).view(np.float16).reshape(-1, 1, 1)
    factors, wide = np.array([1.0, 1.0]), np.zeros(len(halves))
    common: dict[str, Any] = {"factors": factors, "end": np.ones(len(halves), np.int64), "row_bytes": 2}
    finished(crew, "sum", wide, len(halves), 1, source=halves, number="f2", rounded="f8", **common)
    np.testing.assert_array_equal(wide, halves.ravel().astype(np.float64))
    with np.errstate(over="ignore"):
        between = np.concatenate([wide, wide * (1 + 2**-11), wide * (1 + 2**-12), np.nextafter(wide, np.inf), wide * 3])
        expected = between.astype(np.float16)
    back = np.zeros(len(between), np.float16)
    common |= {"end": np.ones(len(between), np.int64), "row_bytes": 8}
    finished(crew, "sum", back, len(between), 1, source=between, number="f8", rounded="f2", **common)
    np.testing.assert_array_equal(back, expected)


@given(seed=st.integers(0, 2**32), rows=st.integers(1, 6), row_bytes=st.integers(1, 9), extra=st.integers(0, 4))
@examples(40, 1_000)
def test_rows_that_are_steps(crew: jobs.Crew, seed: int, rows: int, row_bytes: int, extra: int) -> None:
    rng, n = np.random.default_rng(seed), 9
    begin, end = rng.integers(-3, rows, n), rng.integers(1, rows + 3, n)
    values, time = rng.integers(0, 256, (n, rows + extra, row_bytes), np.uint8), np.arange(rows)
    common: dict[str, Any] = {"begin": begin, "end": end, "row_bytes": row_bytes}
    out = values.copy()
    finished(crew, "zeros", out, n, rows + extra, extra=extra, **common)
    there = np.arange(rows + extra)
    expected = (there >= begin[:, None]) & (there < np.maximum(end + extra, np.clip(begin, 0, None))[:, None])
    assert (out == np.where(expected[:, :, None], values, 0)).all()
    mask = np.ones((n, rows), np.bool_)
    finished(crew, "mask", mask, n, rows, **common)
    assert (mask == ((time >= begin[:, None]) & (time < end[:, None]))).all()
    whole, one = np.ascontiguousarray(values[:, :rows]), np.zeros((n, row_bytes), np.uint8)
    finished(crew, "first", one, n, rows, source=whole, **common)
    assert (one == whole[:, 0]).all()
    finished(crew, "last", one, n, rows, source=whole, **common)
    assert (one == whole[np.arange(n), np.minimum(end, rows) - 1]).all()
    flags, discounts = rng.random(n) < 0.5, np.zeros(n, np.float32)
    factors = rng.random(rows + 1)
    finished(crew, "discount", discounts, n, rows, source=flags, factors=factors, **common)
    assert (discounts == np.where(flags, 0, factors[np.minimum(end, rows)]).astype(np.float32)).all()
    these, others = rng.random((n, rows)) < 0.5, rng.random((n, rows)) < 0.5
    left = these.copy()
    finished(crew, "unset", left, n, rows, source=others)
    assert (left == (these & ~others)).all()


def test_what_does_not_fit_together_is_refused(crew: jobs.Crew) -> None:
    planned = Planned(1)
    with pytest.raises(ValueError, match="handed over"):
        planned.job.wait(scratch(planned.world), 0.0)
    planned.job.submit(crew, planned.largest, 1, 0)
    with pytest.raises(ValueError, match="handed over already"):
        planned.job.submit(crew, planned.largest, 1, 0)
    with pytest.raises(ValueError, match="room for two chunks"):
        planned.job.wait(np.zeros((1, planned.largest), np.uint8), 0.0)
    with pytest.raises(ValueError, match="contiguous"):
        jobs.Finishes().add("mask", np.zeros((4, 4))[:, :2], 4, 2)
    drawn = planned.world.draw(5)
    drawn[1, 3] = planned.world.lows[drawn[0, 3]] - 1
    targets = planned.world.targets([np.zeros((5, 1, n), np.uint8) for n in planned.world.row_bytes], 0, 1, zeros=False)
    assert planned.world.job(drawn, 0, 1, targets) is None  # a step is gone
    with pytest.raises(ValueError, match="expected targets"):
        planned.world.job(drawn, 0, 1, targets[..., :-1].copy())
