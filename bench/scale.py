"""Drawing sequences from stores of millions and of hundreds of millions of steps.

    python -m bench.scale --json FILE

Episodes of 500 steps, flat columns only, the page cache warm. Only the draw is timed, of 256 sequences of 4; `bench.slices` has
whole batches, beside TorchRL. Takes 4 GB of disk, and minutes.
"""

from __future__ import annotations

import ctypes
import gc
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import diskbuffer as db
from bench.measure import Report, arguments

EPISODE, SLICES, LENGTH = 500, 256, 4
AT_ONCE = 4096  # starts, in an epoch
PART = 4_000_000  # steps, a multiple of EPISODE
COLUMNS = {"obs": db.Column((), "int8"), "action": db.Column((), "int8")}
Steps = dict[str, Any]


def steps(n: int) -> Steps:
    """Return `n` steps of whole episodes."""
    terminated = np.zeros(n, np.bool_)
    terminated[EPISODE - 1 :: EPISODE] = True
    obs = (np.arange(n) % 100).astype(np.int8)
    next_obs = np.append(obs[1:], np.int8(0))
    next_obs[terminated] = -1
    return {"obs": obs, "next_obs": next_obs, "action": obs, "reward": np.ones(n, np.float32), "terminated": terminated}


def fill(buffer: db.ReplayBuffer, n: int) -> float:
    """Add `n` steps; return the seconds that took."""
    part, seconds = steps(PART), 0.0
    for first in range(0, n, PART):
        some = {name: values[: n - first] for name, values in part.items()}
        begin = time.perf_counter()
        buffer.extend(**some)
        seconds += time.perf_counter() - begin
    return seconds


def time_draws(buffer: db.ReplayBuffer, rounds: int, between: Any = None) -> list[float]:
    """Time draws; `between` is called before each."""
    index, sampler, seconds = buffer._reader.index, db.Slices(LENGTH, seed=0), []
    for k in range(rounds):
        if between is not None:
            between()
        generator = sampler.generator(k)
        begin = time.perf_counter()
        sampler.draw(index, SLICES, generator)
        seconds.append(time.perf_counter() - begin)
    return seconds


def ours(report: Report, directory: Path, small: int, large: int, rounds: int) -> None:
    """Draw from three stores."""
    medians = []
    one = {name: values[:EPISODE] for name, values in steps(EPISODE).items()}
    for n, capacity in ((small, small * 6 // 5), (small, 120 * small), (large, 120 * small)):
        path = directory / f"{n}-of-{capacity}"
        with db.ReplayBuffer(path, capacity, columns=COLUMNS) as buffer:
            seconds = fill(buffer, n)
            buffer.flush(recompress=True)
            time_draws(buffer, 50)
            drawn = time_draws(buffer, rounds)
            report.times(f"256 slices of 4, {n:,} of {capacity:,} steps", drawn)
            medians.append(float(np.median(drawn)) * 1e3)
            row = f"draw of 256 slices of 4, {n:,} of {capacity:,} steps"
            report.row(row, medians[-1], "ms", at_most=0.15)
            if n == large:
                value = n / seconds / 1e6
                report.row(f"extend of flat columns, {n:,} steps", value, "M/s", at_least=5)
                after = time_draws(buffer, rounds, lambda: buffer.extend(**one))
                report.times("the same, right after an extend", after)
                added = time_draws(buffer, rounds, lambda: buffer.add(np.int8(0), 0, 0.0, np.int8(1), False, False))
                report.times("the same, right after an add", added)
                epoch(report, buffer)
                value = buffer.stats()["index_bytes"] / 1e6
                report.row(f"RAM of the index, {n:,} steps", value, "MB", at_most=50)
    begin = time.perf_counter()
    db.ReplayBuffer(path).close()
    value = time.perf_counter() - begin
    report.row(f"opening and closing a store of {large:,} steps", value, "s", at_most=2)
    value = max(medians) / min(medians)
    report.row("the slowest draw against the fastest", value, "x", at_most=2)


def anonymous() -> int:
    """Return the bytes of RAM that this process has to itself."""
    status = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in status if line.startswith("RssAnon")).split()[1])


def settled() -> int:
    """Return the same without what was freed, and is kept to be given out again."""
    gc.collect()
    if hasattr(ctypes.CDLL(None), "malloc_trim"):
        ctypes.CDLL(None).malloc_trim(0)
    return anonymous()


def epoch(report: Report, buffer: db.ReplayBuffer) -> None:
    """Draw every start of a sequence once, without replacement, and watch the memory."""
    index, sampler = buffer._reader.index, db.Slices(LENGTH, seed=0, replace=False)
    _, firsts, _, lasts = index.locate_episodes(np.arange(index.episodes))
    valid = np.maximum(lasts - firsts - LENGTH + 1, 0)
    starts, expected = int(valid.sum()), int((valid * (2 * firsts + valid - 1) // 2).sum())
    del firsts, lasts, valid
    drawn = total = draws = most = before = 0
    begin = time.perf_counter()
    while drawn < starts:
        found = sampler.draw(index, min(AT_ONCE, starts - drawn), sampler.generator(0))
        sampler.advance()
        drawn, total, draws = drawn + found.size, total + int(found.positions.sum()), draws + 1
        if draws == 100:
            before = anonymous()
        if draws % 100 == 0:
            most = max(most, anonymous())
    assert total == expected, "not every start came once"
    print(f"  {drawn:,} starts in {time.perf_counter() - begin:.0f} s")
    report.row(f"memory of an epoch over {drawn:,} starts", (most - before) / 1e6, "MB", at_most=1)


def main() -> None:
    """Run everything."""
    args = arguments(__doc__.splitlines()[0])
    report = Report("scale", args.seed, quick=args.quick)
    small, large = (400_000, 4_000_000) if args.quick else (5_000_000, 346_000_000)
    directory = Path(tempfile.mkdtemp(prefix="diskbuffer-bench-"))
    try:
        ours(report, directory, small, large, 50 if args.quick else 400)
    finally:
        shutil.rmtree(directory)
    report.write(args.json)


if __name__ == "__main__":
    main()
