"""A limiter over Ray: the ratio holds, whoever dies; nobody waits for ever; and its numbers do not depend on what gets lost."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import diskbuffer as db
from diskbuffer.limiting import fields
from diskbuffer.native import limiter
from tests.amounts import examples

ray = pytest.importorskip("ray", reason="needs Ray: pip install 'diskbuffer[ray]'")

from diskbuffer.adapters.ray import RayReplayBuffer  # noqa: E402
from diskbuffer.adapters.ray.limiting.ledger import Ledger, Settings  # noqa: E402

COLUMNS = {"obs": db.Column((3,), "float32"), "action": db.Column((), "int64")}
pytestmark = pytest.mark.filterwarnings("ignore")  # Ray's own


def extend(buffer: RayReplayBuffer, steps: int) -> None:
    buffer.extend(np.zeros((steps + 1, 3), np.float32), np.zeros(steps, np.int64), np.ones(steps), new_episode=True)


def limiter_of(buffer: RayReplayBuffer) -> Any:
    assert buffer.limiter is not None
    return buffer.limiter


def learn(buffer: RayReplayBuffer, until: threading.Event, failed: list[Exception], loader: bool) -> None:
    try:
        batches = buffer.loader(16, prefetch=2) if loader else iter(lambda: buffer.sample(16), None)
        while not until.is_set():
            next(batches)
    except db.errors.ClosedError:
        return
    except db.DiskBufferError as error:
        failed.append(error)


@pytest.mark.nightly
def test_the_ratio_holds_with_prefetching_while_the_counter_and_a_shard_die(cluster: None, tmp_path: Path) -> None:
    asked = db.SampleToInsertRatio(2, min_size=100, error_buffer=100, timeout=60)
    options: dict[str, Any] = {"columns": COLUMNS, "near": False, "block": 16, "patience": 20.0, "refresh_every": 0.05}
    with RayReplayBuffer(tmp_path / "all", shards=1, limiter=asked, **options) as buffer:
        stop, failed = threading.Event(), list[Exception]()
        learner = RayReplayBuffer._attached(*buffer.__reduce__()[1])
        thread = threading.Thread(target=learn, args=(learner, stop, failed, True))
        thread.start()
        for n in range(40):
            extend(buffer, 50)
            if n == 15:
                ray.kill(buffer._counter, no_restart=False)
            if n == 25:
                pid = ray.get(buffer._shards.known[0].handle.about.remote())["pid"]
                os.kill(pid, signal.SIGKILL)
        buffer.flush(sync=False)
        until = time.monotonic() + 60
        while limiter_of(buffer).state()["surplus"] > -100 and time.monotonic() < until:
            time.sleep(0.05)
        state = buffer.stats()["limiter"]
        stop.set()
        limiter_of(learner).close()
        thread.join(60)
        assert not failed
        assert state["added"] == 2000
        assert abs(state["surplus"]) <= 100 + 2 * 16
        assert state["restarted"]
        assert state["learners_alive"]
        assert buffer.stats()["limiter"]["inserts"] == 1900
        learner.close()
    with RayReplayBuffer(tmp_path / "all", shards=1, limiter=asked, **options) as buffer:  # goes on with its counts
        again = buffer.stats()["limiter"]
        assert (again["inserts"], again["restarted"]) == (1900, False)
        assert again["samples"] >= state["samples"]


@pytest.mark.nightly
def test_waits_end_with_time_outs_that_tell_what_is_missing(cluster: None, tmp_path: Path) -> None:
    asked = db.SampleToInsertRatio(4, min_size=50, error_buffer=32, timeout=0)
    with RayReplayBuffer(tmp_path, shards=1, columns=COLUMNS, limiter=asked, block=8) as buffer:
        extend(buffer, 40)
        buffer.flush(sync=False)
        with pytest.raises(db.errors.LimiterTimeoutError, match="40 steps in all and min_size=50"):
            buffer.sample(8)
        extend(buffer, 10)
        buffer.flush(sync=False)
        assert limiter_of(buffer).may_sample
        buffer.sample(32)
        buffer.sample(8)
        with pytest.raises(db.errors.LimiterTimeoutError):
            buffer.sample(8)
        assert not limiter_of(buffer).may_sample
        assert limiter_of(buffer).may_add
        extend(buffer, 20)
        with pytest.raises(db.errors.LimiterTimeoutError, match="no other process is alive as learner"):
            extend(buffer, 1)
        assert buffer.stats()["steps"] == 70  # what was refused was not added
        state = buffer.stats()["limiter"]
        assert (state["inserts"], state["samples"], state["surplus"]) == (20, 40, 40.0)
        other = db.SampleToInsertRatio(8)
        with pytest.raises(db.InputError, match="others use these shards with a ratio of 4"):
            RayReplayBuffer(tmp_path, shards=1, columns=COLUMNS, limiter=other, block=8)


@pytest.mark.nightly
def test_an_error_in_earlier_steps_is_raised_and_later_ones_are_kept(cluster: None, tmp_path: Path) -> None:
    asked = db.SampleToInsertRatio(1, min_size=1, error_buffer=1, timeout=60)
    with RayReplayBuffer(tmp_path, shards=1, columns=COLUMNS, limiter=asked, block=8) as buffer:
        learner, stop, failed = RayReplayBuffer._attached(*buffer.__reduce__()[1]), threading.Event(), list[db.DiskBufferError]()
        thread = threading.Thread(target=learn, args=(learner, stop, failed, False))
        thread.start()
        obs, raised = np.zeros(3, np.float32), []
        for n in range(60):
            try:
                buffer.add(obs + n, n, float("nan") if n == 40 else 0.0, obs + n + 1, False, False)
            except db.InputError as error:
                raised.append(str(error))
        buffer.flush(sync=False)
        stop.set()
        limiter_of(learner).close()
        thread.join(60)
        learner.close()
        assert len(raised) == 1
        assert "NaN" in raised[0]
        kept = buffer.at(buffer.steps())["action"].tolist()
        assert kept == sorted(kept)
        gone = set(range(60)) - set(kept)  # the block that it was in
        assert 40 in gone
        assert len(gone) <= 8
        assert max(gone) - min(gone) == len(gone) - 1


# What needs no cluster

EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("added"), st.integers(0, 3), st.integers(0, 50)),
        st.tuples(st.just("sampled"), st.sampled_from("abc"), st.integers(0, 50)),
    ),
    max_size=40,
)


@given(EVENTS, st.randoms(use_true_random=False), st.integers(1, 3))
@examples(50, 1000)
def test_copies_agree_whatever_order_and_however_often_they_hear(events: list[Any], random: Any, copies: int) -> None:
    asked = Settings(2.0, 10, 20.0)
    whole = Ledger(asked)
    for shard in range(4):
        whole.note_added(shard, 7)  # were there before
    all_of = [Ledger.from_bytes(whole.to_bytes()) for _ in range(copies)]
    added, samples = dict.fromkeys(range(4), 7), dict.fromkeys("abc", 0)
    for what, whom, more in events:
        numbers: Any = added if what == "added" else samples
        numbers[whom] += more
        for ledger in (whole, random.choice(all_of)):
            (ledger.note_added if what == "added" else ledger.note_sampled)(whom, numbers[whom])
        if random.random() < 0.3:  # one that is old, and to another
            (all_of[0].note_added if what == "added" else all_of[0].note_sampled)(whom, numbers[whom] - more)
    merged = Ledger(asked, changes=-1)
    for ledger in random.sample(all_of * 2, 2 * copies):
        merged.merge(Ledger.from_bytes(ledger.to_bytes()))
    assert merged.counts == whole.counts == (sum(added.values()), sum(added.values()) - 28, sum(samples.values()))
    assert merged.surplus == whole.surplus


@given(EVENTS, st.sampled_from([0.5, 1.0, 4.0]), st.integers(1, 60), st.sampled_from([0.0, 8.0, 100.0]), st.integers(1, 4))
@examples(50, 1000)
def test_the_rule_is_that_of_one_machine(events: list[Any], ratio: float, size: int, bound: float, many: int) -> None:
    ledger, words = Ledger(Settings(ratio, size, bound)), np.zeros(fields.WORDS, np.int64)
    words[[fields.RATIO, fields.BOUND]] = np.array([ratio, bound]).view(np.int64)
    words[fields.MIN_SIZE], words[fields.ROWS] = size, 4
    added, samples = dict.fromkeys(range(4), 0), dict.fromkeys("abc", 0)
    for shard in range(4):
        ledger.note_added(shard, 0)
    address = words.ctypes.data
    for what, whom, more in events:
        if what == "added":
            added[whom] += more
            ledger.note_added(whom, added[whom])
            limiter.note_added(address, whom, added[whom], 1)
        else:
            samples[whom] += more
            ledger.note_sampled(whom, samples[whom])
            limiter.note_sampled(address, more, 1)
        assert ledger.surplus == limiter.surplus(address)
        may_add, may_sample = limiter.may_add(address), limiter.may_sample(address)
        assert (ledger.may_give(many) > 0, ledger.may_take(many) > 0) == (may_add, may_sample)
        assert may_add or may_sample  # never do both sides wait
        if may_add:  # those who add what they were told they may, leave the bound behind by one step each at most
            assert ledger.surplus + ratio * many * (ledger.may_give(many) - 1) <= bound + 1e-9
        if may_sample:
            assert ledger.surplus - many * (ledger.may_take(many) - 1) >= -bound - 1e-9


def test_another_ratio_counts_from_then_on() -> None:
    ledger = Ledger(Settings(2.0, 10, 20.0))
    ledger.note_added(0, 0)
    old = Ledger.from_bytes(ledger.to_bytes())
    ledger.note_added(0, 100)
    ledger.note_sampled("a", 70)
    ledger.count_anew(Settings(4.0, 10, 20.0))
    ledger.note_added(0, 130)
    old.note_sampled("b", 5)  # told to a copy that does not know
    for first, second in ((ledger, old), (old, ledger)):
        copy = Ledger.from_bytes(first.to_bytes())
        copy.merge(second)
        assert copy.settings == Settings(4.0, 10, 20.0)
        assert copy.counts == (130, 30, 5)
