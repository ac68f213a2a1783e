"""Simulate where segments lie in the planned format: how many files there are, how full they are, and what disk they take.

    python -m bench.lanes [--quick] [--json FILE]

No store is made. Environments add rows, and each episode that ends adds one more to its environment alone. A rule says in which
file a new segment lies, and in which lane of it. Complete segments are evicted once `capacity` more steps came after their
newest row, and a file goes with its last segment. The rules, of which `docs/format.md` explains the choice:

    own lane, newest    the lane of the environment's number, in the newest file; where that was taken before, in a new file
    own lane, oldest    the lane of the environment's number, in the oldest file in which it was never taken
    next lane           the next lane of the newest file, whichever environment needs it
    next lane, moved    the same; a segment that is still open `--age` files behind the newest moves to the next lane, not more
                        than `--pace` rows for each row that is added
    next lane, ended    the same, but such a segment is ended as it is, and what its environment adds then is in a new one

Every figure is the worst of those taken at 20 moments after the capacity was full twice. `rows kept on disk` is what the lanes
of segments that are not evicted take, of the rows that are kept; `disk` also counts all other lanes that were ever taken, in
files that stay. `most due` is how many segments waited to be moved.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections import deque
from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]

AGE = 3  # files behind the newest, at which open segments are moved or ended
PACE = 1.0  # rows that are moved for each that is added
PART = 16  # a segment is one in so many of the rows that an environment keeps
ROW_BYTES = {"obs": 192, "action": 48, "reward": 4, "terminated": 1, "truncated": 1, "is_last": 1, "row_checksum": 8}
PAGE = 4096
OPEN, COMPLETE, GONE = 0, 1, 2
ENVIRONMENTS, CAPACITIES = (1, 64, 4096, 65_536), (1_000_000, 4_000_000)
MOMENTS, FILLED, LAST = 20, 2, 3  # in capacities: when looking begins, and when a run ends


def segment_rows(capacity: int, envs: int, part: int) -> int:
    """Choose a segment's rows, a power of two: about one `part` of what an environment keeps, 8 at least and 4,096 at most."""
    return int(np.clip(2 ** round(np.log2(capacity / (part * envs))), 8, 4096))


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


