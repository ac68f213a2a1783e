"""A limiter against a plain model of its rule: who may go ahead, what counts, and what is left when somebody dies."""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import diskbuffer as db
from diskbuffer.limiting.limiter import Limiter
from diskbuffer.limiting.table import Table
from diskbuffer.store.system.files import Files
from tests.amounts import examples


def opened(path: Path, asked: db.SampleToInsertRatio, writer: int | None = None, added: int = 0) -> Limiter:
    return Limiter(Files(path), asked, writer, added, "the buffer")


@dataclass
class Model:
    """What a limiter is to know, in plain Python."""

    ratio: float
    min_size: int
    bound: float
    stored: dict[int, int] = field(default_factory=dict)  # steps in each actor's store
    lost: dict[int, int] = field(default_factory=dict)  # steps that it had once, and others knew of
    known: dict[int, int] = field(default_factory=dict)  # all that others know of
    before: dict[int, int] = field(default_factory=dict)  # steps that were there before the limiter
    samples: int = 0

    def come(self, actor: int, stored: int) -> None:
        """Have an actor open its store, which has so many steps."""
        if actor not in self.known:
            self.before[actor], self.known[actor], self.lost[actor] = stored, stored, 0
        self.stored[actor] = stored
        self.lost[actor] = max(self.lost[actor], self.known[actor] - stored)
        self.tell(actor)

    def tell(self, actor: int) -> None:
        """Have an actor's count be known."""
        self.known[actor] = self.stored[actor] + self.lost[actor]

    @property
    def surplus(self) -> float:
        inserts = sum(self.known.values()) - max(sum(self.before.values()), self.min_size)
        return self.ratio * inserts - self.samples

    @property
    def may_add(self) -> bool:
        return self.surplus <= self.bound

    @property
    def may_sample(self) -> bool:
        return sum(self.known.values()) >= self.min_size and self.surplus >= -self.bound


@given(
    seed=st.integers(0, 10**6),
    ratio=st.sampled_from([0.1, 0.5, 1.0, 4.0, 7.3]),
    min_size=st.integers(1, 60),
    bound=st.sampled_from([0.0, 1.0, 25.0, 300.0]),
)
@examples(15, 500)
def test_calls_go_ahead_as_the_rule_has_it(seed: int, ratio: float, min_size: int, bound: float) -> None:
    """Actors that add, die between a step and its count, come back, or go back to a mark; learners that come and go."""
    random, asked = np.random.default_rng(seed), db.SampleToInsertRatio(ratio, min_size, bound, timeout=0)
    model, actors, learners = Model(ratio, min_size, bound), dict[int, Limiter](), list[Limiter]()
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "limiter"

        def come(actor: int, stored: int) -> None:
            actors[actor] = opened(path, asked, actor, stored)
            model.come(actor, stored)

        come(0, 0)
        learners.append(opened(path, asked))
        added = 0
        for _ in range(120):
            what, n = random.random(), int(random.integers(1, 40))
            actor = int(random.choice(list(actors)))
            here = actors[actor]
            if what < 0.4:
                if not model.may_add:
                    with pytest.raises(db.errors.LimiterTimeoutError, match="must be drawn before"):
                        here.wait_to_add()
                    continue
                here.wait_to_add()
                model.stored[actor] += n
                if random.random() < 0.8:
                    here.note_added(model.stored[actor])
                    model.tell(actor)
                else:  # it dies before it has told the others
                    here.close()
                    come(actor, model.stored[actor])
            elif what < 0.8:
                learner = learners[int(random.integers(len(learners)))]
                if not model.may_sample:
                    with pytest.raises(db.errors.LimiterTimeoutError, match="must be added first"):
                        learner.wait_to_sample()
                    continue
                learner.wait_to_sample()
                learner.note_sampled(n)
                model.samples += n
            elif what < 0.85:  # a power loss, or back to a mark
                here.close()
                come(actor, int(random.integers(model.stored[actor] + 1)))
            elif what < 0.9 and len(actors) < 6:
                come(int(random.choice([n for n in range(9) if n not in actors])), int(random.integers(30)))
            elif what < 0.95:
                learners.append(opened(path, asked))
            elif len(learners) > 1:
                learners.pop().close()
            for each in (*actors.values(), *learners):
                assert (each.may_add, each.may_sample) == (model.may_add, model.may_sample)
            assert model.may_add or model.may_sample  # never do both sides wait
            state = learners[0].state()
            assert state["surplus"] == pytest.approx(model.surplus)
            assert (state["samples"], state["added"]) == (model.samples, sum(model.known.values()))
            assert state["added"] >= added  # what counted stays counted
            added = state["added"]
        for each in (*actors.values(), *learners):
            each.close()


