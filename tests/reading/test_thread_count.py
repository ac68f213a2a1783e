"""How many threads are taken for a batch: by what batches took, with clocks of our own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from diskbuffer.reading.gather.thread_count import WORTH_A_THREAD, ThreadCount


def chosen(thread_count: ThreadCount, seconds: dict[int, float], batches: int) -> Counter[int]:
    found = Counter[int]()
    for _ in range(batches):
        threads = thread_count.choose()
        found[threads] += 1
        thread_count.note(threads, seconds[threads])
    return found


def test_a_batch_that_takes_no_time_is_gathered_by_its_caller_alone() -> None:
    assert chosen(ThreadCount(8), dict.fromkeys((1, 2, 4, 8), WORTH_A_THREAD / 2), 1000) == {1: 1000}


@pytest.mark.parametrize("best", [1, 2, 4, 6])
def test_as_many_threads_are_taken_as_are_fastest(best: int) -> None:
    seconds = {n: 0.01 if n == best else 0.02 * (1 + abs(n - best)) for n in (1, 2, 4, 6)}
    found = chosen(ThreadCount(6), seconds, 2000)
    assert found[best] > 1800
    assert found.total() == 2000


def test_what_is_fastest_may_change() -> None:
    thread_count = ThreadCount(2)
    assert chosen(thread_count, {1: 0.01, 2: 0.006}, 500)[2] > 450
    assert chosen(thread_count, {1: 0.01, 2: 0.03}, 500)[1] > 400  # another process is at the second core
    assert chosen(thread_count, {1: 0.01, 2: 0.006}, 2000)[2] > 1000


def test_one_batch_that_was_interrupted_says_little() -> None:
    thread_count = ThreadCount(2)
    chosen(thread_count, {1: 0.01, 2: 0.009}, 100)
    thread_count.note(1, 5.0)
    assert chosen(thread_count, {1: 0.01, 2: 0.02}, 400)[1] > 300


def test_another_thread_may_note_a_batch_while_the_best_is_looked_for() -> None:
    class Changing(list[float]):
        def __iter__(self) -> Iterator[float]:
            yield from [*super().__iter__()]
            self[0] *= 2

    thread_count = ThreadCount(4)
    for threads in (1, 2, 4):
        thread_count.note(threads, 1.0)
    thread_count._seconds = Changing(thread_count._seconds)
    thread_count.note(1, 0.5)
    assert thread_count.best == 1
