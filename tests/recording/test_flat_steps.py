"""Arrays of steps that compiled code records: the same bytes as by the way that takes stacks and packed columns, too."""

from __future__ import annotations

import shutil
import signal
import sys
import tempfile
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

import diskbuffer as db
from diskbuffer.errors import DiskBufferError
from diskbuffer.recording import flat_steps
from diskbuffer.recording.recorder import Recorder
from diskbuffer.recording.stream_log import StreamLog
from diskbuffer.store.store import Store
from tests.amounts import examples

Array = npt.NDArray[Any]
DTYPES = ("bool", "uint8", "int16", "int64", "float16", "float32", "float64", "complex64")
SHAPES: tuple[tuple[int, ...], ...] = ((), (3,), (2, 5), (77,))
MODES = ("disabled", "next_step")


def values(rng: np.random.Generator, n: int, column: db.Column, kinds: int) -> Array:
    """Return values of a few kinds, so that many are the same; zeros of both signs and NaNs among them, where they may be."""
    pool = rng.integers(0, 3, (kinds, *column.shape)).astype(column.np_dtype)
    if column.np_dtype.kind in "fc":
        pool[rng.random(pool.shape) < 0.2] *= -1
        if column.allow_nan:
            pool[rng.random(pool.shape) < 0.1] = np.nan
    return np.asarray(pool[rng.integers(0, kinds, n)])


def steps(rng: np.random.Generator, columns: dict[str, db.Column], n: int, kinds: int) -> dict[str, Any]:
    """Return arrays of steps, most of which go on from the one before."""
    found: dict[str, Any] = {"obs": {}, "next_obs": {}}
    breaks = rng.random(n) < rng.choice([0.0, 0.1, 0.5])
    for path, column in columns.items():
        if path.startswith("obs/"):
            later = values(rng, n, column, kinds)
            now = np.where(
                breaks.reshape(-1, *(1,) * len(column.shape)), values(rng, n, column, kinds), np.roll(later, 1, axis=0)
            )
            found["obs"][path[4:]], found["next_obs"][path[4:]] = now, later
        else:
            found[path] = values(rng, n, column, kinds)
    for flag in ("terminated", "truncated"):
        found[flag] = rng.random(n) < rng.choice([0.0, 0.2])
    idle = rng.random(n) < 0.3
    found["reward"] = np.where(idle, 0, rng.integers(0, 2, n)).astype(np.float32)
    return found


def rows_of(buffer: db.ReplayBuffer) -> dict[str, Array]:
    """Return every byte that counts: the rows of all segments, their checksums, and the table's lengths."""
    store: Store = buffer._store
    found: dict[str, Array] = {}
    for stream in range(store.layout.streams):
        for ordinal, slot in enumerate(buffer._reader.index.slots(stream).tolist()):
            length = store.table.length(slot)
            for path in store.layout.schema:
                data = (buffer.path / store.layout.data_file(path, slot)).read_bytes()
                rows = np.frombuffer(data, np.uint8).reshape(store.layout.segment_rows, -1)[:length]
                found[f"{stream} {ordinal} {path}"] = rows
    found["table"] = buffer._reader.index.table[:, :5]
    return found


def same(one: db.ReplayBuffer, other: db.ReplayBuffer) -> None:
    left, right = rows_of(one), rows_of(other)
    assert left.keys() == right.keys()
    for name, rows in left.items():
        np.testing.assert_array_equal(rows, right[name], err_msg=name)
    for stream in range(one.n_envs):
        np.testing.assert_array_equal(one._reader.index.starts(stream), other._reader.index.starts(stream))
    assert (len(one), one.stats()["cut_off"]) == (len(other), other.stats()["cut_off"])


def slowly(buffer: db.ReplayBuffer) -> db.ReplayBuffer:
    """Have a buffer take the other way."""
    buffer._recorder._trajectories._flat = None
    return buffer


@examples(6, 300)
@given(st.integers(0, 2**32), st.data())
def test_it_is_the_same_as_by_the_other_way(seed: int, data: st.DataObject) -> None:
    """Schemas, dtypes, sizes of segments, evictions, ends, resets, cuts and what is told are drawn; `add` comes in between."""
    rng = np.random.default_rng(seed)
    columns = {
        name: db.Column(
            data.draw(st.sampled_from(SHAPES)), data.draw(st.sampled_from(DTYPES)), allow_nan=data.draw(st.booleans())
        )
        for name in ("obs/a", "obs/b", "action", "more")[data.draw(st.integers(0, 1)) :]
    }
    n_envs = data.draw(st.integers(1, 2))
    options: dict[str, Any] = {
        "autoreset": data.draw(st.sampled_from(MODES)),
        "frame_stack": data.draw(st.sampled_from([1, 3])),
    }
    with tempfile.TemporaryDirectory() as where:
        ways = [Path(where) / name for name in ("fast", "slow")]
        capacity = data.draw(st.sampled_from([None, 40, 300]))
        rows = data.draw(st.sampled_from([8, 32, 256]))
        db.ReplayBuffer(ways[0], capacity, columns=columns, n_envs=n_envs, segment_rows=rows).close()
        shutil.copytree(ways[0], ways[1])  # the checksums of rows begin with a number of the store's own
        with db.ReplayBuffer(ways[0], **options) as fast, db.ReplayBuffer(ways[1], **options) as slow:
            assert fast._recorder._trajectories._flat is not None
            slowly(slow)
            fast._expect_cut_offs()
            slow._expect_cut_offs()
            for _ in range(data.draw(st.integers(1, 6))):
                n, env = data.draw(st.integers(0, 100)), data.draw(st.integers(0, n_envs - 1))
                call = steps(rng, columns, n, data.draw(st.sampled_from([1, 2, 50])))
                call["new_episode"] = [None, None, True, False, rng.random(n) < 0.3][data.draw(st.integers(0, 4))]
                for buffer in (fast, slow):
                    if n == 0 and call["new_episode"] is not None:
                        call["new_episode"] = None
                    buffer.extend(env=env, **call)
                    if seed % 3 == 0:
                        buffer.cut_off([env])
                    if seed % 5 == 0 and n:
                        buffer.add(**each_env(call, n_envs))
                same(fast, slow)
        with db.ReplayBuffer(ways[0]) as fast, db.ReplayBuffer(ways[1]) as slow:
            same(fast, slow)
            assert fast.check(progress=False).ok