def test_what_is_asked_for_changes_only_where_nobody_else_is(tmp_path: Path) -> None:
    first, other = db.SampleToInsertRatio(2.0, 10, 5), db.SampleToInsertRatio(3.0, 20, 50, timeout=0)
    actor, learner = opened(tmp_path / "limiter", first, 0, 0), opened(tmp_path / "limiter", first)
    actor.note_added(100)
    learner.note_sampled(70)
    learner.close()
    with pytest.raises(db.InputError, match="a ratio of 2, min_size=10"):
        opened(tmp_path / "limiter", other)
    actor.close()
    learner = opened(tmp_path / "limiter", other)
    state = learner.state()
    assert (state["asked"], state["inserts"], state["samples"], state["surplus"]) == (3.0, 0, 0, 0.0)  # it counts anew
    actor = opened(tmp_path / "limiter", other, 0, 100)
    actor.note_added(110)
    assert learner.state()["surplus"] == 30.0
    for each in (actor, learner):
        each.close()


@pytest.mark.parametrize(
    "wrong",
    [
        {"ratio": 0},
        {"ratio": -1.0},
        {"ratio": float("inf")},
        {"ratio": "4"},
        {"ratio": 4, "min_size": 0},
        {"ratio": 4, "min_size": 1.5},
        {"ratio": 4, "error_buffer": -1},
        {"ratio": 4, "error_buffer": float("nan")},
        {"ratio": 4, "timeout": -0.1},
    ],
)
def test_numbers_out_of_range_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(db.InputError, match="must be"):
        db.SampleToInsertRatio(**wrong)


