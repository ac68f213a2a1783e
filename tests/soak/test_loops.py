"""Loops over loaders are left, forked and interrupted with batches under way."""

from __future__ import annotations

import pytest

from soak import loops
from soak.workers import Pool, scratch


@pytest.mark.nightly
def test_no_loop_gets_a_wrong_row_hangs_or_keeps_memory(any_seed: int) -> None:
    jobs = [{"run": [name, any_seed + number, loops.ROUND]} for number, name in enumerate(loops.KINDS)]
    with scratch() as directory, Pool("soak.loops", directory, 1, 300) as pool:
        answers = dict(zip(loops.KINDS, (answer for _, answer in pool.do_all(jobs)), strict=True))
    assert {name: answer.get("wrong", answer) for name, answer in answers.items()} == dict.fromkeys(loops.KINDS, ""), any_seed
    assert sum(answer["counts"]["rows"] for answer in answers.values()) > 10_000
