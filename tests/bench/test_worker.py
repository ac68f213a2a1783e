"""Workers of the benchmarks do what they are asked for in processes of their own, in turn, and tell when it fails."""

from __future__ import annotations

import pytest

from bench.measure import ratio
from bench.worker import FEW, Worker, in_turns

NONE = 0.5  # which a range of integers looks for one by one


@pytest.mark.nightly
def test_workers_take_turns_and_tell_of_failures() -> None:
    with Worker(range, 1_000) as one, Worker(range, 1_000_000) as slow, Worker(range, "nonsense") as broken:
        times = in_turns({"one": one, "slow": slow}, "count", NONE, rounds=FEW + 2, calls=3)
        assert {name: len(taken) for name, taken in times.items()} == {"one": FEW + 2, "slow": FEW}
        assert ratio(times["slow"], times["one"]).low > 1
        with pytest.raises(ValueError, match="not in range"):
            one.ask("index", 5_000)
        assert one.ask("count", 7) == 1  # and it goes on
        with pytest.raises(TypeError, match="cannot be interpreted as an integer"):
            broken.ready()