@pytest.mark.parametrize("damage", [lambda data: data[:-8], lambda data: bytes(len(data))])
def test_a_damaged_file_is_named(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    opened(tmp_path / "limiter", db.SampleToInsertRatio(4)).close()
    file = tmp_path / "limiter" / "counts"
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(db.CorruptionError, match="counts"):
        opened(tmp_path / "limiter", db.SampleToInsertRatio(4))


class Clock:
    """In place of `time`: sleeping takes three seconds, and then something is done."""

    def __init__(self, done: Callable[[], None]) -> None:
        self._now, self._done, self.time_ns = 0.0, done, time.time_ns

    def monotonic(self) -> float:
        return self._now

    def sleep(self, _: float) -> None:
        self._now += 3.0
        self._done()


def test_whoever_waits_while_nothing_is_done_gives_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = db.SampleToInsertRatio(4, error_buffer=0, timeout=10)
    learner, actor = opened(tmp_path / "limiter", asked), opened(tmp_path / "limiter", asked, 0)
    steps = iter(range(1, 101))
    actor.note_added(1)
    learner.note_sampled(4 * 90)
    monkeypatch.setattr("diskbuffer.limiting.limiter.time", Clock(lambda: actor.note_added(next(steps))))
    learner.wait_to_sample()  # for longer than the timeout, while something is added
    assert learner.state()["waited"] > 100
    monkeypatch.setattr("diskbuffer.limiting.limiter.time", Clock(lambda: None))
    learner.note_sampled(9)
    with pytest.raises(db.errors.LimiterTimeoutError, match=r"waited 10 s to sample.*3 more steps must be added first.*s ago"):
        learner.wait_to_sample()
    actor.note_added(150)
    with pytest.raises(db.errors.LimiterTimeoutError, match=r"more samples must be drawn before.*where one thread does both"):
        actor.wait_to_add()
    actor.close()
    learner.close()


def test_closing_ends_a_wait(tmp_path: Path) -> None:
    learner, raised = opened(tmp_path / "limiter", db.SampleToInsertRatio(4)), list[BaseException]()

    def wait() -> None:
        try:
            learner.wait_to_sample()
        except db.errors.ClosedError as error:
            raised.append(error)

    waits = threading.Thread(target=wait)
    waits.start()
    while not learner.state()["waiting"]:
        time.sleep(0.001)
    learner.close()
    waits.join(60)
    assert len(raised) == 1
    with pytest.raises(db.errors.ClosedError):
        learner.wait_to_sample()


def test_writers_that_come_at_once_are_all_counted(tmp_path: Path) -> None:
    asked, begin = db.SampleToInsertRatio(4), threading.Barrier(8)
    found = list[Limiter]()

    def come(writer: int) -> None:
        begin.wait()
        here = opened(tmp_path / "limiter", asked, writer)
        here.note_added(writer)
        found.append(here)

    threads = [threading.Thread(target=come, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found[0].state()["added"] == sum(range(8))
    assert len({each._address for each in found}) == 8
    for each in found:
        each.close()


class Schedule:
    """Actors and learners in threads, with calls of random sizes, that die at random and come back, until all is added."""

    def __init__(self, path: Path, seed: int) -> None:
        self._path, self._random = path, np.random.default_rng(seed)
        ratio, self.largest = float(self._random.choice([0.3, 1.0, 4.0, 20.0])), int(self._random.choice([1, 30, 300]))
        self.asked = db.SampleToInsertRatio(
            ratio, int(self._random.integers(1, 200)), float(self._random.choice([0, 10, 500])), 60
        )
        self.actors, self.learners = (int(n) for n in self._random.integers(1, 5, 2))
        self._seeds, self._over = self._random.integers(2**31, size=8).tolist(), False
        self._sampled, self.errors = list[int](), list[BaseException]()
        self._steps = int(self._random.integers(200, 1500))

    def run(self) -> None:
        roles = [(self._act, n) for n in range(self.actors)] + [(self._learn, n) for n in range(self.learners)]
        threads = [threading.Thread(target=self._tried, args=(role, n, self._seeds[k])) for k, (role, n) in enumerate(roles)]
        for thread in threads:
            thread.start()
        for thread in threads[: self.actors]:
            thread.join()
        self._over = True
        for thread in threads:
            thread.join()

    def _tried(self, role: Callable[[int, Any], None], n: int, seed: int) -> None:
        try:
            role(n, np.random.default_rng(seed))
        except BaseException as error:  # noqa: BLE001  the test tells
            self.errors.append(error)

    def _act(self, number: int, random: np.random.Generator) -> None:
        stored, here = 0, opened(self._path, self.asked, number)
        while stored < self._steps:
            here.wait_to_add()
            stored += int(random.integers(1, self.largest + 1))
            if random.random() < 0.05:
                here.close()
                here = opened(self._path, self.asked, number, stored)
            else:
                here.note_added(stored)
        here.close()

    def _learn(self, _: int, random: np.random.Generator) -> None:
        here = opened(self._path, self.asked)
        while not self._over:
            if not here.may_sample:
                time.sleep(0.0001)  # and look whether all is over
                continue
            batch = int(random.integers(1, self.largest + 1))
            here.note_sampled(batch)
            self._sampled.append(batch)
            if random.random() < 0.02:
                here.close()
                here = opened(self._path, self.asked)
        here.close()

    def check(self) -> None:
        assert self.errors == []
        found = Table(Files(self._path), self.asked, None, 0)
        figures = found.figures()
        found.close()
        calls = self.largest * (self.asked.ratio * self.actors + self.learners)
        assert abs(figures["surplus"]) <= self.asked.bound + calls
        assert figures["samples"] == sum(self._sampled)
        assert figures["added"] >= self._steps * self.actors


def test_random_schedules_end_and_hold_the_ratio(tmp_path: Path, any_seed: int, amount: Callable[[int, int], int]) -> None:
    for n in range(amount(2, 100)):
        schedule = Schedule(tmp_path / str(n), any_seed + n)
        schedule.run()
        schedule.check()


def test_a_learner_that_cannot_write_is_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Files, name: str) -> None:
        raise PermissionError(13, "Permission denied", name)

    monkeypatch.setattr(Files, "make_directory", refuse)
    with pytest.raises(db.errors.ReadOnlyError, match="where limiter= counts samples"):
        opened(tmp_path / "limiter", db.SampleToInsertRatio(4))
