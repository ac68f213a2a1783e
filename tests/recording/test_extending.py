"""Arrays of steps: what is there after a full disk, a Ctrl-C or bad values, and what is evicted meanwhile."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

import diskbuffer as db
from diskbuffer.recording import blocks, recorder
from diskbuffer.recording.stream_log import StreamLog


def small(path: Path, capacity: int | None = None, **options: Any) -> db.ReplayBuffer:
    columns = {"obs": db.Column((2,), "float32"), "action": db.Column((), "int64")}
    return db.ReplayBuffer(path, capacity, columns=columns, segment_rows=16, **options)


def trajectory(n: int, first: int = 0) -> dict[str, Any]:
    """Return steps that are numbered, of an episode that goes on."""
    numbers = np.arange(first, first + n + 1)
    return {"obs": np.stack([numbers] * 2, 1).astype(np.float32), "action": numbers[:-1], "reward": np.zeros(n)}


def test_what_is_too_old_goes_while_an_array_is_added(tmp_path: Path, amount: Callable[[int, int], int]) -> None:
    """An array of many times the capacity takes no more segments than the capacity does."""
    steps = amount(3_000, 10_000)
    with small(tmp_path / "store", 100) as buffer:
        assert buffer.extend(**trajectory(steps)) == steps
        kept = buffer.at(buffer.steps())["action"].tolist()
        assert kept == list(range(steps - len(kept), steps))
        assert 100 <= len(kept) <= 116
        assert len(list((tmp_path / "store" / "action").glob("c.*"))) <= 16
        assert buffer.check(progress=False).ok


def test_a_full_disk_keeps_what_was_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with small(tmp_path / "store") as buffer:
        real, left = StreamLog.make_room, [3]

        def fails(log: Any, *arguments: Any) -> Any:
            left[0] -= 1
            if left[0] == 0:
                raise OSError(28, "No space left on device")
            return real(log, *arguments)

        monkeypatch.setattr(StreamLog, "make_room", fails)
        with pytest.raises(OSError, match="No space"):
            buffer.extend(**trajectory(60))
        kept = len(buffer)
        assert 0 < kept < 60
        assert buffer.extend(**trajectory(60 - kept, kept)) == 60 - kept
        assert len(buffer.episodes) == 1
        assert buffer.at(buffer.steps())["action"].tolist() == list(range(60))
        assert buffer.check(progress=False).ok


def test_an_add_to_what_another_thread_closes_is_not_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, stock = list[int](), list[int]()

    def fails(*_: Any) -> None:
        asked.append(1)
        raise db.errors.ClosedError("closed meanwhile")

    with small(tmp_path / "store") as buffer:
        monkeypatch.setattr(StreamLog, "make_room", fails)
        monkeypatch.setattr(recorder.Recorder, "_take_stock", lambda _: stock.append(1))
        with pytest.raises(db.errors.ClosedError):
            buffer.add(np.zeros(2, np.float32), 0, 0.0, np.zeros(2, np.float32), False, False)
        assert len(asked) == len(stock) == 1


@pytest.mark.some(8)
@pytest.mark.parametrize("line", range(1, 90, 4))
def test_a_ctrl_c_at_any_line_leaves_all_steps_or_none_of_a_call(line: int, tmp_path: Path) -> None:
    """A signal that comes while lines of the recording run; a block of so few steps is recorded as a whole."""
    files = {recorder.__file__, blocks.__file__}
    with small(tmp_path / "store") as buffer:
        buffer.extend(**trajectory(20))
        left = [line]

        def trace(frame: FrameType, event: str, _: Any) -> Any:
            if frame.f_code.co_filename not in files:
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


@pytest.mark.parametrize("n_envs", [1, 3])
@pytest.mark.parametrize("new_episode", [None, False, True, []])
def test_no_steps_are_none(tmp_path: Path, n_envs: int, new_episode: Any) -> None:
    """Whatever is said of which of them start an episode."""
    shape = (0,) if n_envs == 1 else (0, n_envs)
    obs, numbers = np.zeros((*shape, 2), np.float32), np.zeros(shape)
    starts = np.zeros(shape, np.bool_) if new_episode == [] else new_episode
    with small(tmp_path / "store", n_envs=n_envs, autoreset="disabled") as buffer:
        assert buffer.extend(obs=obs, action=numbers, reward=numbers, next_obs=obs, new_episode=starts) == 0
        assert len(buffer) == 0
