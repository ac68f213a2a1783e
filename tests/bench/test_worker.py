"""Workers of the benchmarks do what they are asked for in processes of their own, in turn, and tell when it fails."""

from __future__ import annotations

import pytest

from bench.measure import ratio
from bench.worker import FEW, Worker, WorkerError, in_turns


class Counter:
    """Counts so far, at each call."""

    def __init__(self, so_far: int) -> None:
        if so_far < 0:
            raise ValueError("it cannot be made")
        self._so_far = so_far

    def count(self) -> int:
        return sum(1 for _ in range(self._so_far))

    def fail(self) -> None:
        raise ValueError("it cannot be done")


def test_workers_take_turns_and_tell_of_failures() -> None:
    with Worker(Counter, 1_000) as one, Worker(Counter, 1_000_000) as slow, Worker(Counter, -1) as broken:
        times = in_turns({"one": one, "slow": slow}, "count", rounds=FEW + 2, calls=3)
        assert {name: len(taken) for name, taken in times.items()} == {"one": FEW + 2, "slow": FEW}
        assert ratio(times["slow"], times["one"]).low > 1
        with pytest.raises(WorkerError, match="it cannot be done"):
            one.ask("fail")
        assert one.ask("count") == 1_000  # and it goes on
        with pytest.raises(WorkerError, match="it cannot be made"):
            broken.ready()
