"""Simulate where segments lie in the planned format: how many files there are, how full they are, and what disk they take.

    python -m bench.lanes [--json FILE] [--quick]

No store is made. Environments add rows, and each episode that ends adds one more to its environment alone. A rule says in which
file a new segment lies, and in which lane of it. The oldest complete segments are evicted once `capacity` more steps came, and a
file goes with its last segment. The rules, of which `docs/format.md` explains the choice:

    own lane, newest    the lane of the environment's number, in the newest file; where that was taken before, in a new file
    own lane, oldest    the lane of the environment's number, in the oldest file in which it was never taken
    next lane           the next lane of the newest file, whichever environment needs it
    next lane, moved    the same; a segment that is still open AGE files behind the newest moves to the next lane

Every figure is the worst of those taken at 20 moments after the capacity was full twice.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]

AGE = 8  # files behind the newest, at which open segments move
ROW_BYTES = {"obs": 192, "action": 48, "reward": 4, "terminated": 1, "truncated": 1, "is_last": 1, "row_checksum": 8}
PAGE = 4096
OPEN, COMPLETE, GONE = 0, 1, 2
ENVIRONMENTS, CAPACITIES = (1, 64, 4096, 65_536), (1_000_000, 4_000_000)
MOMENTS, FILLED, LAST = 20, 2, 3  # in capacities: when looking begins, and when a run ends


def segment_rows(capacity: int, envs: int) -> int:
    """Choose a segment's rows, a power of two: about a sixteenth of what an environment keeps, 8 at least and 4,096 at most."""
    return int(np.clip(2 ** round(np.log2(capacity / (16 * envs))), 8, 4096))


class Added(NamedTuple):
    """What is added at once: rows of some environments, and how many of them are steps."""

    envs: Int64
    rows: Int64
    steps: int


Workload = Callable[[int, int, int, np.random.Generator], Iterator[Added]]


