"""Sampling from one environment and from many with as many steps: ``python -m bench.environments --json FILE``.

Two kinds of figures, both of one thread, in microseconds, medians of `--rounds` in turn:

- ``index``: what the index does for a draw of 256, and for one after one environment, or all, have added a step. Without
  files, so up to 65,536 environments.
- ``store``: `ReplayBuffer.sample(256)` of vectors of 4 floats, by `Uniform`, n-step returns, `Slices` and `Prioritized`.

The page cache is warm. Environments have as many steps as each other, in episodes of 50.
"""

from __future__ import annotations

import argparse
import gc
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import diskbuffer as db
from diskbuffer.index.index import Index
from diskbuffer.native.sampling import Philox, draw_steps

_EPISODE = 50
_SIZE = 256
_SAMPLERS: dict[str, Callable[[], db.Sampler]] = {
    "uniform": lambda: db.Uniform(0),
    "n-step": lambda: db.Uniform(0, n_step=3),
    "slices": lambda: db.Slices(8, 0),
    "prioritized": lambda: db.Prioritized(seed=0),
}


def medians(calls: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Return the median microseconds of calls that are made in turn, in each round several times."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    gc.disable()
    for _ in range(rounds):
        for name, call in calls.items():
            for _ in range(5):
                begun = time.perf_counter()
                call()
                times[name].append(time.perf_counter() - begun)
    gc.enable()
    return {name: round(float(np.median(found)) * 1e6, 2) for name, found in times.items()}


def index_of(environments: int, steps: int) -> Index:
    """Return an index of so many steps in all."""
    each = max(1, steps // environments)
    index, every, rows = Index(environments, 1024, 0), np.arange(environments), each + 1
    segments = -(-rows // 1024)
    index.add_segments(
        np.repeat(every, segments), np.tile(np.arange(segments) * 1024, environments), np.arange(environments * segments)
    )
    starts = np.arange(0, rows, _EPISODE)
    index.start_episodes(np.repeat(every, len(starts)), np.tile(starts, environments))
    index.advance(every, np.full(environments, rows - 1), np.zeros(environments, np.int64))
    return index


def of_index(counts: list[int], steps: int, rounds: int) -> dict[str, Any]:
    """Measure draws from indexes."""
    calls: dict[str, Callable[[], object]] = {}
    nbytes = {}
    for environments in counts:
        index, random, located = index_of(environments, steps), Philox(1, 2), np.empty((4, _SIZE), np.int64)
        nbytes[environments] = index.nbytes

        def draw(index: Index = index, random: Philox = random, located: Any = located) -> object:
            return draw_steps(index, random, located)

        def one_adds(index: Index = index, draw: Callable[[], object] = draw) -> object:
            index.advance(0, int(index.table[0, 0]), ended=False)
            return draw()

        def all_add(index: Index = index, draw: Callable[[], object] = draw) -> object:
            index.advanced()
            return draw()

        calls |= {f"{environments}: draw": draw, f"{environments}: one adds": one_adds, f"{environments}: all add": all_add}
    return {"microseconds": medians(calls, rounds), "bytes": nbytes}


def of_store(counts: list[int], steps: int, rounds: int, root: Path) -> dict[str, float]:
    """Measure `sample` of stores."""
    columns = {"obs": db.Column((4,), "float32"), "action": db.Column((), "int64")}
    calls: dict[str, Callable[[], object]] = {}
    buffers = []
    for environments in counts:
        rng, each = np.random.default_rng(0), steps // environments
        buffer = db.ReplayBuffer(root / str(environments), columns=columns, n_envs=environments, segment_rows=min(4096, each))
        buffers.append(buffer)
        obs, zeros = rng.standard_normal((environments, 4), np.float32), np.zeros(environments)
        truncated = np.zeros(environments, bool)
        for t in range(each):
            truncated[:] = t % _EPISODE == _EPISODE - 1
            following = rng.standard_normal((environments, 4), np.float32)
            buffer.add(obs, zeros.astype(int), zeros, following, np.zeros(environments, bool), truncated)
            obs = following
        for name, make in _SAMPLERS.items():
            sampler = make()

            def sample(buffer: db.ReplayBuffer = buffer, sampler: db.Sampler = sampler) -> object:
                return buffer.sample(_SIZE, sampler)

            sample()
            calls[f"{environments}: {name}"] = sample
    found = medians(calls, rounds)
    for buffer in buffers:
        buffer.close()
    return found


def main() -> None:
    """Measure, and write what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--steps", type=int, default=2**20, help="of all environments together")
    parser.add_argument("--environments", type=int, nargs="+", default=[1, 64, 4096])
    options = parser.parse_args()
    figures: dict[str, Any] = {"steps": options.steps, "rounds": options.rounds}
    figures["index"] = of_index([*options.environments, 65_536], options.steps, options.rounds)
    with tempfile.TemporaryDirectory() as root:
        figures["store"] = of_store(options.environments, options.steps, options.rounds, Path(root))
    text = json.dumps(figures, indent=1)
    print(text)
    if options.json:
        options.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