def each_env(call: dict[str, Any], n_envs: int) -> dict[str, Any]:
    """Return the first step of a call, for every environment."""

    def first(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: first(part) for name, part in value.items()}
        return np.repeat(value[:1], n_envs, axis=0)

    return {name: first(value) for name, value in call.items() if name != "new_episode"}


def small(path: Path, **options: Any) -> db.ReplayBuffer:
    return db.ReplayBuffer(path, columns={"obs": db.Column((2,)), "action": db.Column((), "int64")}, segment_rows=8, **options)


def trajectory(n: int, first: int = 0) -> dict[str, Any]:
    obs = np.arange(first, first + n + 1, dtype=np.float32)[:, None].repeat(2, axis=1)
    return {"obs": obs, "action": np.arange(first, first + n), "reward": np.ones(n)}


def test_a_trajectory_and_an_empty_call(tmp_path: Path) -> None:
    with small(tmp_path / "store") as buffer:
        assert buffer.extend(**trajectory(0)) == 0
        assert buffer.extend(**trajectory(30)) == 30
        assert buffer.extend(**trajectory(5, 30)) == 5  # which goes on
        assert len(buffer.episodes) == 1
        batch = buffer.at(buffer.steps())
        assert batch["action"].tolist() == list(range(35))
        assert batch["next_obs"][:, 0].tolist() == list(range(1, 36))


def test_protected_episodes(tmp_path: Path) -> None:
    with small(tmp_path / "store", capacity=16, protected=True) as buffer:
        for _ in range(3):
            buffer.extend(**trajectory(20), protect=True)
            buffer.extend(**trajectory(20))
        assert len(buffer.episodes[buffer.episodes.stream == 1]) == 3
        assert buffer.check(progress=False).ok


def test_a_full_disk_keeps_what_was_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with small(tmp_path / "store") as buffer:
        real, left = StreamLog.make_room_for_rows, [3]

        def fails(log: Any, *arguments: Any) -> Any:
            left[0] -= 1
            if left[0] == 0:
                raise OSError(28, "No space left on device")
            return real(log, *arguments)

        monkeypatch.setattr(StreamLog, "make_room_for_rows", fails)
        with pytest.raises(OSError, match="No space"):
            buffer.extend(**trajectory(40))
        kept = len(buffer)
        assert 0 < kept < 40
        assert buffer.extend(**trajectory(40 - kept, kept)) == 40 - kept
        assert len(buffer.episodes) == 1
        assert buffer.at(buffer.steps())["action"].tolist() == list(range(40))
        assert buffer.check(progress=False).ok


@pytest.mark.parametrize("line", range(0, 60, 5))
def test_a_ctrl_c_at_any_line_leaves_all_steps_or_none_of_a_call(line: int, tmp_path: Path) -> None:
    """A signal that comes while lines of the recording run; a block of so few steps is recorded as a whole."""
    files = {Recorder.extend.__code__.co_filename, flat_steps.__file__}
    with small(tmp_path / "store") as buffer:
        buffer.extend(**trajectory(20))
        left = [line]

        def trace(frame: FrameType, event: str, _: Any) -> Any:
            if frame.f_code.co_filename not in files and "trajectories" not in frame.f_code.co_filename:
                return None
            if event == "line":
                left[0] -= 1
                if left[0] == 0:
                    signal.raise_signal(signal.SIGINT)
            return trace

        sys.settrace(trace)
        try:
            buffer.extend(**trajectory(30, 20))
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(None)
        kept = len(buffer)
        assert kept in (20, 50)
        buffer.extend(**trajectory(7, kept))
        assert buffer.at(buffer.steps())["action"].tolist() == list(range(kept + 7))
        assert len(buffer.episodes) == 1
    assert db.check(tmp_path / "store", progress=False).ok


def test_nothing_is_recorded_of_what_does_not_fit(tmp_path: Path) -> None:
    with small(tmp_path / "store") as buffer:
        wrong = trajectory(10) | {"reward": np.full(10, np.nan)}
        with pytest.raises(DiskBufferError, match="NaN"):
            buffer.extend(**wrong)
        assert len(buffer) == 0