def _in_step(envs: int, rows: int, means: npt.NDArray[np.float64] | None, active: Callable[[int], Int64]) -> Iterator[Added]:
    """Yield additions of as many steps to each active environment; `active` gets the number of steps before."""
    done, phase, steps = np.zeros(envs, np.int64), np.random.default_rng(1).random(envs), 0
    stride = max(1, rows // 16)
    while True:
        some = active(steps)
        added = np.full(len(some), stride, np.int64)
        if means is not None:
            ends = np.floor((done[some] + stride) / means[some] + phase[some]) - np.floor(done[some] / means[some] + phase[some])
            added += ends.astype(np.int64)
        done[some] += stride
        steps += stride * len(some)
        yield Added(some, added, stride * len(some))


def _means(envs: int, rng: np.random.Generator) -> npt.NDArray[np.float64]:
    return np.exp(rng.uniform(np.log(20), np.log(1000), envs))


def equal(envs: int, rows: int, capacity: int, rng: np.random.Generator) -> Iterator[Added]:
    """Every environment adds as many rows."""
    everyone = np.arange(envs)
    return _in_step(envs, rows, None, lambda _: everyone)


def uneven(envs: int, rows: int, capacity: int, rng: np.random.Generator) -> Iterator[Added]:
    """Episodes have 20 to 1,000 steps on average, as environments differ."""
    everyone = np.arange(envs)
    return _in_step(envs, rows, _means(envs, rng), lambda _: everyone)


def idle(envs: int, rows: int, capacity: int, rng: np.random.Generator) -> Iterator[Added]:
    """As uneven; half of the environments stop, each at a moment of its own, before looking begins."""
    stop = np.where(rng.random(envs) < 0.5, rng.uniform(0.2, 2, envs) * capacity, np.inf)
    stop[0] = np.inf
    return _in_step(envs, rows, _means(envs, rng), lambda steps: np.flatnonzero(stop > steps))


def alternating(envs: int, rows: int, capacity: int, rng: np.random.Generator) -> Iterator[Added]:
    """As uneven; a tenth of the environments and the others take turns, a third of the capacity each."""
    first = np.arange(envs) < max(1, envs // 10)
    some = [np.flatnonzero(first), np.flatnonzero(~first) if envs > 1 else np.zeros(1, np.int64)]
    return _in_step(envs, rows, _means(envs, rng), lambda steps: some[int(steps // (capacity / 3)) % 2])


def trajectories(envs: int, rows: int, capacity: int, rng: np.random.Generator) -> Iterator[Added]:
    """Trajectories of 20 to 1,000 steps are given to one environment after the other."""
    while True:
        for env in range(envs):
            steps = int(np.exp(rng.uniform(np.log(20), np.log(1000))))
            yield Added(np.array([env]), np.array([steps + 1]), steps)


def turns(envs: int, rows: int, capacity: int, rng: np.random.Generator) -> Iterator[Added]:
    """One environment alone adds what it may keep, then the next."""
    share = max(1, capacity // envs)
    while True:
        for env in range(envs):
            yield Added(np.array([env]), np.array([share + share // 200]), share)


WORKLOADS: tuple[Workload, ...] = (equal, uneven, idle, alternating, trajectories, turns)


class Store:
    """Where segments lie: of each, its file, its lane and its state, and how many steps there were when it was complete."""

    def __init__(self, rule: str, envs: int, rows: int, capacity: int) -> None:
        self._own_lane, self._oldest, self._moves = rule.startswith("own"), "oldest" in rule, "moved" in rule
        self._envs, self._rows, self._capacity = envs, rows, capacity
        self._file, self._lane, self._at, self._state = list[int](), list[int](), list[int](), bytearray()
        self._head = np.zeros(envs, np.int64)
        self._current = np.full(envs, -1, np.int64)  # the open segment of each environment
        self._taken_last = [-1] * envs  # the file in which each environment's own lane was taken last
        self._open_in = dict[int, set[int]]()  # file: environments whose open segment lies there
        self._newest, self._next_lane = -1, envs
        self._completed, self._evicted = list[int](), 0
        self.steps = self.moved_rows = 0

    def add(self, added: Added) -> None:
        """Add rows to some environments, and evict."""
        before = self._head[added.envs] // self._rows
        self._head[added.envs] += added.rows
        self.steps += added.steps
        after, new = self._head[added.envs] // self._rows, self._current[added.envs] < 0
        for n in np.flatnonzero((after > before) | new).tolist():
            env = int(added.envs[n])
            for _ in range(int(after[n] - before[n] + new[n])):
                self._complete(env)
                self._begin(env)
        while self._evicted < len(self._completed) and self._at[self._completed[self._evicted]] <= self.steps - self._capacity:
            self._state[self._completed[self._evicted]] = GONE
            self._evicted += 1

    def _complete(self, env: int) -> None:
        segment = int(self._current[env])
        if segment >= 0:
            self._state[segment], self._at[segment] = COMPLETE, self.steps
            self._completed.append(segment)
            self._open_in[self._file[segment]].discard(env)

    def _begin(self, env: int) -> None:
        file, lane = self._place(env)
        self._current[env] = len(self._file)
        self._file.append(file)
        self._lane.append(lane)
        self._at.append(0)
        self._state.append(OPEN)
        self._open_in.setdefault(file, set()).add(env)
        moving = sorted(self._open_in.pop(self._newest - AGE, ())) if self._moves else []
        for other in moving:
            self._state[self._current[other]] = GONE
            self.moved_rows += int(self._head[other] % self._rows)
            self._begin(other)

    def _place(self, env: int) -> tuple[int, int]:
        if self._own_lane:
            lowest = self._oldest_file() if self._oldest else self._newest
            file = self._taken_last[env] = max(0, lowest, self._taken_last[env] + 1)
            self._newest = max(self._newest, file)
            return file, env
        if self._next_lane == self._envs:
            self._newest, self._next_lane = self._newest + 1, 0
        self._next_lane += 1
        return self._newest, self._next_lane - 1

    def _oldest_file(self) -> int:
        return self._file[self._completed[self._evicted]] if self._evicted < len(self._completed) else self._newest

    def look(self) -> dict[str, float]:
        """Return what there is now."""
        state = np.frombuffer(bytes(self._state), np.uint8)
        alive = np.flatnonzero(state != GONE)
        files, lanes, still_open = np.array(self._file)[alive], np.array(self._lane)[alive], state[alive] == OPEN
        pages = 0
        for size in (self._rows * n for n in ROW_BYTES.values()):
            first, last = lanes * size // PAGE, (lanes * size + size - 1) // PAGE
            if size >= PAGE:
                pages += int((last - first + 1).sum())
            else:
                pages += len(np.unique(np.concatenate([files * 2**40 + first, files * 2**40 + last])))
        n = len(np.unique(files))
        return {
            "files": n * len(ROW_BYTES),
            "of the fewest": n / max(1, -(-len(alive) // self._envs)),
            "lanes used": len(alive) / (n * self._envs),
            "disk": pages * PAGE / (min(self.steps, self._capacity) * sum(ROW_BYTES.values())),
            "files not sealed": len(np.unique(files[still_open])),
        }


RULES = ("own lane, newest", "own lane, oldest", "next lane", "next lane, moved")


def simulate(rule: str, workload: Workload, envs: int, capacity: int, seed: int = 0) -> dict[str, float]:
    """Run a workload until the capacity was full three times, and return the worst of each figure."""
    rows = segment_rows(capacity, envs)
    store, worst, due = Store(rule, envs, rows, capacity), dict[str, float](), FILLED * capacity
    for added in workload(envs, rows, capacity, np.random.default_rng(seed)):
        store.add(added)
        if store.steps >= due:
            due += (LAST - FILLED) * capacity // MOMENTS
            for name, value in store.look().items():
                worst[name] = (min if name == "lanes used" else max)(worst.get(name, value), value)
        if store.steps >= LAST * capacity:
            break
    return {"segment rows": rows, **worst, "rows moved": store.moved_rows / store.steps}


def main() -> None:
    """Print a table, and write it as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--quick", action="store_true", help="4,096 environments and a capacity of a million only")
    given = parser.parse_args()
    rows = []
    for envs in (4096,) if given.quick else ENVIRONMENTS:
        for capacity in CAPACITIES[: 1 if given.quick else 2]:
            for workload in WORKLOADS:
                for rule in RULES:
                    found = simulate(rule, workload, envs, capacity)
                    place = {"environments": envs, "capacity": capacity, "workload": workload.__name__, "rule": rule}
                    rows.append(place | found)
                    figures = "  ".join(f"{name} {round(value, 3):,}" for name, value in found.items())
                    print(f"{envs:>6} {capacity:>9,} {workload.__name__:<13} {rule:<17} {figures}", flush=True)
    if given.json:
        given.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
