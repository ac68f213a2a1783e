"""Ctrl-C at any instant: the buffer goes on in the same process, and holds what it says, as does the store when reopened."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
import torch

import diskbuffer as db
from diskbuffer.opening import closing as buffer_closing
from diskbuffer.reading import batch_reader, follow_index
from diskbuffer.runtime import signals
from diskbuffer.store import following as store_following
from diskbuffer.store import store
from diskbuffer.store.segments import mapped
from diskbuffer.writers import columns as writers_columns
from diskbuffer.writers import members
from diskbuffer.writers import store as writers_store
from tests.support.storm import Storm, Strike

COLUMNS = {"obs": db.Column((1024,), "uint8"), "action": db.Column((), "int64")}


def frames(n: int) -> np.ndarray:
    return np.full((2, 1024), n % 251, np.uint8) + np.arange(2, dtype=np.uint8)[:, None]


def check(buffer: db.ReplayBuffer, added: list[int]) -> None:
    """Compare all that the buffer holds with the steps that were added: numbers, in order, equal in both streams."""
    total = buffer.stats()["added"]
    assert total == 2 * len(added)
    if not added:
        return
    episodes = buffer.episodes
    for stream in range(2):
        mine = np.flatnonzero(episodes.stream == stream)
        steps = np.concatenate([np.arange(e.length) * 2 + e.start for e in (episodes[int(n)] for n in mine)])
        batch = buffer.at(steps)
        kept = np.array(added[-len(steps) :])
        assert (batch["action"].numpy() == kept).all()
        for name, n in (("obs", kept), ("next_obs", kept + 1)):
            assert (batch[name].numpy() == ((n % 251) + stream)[:, None]).all()


def adding(path: Path, storm: Storm, interrupts: int) -> None:
    """Interrupt `add` and `sample`; no step is lost, none is there twice."""
    rng = np.random.default_rng(0)
    options = {"capacity": 400, "columns": COLUMNS, "n_envs": 2, "segment_rows": 64, "autoreset": "disabled"}
    zero, none = np.zeros(2, np.float32), np.zeros(2, np.bool_)
    with db.ReplayBuffer(path, **options) as buffer:  # type: ignore[arg-type]
        added: list[int] = []
        n = 0
        while n < 300:
            buffer.add(frames(n), np.full(2, n), zero, frames(n + 1), none, none)
            added.append(n)
            n += 1
        buffer.flush(recompress=True)
        check(buffer, added)
        buffer.sample(8)
        buffer.cut_off()
        for _ in range(interrupts):
            before = buffer.stats()["added"]
            started = n
            try:
                storm.arm(rng.exponential(0.002) + 1e-5)
                while True:
                    started = n  # the step at hand
                    end = np.full(2, n % 37 == 36)
                    buffer.add(frames(n), np.full(2, n), zero, frames(n + 1), end, none)
                    added.append(n)
                    n = n + 1 + int(end[0])
                    if n % 29 == 0:
                        buffer.sample(8)
            except KeyboardInterrupt:
                storm.calm()
                recorded = (buffer.stats()["added"] - before) // 2
                missing = recorded - (len(added) - before // 2)
                assert missing in (0, 1)
                if missing:
                    added.append(started)
                if added and added[-1] == started:
                    n = started + 1 + int(started % 37 == 36)
            check(buffer, added)
    with db.ReplayBuffer(path) as buffer:
        check(buffer, added)


def extending(path: Path, storm: Storm, interrupts: int) -> None:
    """Interrupt `extend`; it happens as a whole or not at all."""
    rng = np.random.default_rng(1)
    columns = {"obs": db.Column((), "int64"), "action": db.Column((), "int64")}
    with db.ReplayBuffer(path, columns=columns, segment_rows=1024) as buffer:
        buffer.extend(obs=np.arange(5001), action=np.arange(5000), reward=np.zeros(5000))
        buffer.flush(recompress=True)
        for _ in range(interrupts // 6):
            first = len(buffer)
            try:
                storm.arm(rng.exponential(0.02) + 1e-4)
                while True:
                    n = len(buffer)
                    buffer.extend(obs=np.arange(n, n + 5001), action=np.arange(n, n + 5000), reward=np.zeros(5000))
            except KeyboardInterrupt:
                storm.calm()
            assert len(buffer) % 5000 == 0
            assert len(buffer) >= first
        every = buffer.at(buffer.episodes[0].start + np.arange(len(buffer)))
        assert (every["action"].numpy() == np.arange(len(buffer))).all()
        assert (every["next_obs"].numpy() == np.arange(len(buffer)) + 1).all()


def rows_of(path: Path) -> int:
    with db.ReplayBuffer(path, mode="r") as buffer:
        return len(buffer)


def copying(path: Path, storm: Storm, interrupts: int) -> None:
    """Interrupt `snapshot` and `mark`; a copy is whole, or nothing is left of it, but what Python loses in a `__del__`."""
    rng, target, marks = np.random.default_rng(2), path.with_name("copy"), path / "_segments" / "length" / "marks"
    columns = {"obs": db.Column((), "int64"), "action": db.Column((), "int64")}
    with db.ReplayBuffer(path, columns=columns, segment_rows=8) as buffer:
        buffer.extend(obs=np.arange(401), action=np.arange(400), reward=np.zeros(400))
        buffer.flush(recompress=True)  # nothing is being sealed, here and where they are counted again
        gc.collect()
        opened, lost = len(os.listdir("/dev/fd")), list[object]()
        buffer.extend(obs=np.arange(101), action=np.arange(100), reward=np.zeros(100))
        sys.unraisablehook = lambda raised: lost.append(raised.exc_type)
        for _ in range(interrupts):
            for call in (lambda: buffer.copies.snapshot(target), lambda: buffer.copies.mark("mark", replace=True)):
                seconds = -time.perf_counter()
                call()
                shutil.rmtree(target, ignore_errors=True)
                seconds += time.perf_counter()
                try:
                    storm.arm(rng.uniform(1e-5, seconds))
                    call()
                    storm.calm()
                except KeyboardInterrupt:
                    storm.calm()
                assert sorted(os.listdir(path.parent)) in (["copy", "store"], ["store"])
                assert not marks.exists() or os.listdir(marks) == ["mark"]
                if target.exists():
                    assert rows_of(target) == 500
                    shutil.rmtree(target)
        buffer.flush(recompress=True)
        gc.collect()
        assert opened <= len(os.listdir("/dev/fd")) <= opened + len(lost)


def run_alone(scenario: str, *arguments: str) -> None:
    """Run a scenario of this file in a process of its own.

    An interrupt may strike in a `__del__`, where Python prints it and goes on; and one that a tracer raises may leave behind an
    exception that Python takes for the one being handled from then on.
    """
    command = [sys.executable, "-m", "tests.runtime.test_interrupt", scenario, *arguments]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2])
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == "whole\n"


@pytest.mark.some(1)
@pytest.mark.parametrize("scenario", ["adding", "extending", "copying"])
def test_a_keyboard_interrupt_at_any_instant_leaves_the_buffer_whole(
    scenario: str, tmp_path: Path, amount: Callable[[int, int], int]
) -> None:
    run_alone(scenario, str(tmp_path / "store"), str(amount(12, 300)))


def striking(number: int, also: int | None) -> None:
    """Strike at every instruction of the guard: the signal is handled, after the block or before it; so is `also`, within."""
    handled: list[int] = []

    def handler(given: int, frame: FrameType | None) -> None:
        handled.append(given)
        raise KeyboardInterrupt

    before = {each: signal.signal(each, handler) for each in signals._SIGNALS}
    tracing = sys.gettrace()
    try:
        at, struck = 0, True
        while struck:
            at, entered = at + 1, False
            handled.clear()
            strike = Strike(at, number)
            try:
                sys.settrace(strike.trace)
                with signals.Uninterrupted():
                    entered = True
                    if also is not None:
                        signal.raise_signal(also)
                    assert handled == []
            except KeyboardInterrupt:
                pass
            finally:
                sys.settrace(tracing)
            struck = strike.instructions >= at
            assert [signal.getsignal(each) for each in signals._SIGNALS] == [handler] * len(signals._SIGNALS), at
            assert number in handled or not struck, at
            assert also is None or also in handled or not entered, at
            assert len(handled) <= 3  # where one comes while the other is being handled, that may be done twice
        assert at > 100
    finally:
        for each, old in before.items():
            signal.signal(each, old)


@pytest.mark.some(1)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR2])
def test_handlers_are_put_back_whatever_instruction_of_the_guard_a_signal_comes_at(number: int) -> None:
    run_alone("striking", str(int(number)))


def test_a_guard_within_a_guard_puts_signals_off_until_the_outer_one_is_left() -> None:
    handled: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, _: handled.append(number))
    try:
        with signals.Uninterrupted():
            with signals.Uninterrupted():
                signal.raise_signal(signal.SIGUSR1)
            assert handled == []
        assert handled == [signal.SIGUSR1]
    finally:
        signal.signal(signal.SIGUSR1, before)


def mapping(path: Path, apart: int) -> None:
    """Strike at the instructions that map files, so far apart: none is left mapped that was not verified."""
    with db.ReplayBuffer(path, columns=COLUMNS, n_envs=2, segment_rows=64, autoreset="disabled") as buffer:
        for n in range(100):
            buffer.add(frames(n), np.full(2, n), np.zeros(2), frames(n + 1), np.zeros(2, np.bool_), np.zeros(2, np.bool_))
    with db.ReplayBuffer(path, mode="r") as buffer:
        maps, verified, wanted = buffer._store.maps, set[int](), range(4)
        verify = maps._verify

        def note(slots: Sequence[int], *, damaged: bool = False) -> None:
            verify(slots, damaged=damaged)
            verified.update(slots)

        maps._verify = note
        at, struck, interrupted = 0, True, 0
        while struck:
            at += apart
            for slot in wanted:
                maps.retire(slot)
            verified.clear()
            strike = Strike(at, signal.SIGINT, mapped.__file__)
            try:
                sys.settrace(strike.trace)
                maps.ensure(wanted)
            except KeyboardInterrupt:
                interrupted += 1
            finally:
                sys.settrace(None)
            struck = strike.instructions >= at
            assert {slot for slot in wanted if maps.sources[:, slot].any()} <= verified, at
        assert interrupted > 10


@pytest.mark.nightly
def test_what_is_mapped_when_a_signal_comes_is_not_read_unverified(tmp_path: Path) -> None:
    run_alone("mapping", str(tmp_path / "store"), "43")


def writing(path: Path, apart: int) -> None:
    """Strike at the instructions that map files while a column is written and removed: all that is there is read then."""
    with db.ReplayBuffer(
        path, columns={"obs": db.Column((), "int64"), "action": db.Column((), "int64")}, segment_rows=8
    ) as buffer:
        buffer.extend(obs=np.arange(41), action=np.arange(40), reward=np.zeros(40))
        steps = buffer.steps()
        at, struck, interrupted = 0, True, 0
        while struck:
            at += apart
            strike = Strike(at, signal.SIGINT, mapped.__file__)
            try:
                sys.settrace(strike.trace)
                buffer.columns.write("value", steps, steps + 1)
                buffer.columns.remove("value")
            except KeyboardInterrupt:
                interrupted += 1
            finally:
                sys.settrace(None)
            struck = strike.instructions >= at
            batch = buffer.at(steps)
            assert (batch["action"].numpy() == np.arange(40)).all(), at
            if "value" in batch:
                value = batch["value"].numpy()
                assert ((value == 0) | (value == steps + 1)).all(), at
                buffer.columns.remove("value")
        assert interrupted > 10


@pytest.mark.nightly
def test_a_column_is_read_after_a_signal_while_its_files_were_mapped(tmp_path: Path) -> None:
    run_alone("writing", str(tmp_path / "store"), "5")


def following(path: Path, apart: int, n_writers: int) -> None:
    """Strike at the instructions that follow writers which evict: what is read then is theirs."""
    columns = {"obs": db.Column((), "int64"), "action": db.Column((), "int64")}
    names = [None] if n_writers == 1 else [f"w{n}" for n in range(n_writers)]
    writers = [db.ReplayBuffer(path, 64, columns=columns, writer=name, segment_rows=8) for name in names]
    followed = (mapped, store_following, store, follow_index, batch_reader)
    added = 0

    def add() -> None:
        nonlocal added
        for writer in writers:
            writer.extend(obs=np.arange(added, added + 31), action=np.arange(added, added + 30), reward=np.zeros(30))
            added += 31

    def check(batch: Any) -> None:
        assert torch.equal(batch["obs"], batch["action"]), at
        assert torch.equal(batch["next_obs"], batch["action"] + 1), at

    add()
    with db.ReplayBuffer(path, mode="r") as reader:
        for module in (*followed, *((members, writers_columns, writers_store) if n_writers > 1 else ())):
            at, struck, interrupted = 0, True, 0
            while struck:
                at += apart
                add()
                assert module.__file__ is not None
                strike = Strike(at, signal.SIGINT, module.__file__)
                try:
                    sys.settrace(strike.trace)
                    reader.refresh()
                    check(reader.sample(16))
                    if n_writers > 1:
                        steps = reader.steps()[-20:]
                        reader.columns.write("value", steps, steps)
                except KeyboardInterrupt:
                    interrupted += 1
                finally:
                    sys.settrace(None)
                struck = strike.instructions >= at
                check(reader.sample(16))
                reader.refresh()
                check(reader.at(reader.steps()))
            assert interrupted > 2, module
    for writer in writers:
        writer.close()


@pytest.mark.nightly
@pytest.mark.parametrize("writers", [1, 2])
def test_a_reader_goes_on_after_a_signal_while_it_followed_its_writers(writers: int, tmp_path: Path) -> None:
    run_alone("following", str(tmp_path / "store"), "37", str(writers))


def closing(path: Path, apart: int) -> None:
    """Strike at instructions of `close` and of the guard within: the buffer is whole, and whoever closes it again can open it."""
    for file in (buffer_closing.__file__, signals.__file__):
        at, struck, interrupted, added = 0, True, 0, 0
        while struck:
            at += apart
            buffer = db.ReplayBuffer(path, columns=COLUMNS, n_envs=2, segment_rows=64, autoreset="disabled")
            assert buffer.stats()["added"] == 2 * added
            n, none = added, np.zeros(2, np.bool_)
            buffer.add(frames(n), np.full(2, n), np.zeros(2), frames(n + 1), none, none, new_episode=n == 0)
            added += 1
            strike = Strike(at, signal.SIGINT, file)
            try:
                sys.settrace(strike.trace)
                buffer.close()
            except KeyboardInterrupt:
                interrupted += 1
            finally:
                sys.settrace(None)
            struck = strike.instructions >= at
            buffer.close()
        assert interrupted > 10
        shutil.rmtree(path)


@pytest.mark.nightly
def test_a_buffer_that_is_closed_when_a_signal_comes_can_be_opened_again(tmp_path: Path) -> None:
    run_alone("closing", str(tmp_path / "store"), "1")


ALONE: dict[str, Callable[..., None]] = {"mapping": mapping, "closing": closing, "writing": writing, "following": following}

if __name__ == "__main__":
    scenario, argument, *more = sys.argv[1:]
    if scenario == "striking":
        for also in (None, signal.SIGTERM, signal.SIGINT):
            striking(int(argument), also)
    elif scenario in ALONE:
        ALONE[scenario](Path(argument), *map(int, more))
    else:
        storm = Storm()
        signal.signal(signal.SIGALRM, storm.strike)
        {"adding": adding, "extending": extending, "copying": copying}[scenario](Path(argument), storm, *map(int, more))
    print("whole")


@pytest.mark.parametrize("name", ["close", "flush"])
def test_a_handler_that_calls_what_would_wait_for_the_interrupted_call_is_told(tmp_path: Path, name: str) -> None:
    columns = {"obs": db.Column((2,)), "action": db.Column((), "int64")}
    with db.ReplayBuffer(tmp_path / "store", columns=columns, segment_rows=8) as buffer:
        before = signal.signal(signal.SIGUSR1, lambda *_: getattr(buffer, name)())
        try:
            with pytest.raises(db.InputError, match=rf"{name}\(\) was called within another call"), buffer._store.lock:
                signal.raise_signal(signal.SIGUSR1)
            buffer.extend(np.zeros((31, 2)), np.arange(30), np.zeros(30))
            signal.raise_signal(signal.SIGUSR1)  # between two calls
        finally:
            signal.signal(signal.SIGUSR1, before)
    assert db.check(tmp_path / "store", progress=False).ok
