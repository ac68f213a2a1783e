"""Reading while another thread changes the buffer, or reads too, at each instant at which it can."""

from __future__ import annotations

import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import diskbuffer as db
from diskbuffer import buffer as buffer_module
from diskbuffer.reading import batch_reader, batch_source
from diskbuffer.reading.batches import single_steps

FILES = {module.__file__ for module in (buffer_module, batch_source, batch_reader, single_steps)}
SIZE = 128  # of batches, of more than the 64 KiB up to which their memory is not used again
SIGNS = {"a": 1, "b": -1}
Array = npt.NDArray[Any]


def numbered(n: Array) -> Array:
    return n[:, None] * 1000.0 + np.arange(80)


class Other:
    """A thread that acts, from start to end, at one of the lines of a call during which it need not wait for a lock."""

    def __init__(self, buffer: db.ReplayBuffer, act: Callable[[], Any], at: int) -> None:
        self._lock, self._act, self._left, self.acted = buffer._store.lock, act, at, False

    def _trace(self, frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code.co_filename not in FILES:
            return None
        if event == "line" and not self.acted and not self._lock._is_owned():  # type: ignore[attr-defined]
            self._left -= 1
            if self._left < 0:
                self.acted = True
                with ThreadPoolExecutor(1) as pool:
                    pool.submit(self._act).result()
        return self._trace

    def during(self, call: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        before = sys.gettrace()
        sys.settrace(self._trace)
        try:
            return call()
        finally:
            sys.settrace(before)


@pytest.mark.some(3)
@pytest.mark.parametrize("act", ["extend", "columns", "read"])
@pytest.mark.parametrize("how", ["random", "newest", "epochs", "prioritized", "at", "recent"])
def test_a_batch_has_its_own_steps(tmp_path: Path, how: str, act: str, amount: Callable[[int, int], int]) -> None:
    columns = {"obs": db.Column((80,), "float64"), "action": db.Column((), "int64")}
    buffer = db.ReplayBuffer(tmp_path / "store", 512, columns=columns, segment_rows=64, seed=0, threads=1)
    added = values = 0

    def extend(n: int) -> None:
        nonlocal added
        steps = np.arange(added, added + n + 1)
        buffer.extend(obs=numbered(steps), action=steps[:-1], reward=(steps[:-1] % 1000).astype(np.float32))
        added += n

    def extend_and_read() -> None:
        for n in (400, 300):  # so that the files of most rows have others by then, and are mapped
            extend(n)
            buffer.at(buffer.steps())

    def change_columns() -> None:
        """Have the places of columns be others."""
        nonlocal values
        names = ("a", "b") if values % 2 else ("b", "a")
        values += 1
        for name in {*names} & {*buffer.columns}:
            buffer.columns.remove(name)
        for name in names:
            buffer.columns.write(name, buffer.steps(), SIGNS[name] * buffer.steps())

    def read() -> dict[str, Any]:
        if how == "at":
            steps = rng.permutation(buffer.steps())[:SIZE]
            return buffer.at(steps) | {"asked": steps}
        if how == "recent":
            ages, newest = rng.permutation(256)[:SIZE], added - 1
            return buffer.at(ages=ages) | ({"asked": newest - ages} if newest == added - 1 else {})
        return buffer.sample(SIZE, sampler)

    extend(600)
    rng = np.random.default_rng(0)
    samplers = {"newest": db.Uniform(newest=4), "epochs": db.Uniform(replace=False), "prioritized": db.Prioritized()}
    sampler = samplers.get(how)
    acts = {"extend": extend_and_read, "columns": change_columns, "read": read}
    for _ in range(64):  # until it is known that the rows are in memory
        read()
    acted, at, kept = True, 0, list[Any]()
    while acted:
        other = Other(buffer, acts[act], at)
        try:
            batch = other.during(read)
        except db.InputError:  # these steps were evicted before they were asked for
            if how not in ("at", "recent") or act != "extend":
                raise
            batch = None
        acted, at = other.acted, at + amount(3, 1)
        if batch is None:
            continue
        steps = batch["steps"].numpy()
        np.testing.assert_array_equal(steps, batch.get("asked", steps))
        kept = [*kept, (batch["obs"], steps)][-3:]
        for obs, of in kept:  # nor does another batch use its memory
            np.testing.assert_array_equal(obs.numpy(), numbered(of))
        np.testing.assert_array_equal(batch["next_obs"].numpy(), numbered(steps + 1))
        np.testing.assert_array_equal(batch["action"].numpy(), steps)
        np.testing.assert_array_equal(batch["reward"].numpy(), steps % 1000)
        for name in {"a", "b"} & {*batch}:
            assert set((batch[name].numpy() - SIGNS[name] * steps)[batch[name].numpy() != 0]) <= {0}
    assert at > 10
    buffer.close()
