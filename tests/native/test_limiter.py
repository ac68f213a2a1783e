"""The rule of a limiter against plain integers, and counting by several processes at once."""

from __future__ import annotations

import multiprocessing
from multiprocessing.shared_memory import SharedMemory

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from diskbuffer.limiting import fields
from diskbuffer.native import limiter as rule
from diskbuffer.native.arrays import address_of
from tests.amounts import examples

Int64 = npt.NDArray[np.int64]


def table_of(ratio: float, min_size: int, bound: float, samples: tuple[int, int], writers: list[tuple[int, int]]) -> Int64:
    words = np.zeros(fields.WORDS, np.int64)
    words[[fields.RATIO, fields.BOUND]] = np.array([ratio, bound]).view(np.int64)
    words[fields.MIN_SIZE], words[fields.ROWS] = min_size, len(writers)
    words[[fields.SAMPLES, fields.SAMPLES_BEFORE]] = samples
    rows = words[fields.HEAD :].reshape(fields.MOST, fields.ROW)
    rows[:, fields.ADDED] = -7  # of others than these writers, it does not count
    for number, (added, before) in enumerate(writers):
        rows[number, [fields.ADDED, fields.BEFORE]] = added, before
    return words


counts = st.integers(0, 10_000)


@examples(50, 5000)
@given(
    ratio=st.floats(0.01, 100),
    min_size=counts,
    bound=st.floats(0, 1000),
    samples=st.tuples(counts, counts),
    writers=st.lists(st.tuples(counts, counts), max_size=4),
)
def test_the_rule_is_that_of_the_documentation(
    ratio: float, min_size: int, bound: float, samples: tuple[int, int], writers: list[tuple[int, int]]
) -> None:
    words = table_of(ratio, min_size, bound, samples, writers)
    added, before = sum(writer[0] for writer in writers), sum(writer[1] for writer in writers)
    due = ratio * (added - max(before, min_size)) - (samples[0] - samples[1])
    address = address_of(words)
    assert rule.inserts(address) == (added, before)
    assert rule.surplus(address) == due
    assert rule.may_add(address) == (due <= bound)
    assert rule.may_sample(address) == (added >= min_size and due >= -bound)


def test_what_is_noted_lies_where_others_read_it() -> None:
    words = table_of(1.0, 1, 0.0, (5, 0), [(1, 0), (2, 0)])
    rows = words[fields.HEAD :].reshape(fields.MOST, fields.ROW)
    rows[1, fields.LOST] = 100
    rule.note_added(address_of(words), 1, 7, 99)
    rule.note_sampled(address_of(words), 3, 98)
    assert rows[:2, [fields.ADDED, fields.ADDED_AT]].tolist() == [[1, 0], [107, 99]]
    assert words[[fields.SAMPLES, fields.SAMPLED_AT]].tolist() == [8, 98]


@pytest.mark.parametrize("writer", [-1, fields.MOST])
def test_a_writer_that_has_no_row_is_refused(writer: int) -> None:
    words = table_of(1.0, 1, 0.0, (0, 0), [])
    with pytest.raises(ValueError, match=f"number of a writer, found {writer}"):
        rule.note_added(address_of(words), writer, 1, 1)


def test_a_damaged_table_has_some_number_of_inserts() -> None:
    words = table_of(1.0, 1, 0.0, (-(2**63), 2**63 - 1), [(2**62, -(2**63))] * 3)
    words[fields.ROWS] = 2**40  # more than there are
    rule.may_sample(address_of(words))
    assert rule.inserts(address_of(words))[0] == 3 * 2**62 - 7 * (fields.MOST - 3) - 2**64


def count_samples(name: str, times: int) -> None:
    shared = SharedMemory(name)
    words: Int64 = np.ndarray(fields.WORDS, np.int64, shared.buf)
    for _ in range(times):
        rule.note_sampled(address_of(words), 1, 0)
    del words
    shared.close()


def test_no_sample_is_lost_where_processes_count_at_once() -> None:
    shared, times = SharedMemory(create=True, size=8 * fields.WORDS), 20_000
    try:
        spawned = multiprocessing.get_context("fork")
        processes = [spawned.Process(target=count_samples, args=(shared.name, times)) for _ in range(3)]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        words: Int64 = np.ndarray(fields.WORDS, np.int64, shared.buf)
        counted = int(words[fields.SAMPLES])
        del words
        assert counted == len(processes) * times
    finally:
        shared.close()
        shared.unlink()
