"""Buffers with a limiter: in one process and in several, with loaders that draw ahead, and actors that are killed."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import diskbuffer as db
from diskbuffer.limiting import fields
from diskbuffer.limiting.table import LIMITER

COLUMNS = {"obs": db.Column((3,), "float32"), "action": db.Column((), "int64")}
OBS = np.zeros(3, np.float32)


def extend(buffer: db.ReplayBuffer, steps: int) -> None:
    buffer.extend(np.zeros((steps + 1, 3), np.float32), np.zeros(steps, np.int64), np.ones(steps), new_episode=True)


def opened(path: Path, limiter: db.SampleToInsertRatio, **options: Any) -> db.ReplayBuffer:
    return db.ReplayBuffer(path, columns=COLUMNS, limiter=limiter, threads=1, **options)


def limiter_of(buffer: db.ReplayBuffer) -> Any:
    assert buffer.limiter is not None
    return buffer.limiter


def test_what_counts_are_steps_that_are_added_and_delivered(tmp_path: Path) -> None:
    asked = db.SampleToInsertRatio(4, min_size=50, error_buffer=10_000, timeout=0)
    with opened(tmp_path / "store", asked, seed=0) as buffer:
        extend(buffer, 49)
        with pytest.raises(db.errors.LimiterTimeoutError, match="1 more step must be added first"):
            buffer.sample(8)
        with pytest.raises(db.errors.LimiterTimeoutError):
            next(iter(buffer.loader(8)))
        buffer.add(OBS, 0, 1.0, OBS, False, False, new_episode=True)
        extend(buffer, 100)
        counted = [8, 8, 8 * 5, 8 * (2 + 5), 8]
        buffer.sample(8)
        buffer.draw(8)
        buffer.sample(8, db.Slices(5))
        buffer.sample(8, db.Slices(5, burn_in=2))
        buffer.sample(8, db.Uniform(n_step=3))
        loader = iter(buffer.loader(16, prefetch=5))
        for _ in range(3):  # five more are drawn ahead, and are nobody's yet
            next(loader)
        loader.close()  # type: ignore[attr-defined]
        counted.append(3 * 16)
        buffer.at(buffer.steps())
        for _ in buffer.batches(64):
            pass
        counted.append(db.Mixture([(buffer, 1.0), (buffer, 1.0)]).sample(32)["part"].numel())
        state = buffer.stats()["limiter"]
        assert (state["samples"], state["added"], state["inserts"]) == (sum(counted), 150, 100)
        assert state["ratio"] == sum(counted) / 100
        assert state["surplus"] == 400 - sum(counted)


def test_a_loop_that_does_both_learns_while_it_may(tmp_path: Path) -> None:
    asked = db.SampleToInsertRatio(2, min_size=20, error_buffer=40)
    with opened(tmp_path / "store", asked) as buffer:
        for _ in range(500):
            buffer.add(OBS, 0, 1.0, OBS, False, False)
            while limiter_of(buffer).may_sample and buffer.stats()["limiter"]["surplus"] > 0:
                buffer.sample(16)
        state = buffer.stats()["limiter"]
        assert state["waited"] == 0
        assert abs(state["samples"] - 2 * 480) <= 16


def test_counts_outlive_whoever_made_them(tmp_path: Path) -> None:
    asked = db.SampleToInsertRatio(4, min_size=10, error_buffer=1000)
    for n in range(3):
        with opened(tmp_path / "store", asked) as buffer:
            extend(buffer, 30)
            buffer.sample(16)
            buffer.sample(16)
            state = buffer.stats()["limiter"]
            assert (state["inserts"], state["samples"]) == (30 * (n + 1) - 10, 32 * (n + 1))
    with opened(tmp_path / "store", asked) as buffer:
        buffer.copies.mark("here")
        extend(buffer, 30)
    with opened(tmp_path / "store", asked, mark="here") as buffer:  # these were added, and may have been sampled
        assert buffer.stats()["limiter"]["inserts"] == 110
        extend(buffer, 5)
        assert buffer.stats()["limiter"]["inserts"] == 115
    assert db.check(tmp_path / "store", progress=False).ok
    with db.ReplayBuffer(tmp_path / "store") as buffer:  # steps of who has no limiter count when one who has it comes
        extend(buffer, 7)
        assert "limiter" not in buffer.stats()
    with opened(tmp_path / "store", asked) as buffer:
        assert buffer.stats()["limiter"]["inserts"] == 122


def test_what_a_store_had_before_its_limiter_is_there_to_sample_and_does_not_count(tmp_path: Path) -> None:
    with db.ReplayBuffer(tmp_path / "store", columns=COLUMNS) as buffer:
        extend(buffer, 1000)
    with opened(tmp_path / "store", db.SampleToInsertRatio(4, min_size=10, error_buffer=32, timeout=0)) as buffer:
        buffer.sample(32)
        buffer.sample(32)
        with pytest.raises(db.errors.LimiterTimeoutError, match="8 more steps"):
            buffer.sample(32)


def test_what_does_not_fit_is_refused_and_the_store_is_free_again(tmp_path: Path) -> None:
    wrong: list[dict[str, Any]] = [{"limiter": 4}, {"limiter": db.SampleToInsertRatio(4), "mark": "here", "mode": "r"}]
    with db.ReplayBuffer(tmp_path / "store", columns=COLUMNS) as buffer:
        buffer.copies.mark("here")
    for options in wrong:
        with pytest.raises(db.InputError, match="limiter"):
            db.ReplayBuffer(tmp_path / "store", **options)
    with opened(tmp_path / "store", db.SampleToInsertRatio(4)) as buffer, pytest.raises(db.InputError, match="a ratio of 4"):
        db.ReplayBuffer(tmp_path / "store", mode="r", limiter=db.SampleToInsertRatio(5))
    db.ReplayBuffer(tmp_path / "store").close()


def test_a_signal_ends_a_wait(tmp_path: Path) -> None:
    with opened(tmp_path / "store", db.SampleToInsertRatio(4, error_buffer=0)) as buffer:
        extend(buffer, 11)

        def interrupt() -> None:
            while not buffer.stats()["limiter"]["waiting"]:
                time.sleep(0.001)
            os.kill(os.getpid(), signal.SIGINT)

        for call in (lambda: extend(buffer, 1), lambda: [buffer.sample(60) for _ in range(9)]):
            interrupting = threading.Thread(target=interrupt)
            interrupting.start()
            with pytest.raises(KeyboardInterrupt):
                call()
            interrupting.join()
        state = buffer.stats()["limiter"]
        assert (state["added"], state["samples"], state["waiting"]) == (11, 60, 0)


def test_actors_and_a_learner_in_threads_of_one_buffer(tmp_path: Path) -> None:
    asked = db.SampleToInsertRatio(3, min_size=100, error_buffer=200)
    with opened(tmp_path / "store", asked, n_envs=2, autoreset="next_step", capacity=2000) as buffer:

        def act(env: int) -> None:
            for _ in range(200):
                buffer.extend(np.zeros((11, 3)), np.zeros(10, int), np.ones(10), env=env, new_episode=True)

        actors = [threading.Thread(target=act, args=(env,)) for env in range(2)]
        for actor in actors:
            actor.start()
        loader = iter(buffer.loader(32, prefetch=4))
        while any(actor.is_alive() for actor in actors):
            next(loader)
            assert abs(buffer.stats()["limiter"]["surplus"]) <= 200 + 3 * 2 * 10 + 32
        loader.close()  # type: ignore[attr-defined]
        assert buffer.stats()["limiter"]["added"] == 4000


def test_in_a_fork_samples_count_too(tmp_path: Path) -> None:
    with opened(tmp_path / "store", db.SampleToInsertRatio(4, error_buffer=1000)) as buffer:
        extend(buffer, 100)
        buffer.sample(10)
        child = os.fork()
        if child == 0:
            try:
                buffer.sample(20)
                buffer.close()
                os._exit(0)
            finally:
                os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        buffer.sample(30)
        assert buffer.stats()["limiter"]["samples"] == 60


# Several processes

ASKED = db.SampleToInsertRatio(2, min_size=200, error_buffer=300)


def act(root: Path, name: str, steps: int) -> None:
    """Be an actor until its store has so many steps."""
    with opened(root, ASKED, writer=name, capacity=3000, segment_rows=64) as buffer:
        while buffer.counts()[1][0] < steps:
            buffer.add(OBS, 0, 1.0, OBS, False, bool(len(buffer) % 20 == 19))


@pytest.fixture
def start() -> Iterator[Callable[..., Any]]:
    context, started = multiprocessing.get_context("fork"), list[Any]()

    def begin(*args: Any) -> Any:
        process = context.Process(target=act, args=args)
        started.append(process)
        process.start()
        return process

    yield begin
    for process in started:
        if process.is_alive():
            process.kill()
        process.join()


@pytest.mark.nightly
def test_actors_are_killed_beside_a_learner_with_a_loader(
    tmp_path: Path, start: Callable[..., Any], any_seed: int, amount: Callable[[int, int], int]
) -> None:
    root, random, steps = tmp_path / "all", np.random.default_rng(any_seed), amount(1500, 5_000)
    opened(root, ASKED, writer="actor-0", capacity=3000, segment_rows=64).close()
    names = [f"actor-{n}" for n in range(3)]
    actors = {name: start(root, name, steps) for name in names}
    kills, due = 0, 0
    with db.ReplayBuffer(root, mode="r", limiter=ASKED, threads=1, seed=1) as learner:
        for n, batch in enumerate(learner.loader(32, prefetch=4)):
            assert len(batch["steps"]) == 32
            state = learner.stats()["limiter"]
            assert abs(state["surplus"]) <= 300 + 2 * 3 + 32
            if state["added"] >= 0.9 * 3 * steps:
                break
            if n >= due and kills < 40:
                name = str(random.choice(names))
                actors[name].kill()
                actors[name].join()
                actors[name], kills = start(root, name, steps), kills + 1
                due = n + int(random.integers(1, 60))
        for actor in actors.values():
            actor.kill()
            actor.join()
        learner.refresh()
        state = learner.stats()["limiter"]
        ever = sum(db.ReplayBuffer(root, mode="r", writer=name).stats()["added"] for name in names)
        assert 0 <= ever - state["added"] <= 3  # what an actor had added, and not told when it was killed
        assert kills > 0


def test_the_file_of_one_store_is_where_zarr_tools_do_not_look(tmp_path: Path) -> None:
    with opened(tmp_path / "store", db.SampleToInsertRatio(4)) as buffer:
        extend(buffer, 10)
        assert (tmp_path / "store" / LIMITER / "counts").stat().st_size == 8 * fields.WORDS
        assert dict(zarr.open_group(buffer.path, mode="r").members()).keys() >= {"obs", "action"}