def stopping(envs: int, rows: int, capacity: int, rng: np.random.Generator) -> Iterator[Added]:
    """As uneven; nine in ten environments stop together, before looking begins."""
    few = np.arange(max(1, envs // 10))
    everyone = np.arange(envs)
    return _in_step(envs, rows, _means(envs, rng), lambda steps: everyone if steps < 1.9 * capacity else few)


def slow(envs: int, rows: int, capacity: int, rng: np.random.Generator) -> Iterator[Added]:
    """Half of the environments are slower than the others, each by a factor of its own, of 1 to 1,000."""
    every = np.where(rng.random(envs) < 0.5, np.exp(rng.uniform(0, np.log(1000), envs)), 1).astype(np.int64)
    every[0] = 1
    phase, calls = rng.integers(0, every), itertools.count()
    return _in_step(envs, rows, None, lambda _: np.flatnonzero((next(calls) + phase) % every == 0))


WORKLOADS: tuple[Workload, ...] = (equal, uneven, idle, stopping, slow, alternating, trajectories, turns)


class Store:
    """Where segments lie: of each, its file, its lane and its state, and how many steps there were at its newest row."""

    def __init__(self, rule: str, envs: int, rows: int, capacity: int, age: int = AGE, pace: float = PACE) -> None:
        self._own_lane, self._oldest, self._moves, self._ends = (word in rule for word in ("own", "oldest", "moved", "ended"))
        self._envs, self._rows, self._capacity, self._age, self._pace = envs, rows, capacity, age, pace
        self._file, self._lane, self._state = list[int](), list[int](), bytearray()
        self._head, self._newest_at = np.zeros(envs, np.int64), np.zeros(envs, np.int64)
        self._current = np.full(envs, -1, np.int64)  # the open segment of each environment
        self._room = np.zeros(envs, np.int64)  # rows that it has left
        self._taken_last = [-1] * envs  # the file in which each environment's own lane was taken last
        self._open_in = dict[int, set[int]]()  # file: environments whose open segment lies there
        self._newest, self._next_lane, self._oldest_open = -1, envs, 0
        self._due, self._may_move = deque[tuple[int, int]](), 0.0  # (environment, segment) to be moved, and how many rows
        self._complete = list[tuple[int, int]]()  # a heap: (steps at the newest row, segment)
        self.steps = self.rows = self.moved_rows = self.ended = self.most_due = 0

    def add(self, added: Added) -> None:
        """Add rows to some environments, and evict."""
        envs = added.envs
        self.steps += added.steps
        self.rows += int(added.rows.sum())
        self._head[envs] += added.rows
        left = added.rows - self._room[envs]
        self._room[envs] -= added.rows
        self._newest_at[envs] = self.steps
        for n in np.flatnonzero((left >= 0) | (self._current[envs] < 0)).tolist():
            self._fill(int(envs[n]), int(left[n]))
        self._move(float(added.rows.sum()) * self._pace)
        while self._complete and self._complete[0][0] <= self.steps - self._capacity:
            self._state[heappop(self._complete)[1]] = GONE

    def _fill(self, env: int, left: int) -> None:
        """Complete an environment's segment, and begin as many as what is left of its rows takes."""
        if self._current[env] >= 0:
            self._end(env)
        elif self._ends and self._head[env] > left:
            left += 1  # what is done at the newest row of a segment that was ended belongs into the next: it has that row again
        for _ in range(left // self._rows):
            self._begin(env)
            self._end(env)
        self._begin(env)
        self._room[env] = self._rows - left % self._rows

    def _end(self, env: int) -> None:
        segment = int(self._current[env])
        self._current[env], self._room[env] = -1, 0
        self._state[segment] = COMPLETE
        heappush(self._complete, (int(self._newest_at[env]), segment))
        self._open_in[self._file[segment]].discard(env)

    def _begin(self, env: int) -> None:
        file, lane = self._place(env)
        self._current[env] = len(self._file)
        self._file.append(file)
        self._lane.append(lane)
        self._state.append(OPEN)
        self._open_in.setdefault(file, set()).add(env)
        while self._oldest_open <= self._newest - self._age and (self._moves or self._ends):
            old = sorted(self._open_in.get(self._oldest_open, ()))
            self._oldest_open += 1
            for other in old:
                if self._ends:
                    self._end(other)
                    self.ended += 1
                else:
                    self._due.append((other, int(self._current[other])))

    def _move(self, rows: float) -> None:
        """Move segments that are due, of so many rows."""
        self._may_move = self._may_move + rows if self._due else 0.0
        self.most_due = max(self.most_due, len(self._due))
        while self._due and self._may_move > 0:
            env, segment = self._due.popleft()
            if self._current[env] == segment:
                self._state[segment] = GONE
                self._open_in[self._file[segment]].discard(env)
                self.moved_rows += int(self._rows - self._room[env])
                self._may_move -= int(self._rows - self._room[env])
                self._begin(env)

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
        return self._file[self._complete[0][1]] if self._complete else self._newest

    def _pages(self, files: Int64, lanes: Int64) -> int:
        pages = 0
        for size in (self._rows * n for n in ROW_BYTES.values()):
            first, last = lanes * size // PAGE, (lanes * size + size - 1) // PAGE
            if size >= PAGE:
                pages += int((last - first + 1).sum())
            else:
                pages += len(np.unique(np.concatenate([files * 2**40 + first, files * 2**40 + last])))
        return pages

    def look(self) -> dict[str, float]:
        """Return what there is now."""
        state = np.frombuffer(bytes(self._state), np.uint8)
        all_files, all_lanes = np.array(self._file), np.array(self._lane)
        alive = np.flatnonzero(state != GONE)
        files, lanes, still_open = all_files[alive], all_lanes[alive], state[alive] == OPEN
        stay = np.isin(all_files, files)  # nothing is given back of a file that stays
        n, kept = len(np.unique(files)), min(self.steps, self._capacity) * sum(ROW_BYTES.values()) / PAGE
        return {
            "files": n * len(ROW_BYTES),
            "of the fewest": n / max(1, -(-len(alive) // self._envs)),
            "lanes used": len(alive) / (n * self._envs),
            "rows kept on disk": self._pages(files, lanes) / kept,
            "disk": self._pages(all_files[stay], all_lanes[stay]) / kept,
            "open segments": int(still_open.sum()),
            "files not sealed": len(np.unique(files[still_open])),
        }


RULES = ("own lane, newest", "own lane, oldest", "next lane", "next lane, moved", "next lane, ended")


def simulate(rule: str, workload: Workload, envs: int, capacity: int, rows: int, age: int, pace: float) -> dict[str, float]:
    """Run a workload until the capacity was full three times, and return the worst of each figure."""
    store, worst, due = Store(rule, envs, rows, capacity, age, pace), dict[str, float](), FILLED * capacity
    for added in workload(envs, rows, capacity, np.random.default_rng(0)):
        store.add(added)
        if store.steps >= due:
            due += (LAST - FILLED) * capacity // MOMENTS
            for name, value in store.look().items():
                worst[name] = (min if name == "lanes used" else max)(worst.get(name, value), value)
        if store.steps >= LAST * capacity:
            break
    more = {"rows moved": store.moved_rows / store.rows, "most due": store.most_due, "segments ended": store.ended}
    return {"segment rows": rows, **worst, **more}


def main() -> None:
    """Print a table, and write it as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--quick", action="store_true", help="4,096 environments and a capacity of a million only")
    parser.add_argument("--age", type=int, default=AGE, help="how many files behind the newest open segments are moved or ended")
    parser.add_argument("--segment-rows", type=int, help="rows of a segment; a part of what an environment keeps by default")
    parser.add_argument(
        "--part", type=int, default=PART, help="which part of what an environment keeps a segment is: one in so many"
    )
    parser.add_argument("--pace", type=float, default=PACE, help="how many rows are moved for each that is added")
    parser.add_argument("--rules", nargs="+", choices=RULES, default=RULES)
    parser.add_argument("--workloads", nargs="+", choices=[workload.__name__ for workload in WORKLOADS], help="all by default")
    parser.add_argument("--environments", nargs="+", type=int, default=ENVIRONMENTS)
    given = parser.parse_args()
    found = []
    for envs in (4096,) if given.quick else given.environments:
        for capacity in CAPACITIES[: 1 if given.quick else 2]:
            rows = given.segment_rows or segment_rows(capacity, envs, given.part)
            for workload in WORKLOADS:
                if given.workloads and workload.__name__ not in given.workloads:
                    continue
                for rule in given.rules:
                    figures = simulate(rule, workload, envs, capacity, rows, given.age, given.pace)
                    place = {"environments": envs, "capacity": capacity, "workload": workload.__name__, "rule": rule}
                    found.append(place | figures)
                    line = "  ".join(f"{name} {round(value, 3):,}" for name, value in figures.items())
                    print(f"{envs:>6} {capacity:>9,} {workload.__name__:<13} {rule:<17} {line}", flush=True)
    if given.json:
        given.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
