"""Values of 100,000 episodes, and of ten times as many: given at once and one by one, read, and conditions on them.

    python -m bench.episode_values --json FILE

Episodes have two steps; each is given a truth, a number and a text.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

import diskbuffer as db
from bench.measure import Part, Report, parser, run
from diskbuffer.plugin import Reader

STEPS, ONE_BY_ONE = 2, 2000
CONDITIONS = ("success", "success and score > 0.5", "instruction == 'fold the towel, number 7'", "'number 7' in instruction")


def seconds_of(function: Callable[[], object]) -> float:
    """Return how long a call takes."""
    begun = time.perf_counter()
    function()
    return time.perf_counter() - begun


def values(report: Report, directory: Path, episodes: int = 100_000) -> None:
    """Give each a truth, a number and a text."""
    episodes = episodes // 50 if report.quick else episodes
    columns, rng, steps = {"obs": db.Column(), "action": db.Column()}, np.random.default_rng(report.seed), episodes * STEPS
    success, score = rng.random(episodes) < 0.5, rng.random(episodes)
    instruction = [f"fold the towel, number {number % 100}" for number in range(episodes)]
    with db.ReplayBuffer(directory / "store", columns=columns) as buffer:
        obs, zeros, over = np.arange(steps + 1), np.zeros(steps), np.arange(steps) % STEPS == STEPS - 1
        buffer.extend(obs[:-1], zeros, zeros, next_obs=obs[1:], terminated=over)
        every = buffer.episodes[:]
        given = seconds_of(lambda: every.set_values(success=success, score=score, instruction=instruction))
        report.row(f"{episodes:,} episodes, given at once", episodes / given, "episodes/s", at_least=50_000)
        ids = every.start[:ONE_BY_ONE]
        given = seconds_of(lambda: [buffer.episodes.of([step]).set_values(attempt=1) for step in ids.tolist()])
        report.row(f"of {episodes:,}, given one by one", len(ids) / given, "episodes/s")
    reader = Reader(directory / "store")
    report.row(f"{episodes:,} episodes: the table of all, the first time", seconds_of(reader.episodes), "s")
    table = reader.episodes()
    for condition in CONDITIONS:
        times = [seconds_of(partial(table.where, condition)) for _ in range(15)]
        report.times(f"{episodes:,} episodes where {condition}", times)
        report.row(f"{episodes:,} episodes where {condition}, the median", float(np.median(times)) * 1e3, "ms", at_most=10)


def many(report: Report, directory: Path) -> None:
    """Do that with a million."""
    values(report, directory, 1_000_000)


PARTS: dict[str, Part] = {"values": values, "many": many}

if __name__ == "__main__":
    run("episode_values", PARTS, parser(__doc__))
