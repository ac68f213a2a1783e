"""Steps that are recorded into a store of format 2: what is in its files, and in the index, against a list of what was added."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from diskbuffer.index.fields import LOW
from diskbuffer.index.index import Index
from diskbuffer.reading.stored_index import read_rows
from diskbuffer.recording.recorder import Recorder
from diskbuffer.recording.row_log import RowLog
from diskbuffer.schema import Column, Schema
from diskbuffer.storage import opening
from diskbuffer.storage.format.layout import Layout
from tests.amounts import amount

Array = npt.NDArray[Any]
COLUMNS = {
    "obs": Column((), "int64"),
    "action": Column((), "int64"),
    "reward": Column((), "float32"),
    "terminated": Column((), "bool"),
    "truncated": Column((), "bool"),
}


def never(path: str, only: int | None) -> Array:
    """Stand for the reader, which is not asked where no stacks are given."""
    raise AssertionError(path, only)


class Recording:
    """A store that is recorded into, and the rows of each environment: observation, action, and whether an episode ends there."""

    def __init__(self, root: Path, environments: int, capacity: int | None) -> None:
        self.root, self.n, self.capacity = root, environments, capacity
        lock = opening.create(root, Layout(Schema.of(COLUMNS), environments, 8, {}, 8, capacity=capacity, salt=7))
        assert lock is not None
        lock.release()
        self.rows: list[list[list[int]]] = [[] for _ in range(environments)]
        self.steps: list[tuple[int, int]] = []  # environment and position, in the order in which they came
        self.count = 0
        self.open()

    def open(self) -> None:
        """Open the store."""
        opened = opening.open_to_write(self.root)
        self.store, layout = opened.store, opened.store.layout
        self.index = Index(self.n, layout.segment_rows, 0, layout.lanes)
        self.index.restore(*read_rows(self.store.segments(), self.store.flags, layout.lanes, {}))
        self.log = RowLog(opened, self.index)
        self.recorder = Recorder(layout, self.log, self.index, never)
        self.recorder.cut_offs.expect()

    def play(self, rng: np.random.Generator, steps: int, envs: list[int]) -> dict[str, Array]:
        """Take steps of some environments, some of which cut episodes off: (steps, envs) each."""
        found = {name: np.zeros((steps, len(envs)), np.int64) for name in ("obs", "next_obs", "action", "terminated")}
        for env in envs:
            if self.rows[env] and self.index.table[env, LOW] == len(self.rows[env]):
                self.rows[env][-1][2] = 1  # it waited for so long that nothing of it is left, and its episode is over
        for t in range(steps):
            for k, env in enumerate(envs):
                rows = self.rows[env]
                self.count += 2
                if not rows or rows[-1][2] or rng.random() < 0.05:
                    if rows:
                        rows[-1][2] = 1
                    rows.append([self.count, 0, 0])
                ended = int(rng.random() < 0.1)
                found["obs"][t, k], found["next_obs"][t, k], found["action"][t, k] = rows[-1][0], self.count + 1, self.count
                found["terminated"][t, k] = ended
                rows[-1][1] = self.count
                self.steps.append((env, len(rows) - 1))
                rows.append([self.count + 1, 0, ended])
        return found

    def add(self, rng: np.random.Generator, steps: int, envs: list[int]) -> None:
        """Record steps of all environments, or of one, at once or one by one."""
        values, one = self.play(rng, steps, envs), len(envs) == 1
        terminated = values["terminated"] != 0
        reward, no = np.ones(terminated.shape, np.float32), np.zeros(terminated.shape, np.bool_)
        with self.store.lock:
            if steps == 1 and len(envs) == self.n:
                given = values["obs"][0], values["next_obs"][0]
                assert self.recorder.add(*given, (values["action"][0], reward[0], terminated[0], no[0]), {}, None) == self.n
                return
            some = (slice(None), 0) if one else (slice(None), slice(None))
            step = {
                "action": values["action"][some],
                "reward": reward[some],
                "terminated": terminated[some],
                "truncated": no[some],
            }
            obs, following = values["obs"][some], values["next_obs"][some]
            recorded, _ = self.recorder.extend(step, obs, following, envs[0] if one else None)
            assert recorded == terminated.size

    def clear(self) -> None:
        """Drop everything."""
        with self.store.lock:
            self.recorder.clear(protected=False)
        for rows in self.rows:
            if rows:
                rows[-1][2] = 1
        self.steps = []

    def check(self) -> None:
        """Compare rows in the files, episodes and counts with what was added."""
        lanes, segment_rows = self.store.layout.lanes, self.store.layout.segment_rows
        lows = self.index.table[:, LOW]
        assert self.store.heads.rows.tolist() == [len(rows) for rows in self.rows]
        assert self.store.heads.low.tolist() == lows.tolist()
        for env, rows in enumerate(self.rows):
            low = int(lows[env])
            if low >= len(rows):
                continue
            places = self.index.rows_of(env, np.arange(low, len(rows)))
            numbers, row = places // segment_rows, places % segment_rows
            found = {}
            for path in ("obs", "action", "is_last"):
                dtype = self.store.layout.schema[path].np_dtype
                files = {file: np.fromfile(self.root / path / f"c.{file}.0", dtype) for file in {*(numbers // lanes).tolist()}}
                found[path] = [
                    int(files[number // lanes].reshape(lanes, segment_rows)[number % lanes, at])
                    for number, at in zip(numbers.tolist(), row.tolist(), strict=True)
                ]
            expected = rows[low:]
            assert [each[0] for each in expected] == found["obs"]
            assert [0 if each[2] or n == len(expected) - 1 else each[1] for n, each in enumerate(expected)] == found["action"]
            assert [each[2] for each in expected] == found["is_last"]
            starts = [at for at in range(len(rows)) if (at == 0 or rows[at - 1][2]) and at > low]
            assert [at for at in self.index.starts(env).tolist() if at > low] == starts
        kept = {(env, at) for env, at in self.steps if at >= lows[env]}
        assert len(self.index) == len(kept)
        if self.capacity is None:
            assert len(kept) == len(self.steps)
        else:
            assert {*self.steps[-self.capacity :]} <= kept, "a step of the newest is gone"

    def reopen(self) -> None:
        """Close the store, and open it again."""
        self.log.close(self.store.lock)
        self.open()


@pytest.mark.parametrize("seed", range(amount(40, 1000)))
def test_what_is_recorded_is_in_the_files_and_in_the_index(tmp_path: Path, seed: int) -> None:
    rng = np.random.default_rng(seed)
    n = int(rng.choice([1, 2, 5]))
    made = Recording(tmp_path / "store", n, int(rng.integers(20, 300)) if rng.random() < 0.6 else None)
    for _ in range(int(rng.integers(4, 16))):
        match rng.choice(["add", "add", "block", "one", "one", "flush", "reopen", "seal", "clear"]):
            case "add":
                for _ in range(int(rng.integers(1, 20))):
                    made.add(rng, 1, [*range(n)])
            case "block":
                made.add(rng, int(rng.integers(2, 60)), [*range(n)])
            case "one":
                made.add(rng, int(rng.integers(2, 100)), [int(rng.integers(n))])
            case "flush":
                made.log.sync()
            case "reopen":
                made.reopen()
            case "seal":
                with made.store.lock:
                    made.log.pack()
                made.log.wait_for_sealing()
            case "clear" if rng.random() < 0.3:
                made.clear()
        made.check()
    made.reopen()
    made.check()
    assert made.log.seal_error is None
    made.log.close(made.store.lock)
