"""What a learner writes to the steps of several writers: priorities, tags, columns; evicted with their steps, kept otherwise."""

from __future__ import annotations

import gc
import itertools
import shutil
import tempfile
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

import diskbuffer as db
from tests import amounts
from tests.amounts import examples
from tests.writers.test_multi_writer import Writer


@given(seed=st.integers(0, 10**6))
@examples(1, 30, suppress_health_check=[HealthCheck.too_slow])
def test_what_was_written_to_a_step_stays_with_it(seed: int) -> None:
    random, numbers = np.random.default_rng(seed), itertools.count(1)
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory) / "all"
        writers = [Writer(root, f"w{n}", n + 1, (5,), 200, 1) for n in range(3)]
        learner, scores, tags = db.ReplayBuffer(root, mode="r"), dict[int, float](), dict[int, str]()
        for _ in range(amounts.amount(6, 15)):
            for _ in range(3):
                writer = writers[int(random.integers(3))]
                writer.extend(int(random.integers(writer.envs)), int(random.integers(1, 40)), numbers, ends=True)
            what = random.random()
            if what < 0.2:
                learner.close()
                learner = db.ReplayBuffer(root, mode="r")
            learner.refresh()
            there = learner.steps()
            some = random.permutation(there)[: int(random.integers(1, 30))]
            values = random.random(len(some)).astype(np.float32)
            learner.columns.write("score", some, values)
            scores |= dict(zip(some.tolist(), values.tolist(), strict=True))
            episode = learner.episodes[int(random.integers(len(learner.episodes)))]
            tag = str(random.choice(["good", "bad"]))
            learner.episodes.of([episode.start]).set_tag(tag)
            tags |= dict.fromkeys(learner.at([episode.start], episode.length)["steps"].ravel().tolist(), tag)
            found = learner.at(there)
            assert found["score"].tolist() == [scores.get(step, 0.0) for step in there.tolist()]
            names = ("", *learner.episodes.tag_names)
            assert [names[n] for n in found["tag"].tolist()] == [tags.get(step, "") for step in there.tolist()]
            for other in [one for one in learner.episodes if one.tag]:
                assert tags[other.start] == other.tag
        if random.random() < 0.5:
            learner.columns.remove("score")
            assert "score" not in learner.sample(3)
            learner.columns.write("score", there[:1], np.ones(1, np.float32))
            assert float(learner.at(there)["score"].sum()) == 1.0
        mapped = learner.columns.map(lambda batch: batch["action"] * 2, 50, "doubled", progress=False)
        assert mapped == len(learner)
        assert (learner.at(there)["doubled"] == 2 * learner.at(there)["action"]).all()
        assert learner.columns.returns_and_advantages(values=None) == len(learner)
        learner.close()
        for writer in writers:
            writer.buffer.close()


def test_a_column_that_is_added_again_has_no_values_that_a_power_loss_brought_back(tmp_path: Path) -> None:
    root, writer = tmp_path / "all", Writer(tmp_path / "all", "actor", 1, (5,), 200, 1)
    writer.extend(0, 20, itertools.count(1), ends=True)
    with db.ReplayBuffer(root, mode="r") as learner:
        learner.columns.write("score", learner.steps(), np.ones(20, np.float32))
        files = root / "_shared/columns/score"
        shutil.copytree(files, tmp_path / "score")
        learner.columns.remove("score")
    shutil.copytree(tmp_path / "score", files)  # what removed them was not on the disk yet
    with db.ReplayBuffer(root, mode="r") as learner:
        learner.columns.write("score", learner.steps()[:1], np.full(1, 2, np.float32))
        assert float(learner.at(learner.steps())["score"].sum()) == 2.0
    writer.buffer.close()


def test_priorities_are_of_all_writers_steps_and_outlive_the_learner(tmp_path: Path, amount: Callable[[int, int], int]) -> None:
    numbers = itertools.count(1)
    writers = [Writer(tmp_path / "all", f"w{n}", 2, (34, 33), 300, 2) for n in range(3)]
    for _ in range(3):
        for writer in writers:
            writer.extend(0, 20, numbers, ends=True)
    with db.ReplayBuffer(tmp_path / "all", mode="r") as learner:
        sampler = db.Prioritized(alpha=1.0, seed=1)
        for n in range(amount(12, 40)):
            batch = learner.sample(32, sampler)
            assert np.isin(batch["steps"].numpy(), learner.steps()).all()
            sampler.update(batch["steps"], np.where(batch["action"].numpy() % 2 == 0, 1.0, 1e-6))
            writers[n % 3].extend(n % 2, 10, numbers, ends=False)
            learner.refresh()
        chosen = learner.steps()
        sampler.update(chosen, np.where(learner.at(chosen)["action"].numpy() % 2 == 0, 1.0, 0.0))
        assert (learner.sample(200, sampler)["action"] % 2 == 0).all()
    with db.ReplayBuffer(tmp_path / "all", mode="r") as learner:
        assert (learner.sample(200, db.Prioritized(alpha=1.0, seed=2))["action"] % 2 == 0).all()
    for writer in writers:
        writer.buffer.close()


def test_one_process_writes_columns(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "all", "w", 1, (5,), None, 1)
    writer.extend(0, 5, itertools.count(), ends=True)
    with db.ReplayBuffer(tmp_path / "all", mode="r") as learner, db.ReplayBuffer(tmp_path / "all", mode="r") as other:
        learner.columns.write("score", learner.steps(), np.arange(5))
        with pytest.raises(db.LockedError, match=r"columns\.write\(\): .*another reader writes columns"):
            other.columns.write("score", other.steps(), np.arange(5))
        other.refresh()
        assert other.at(other.steps())["score"].tolist() == [0, 1, 2, 3, 4]
        writes: list[Any] = [
            lambda: learner.add(np.zeros(5), 0, 0.0, np.zeros(5), False, False),
            lambda: learner.extend(obs=np.zeros((2, 5)), action=[0], reward=[0.0]),
            learner.clear,
            lambda: learner.flush(recompress=True),
        ]
        for write in writes:
            with pytest.raises(db.errors.ReadOnlyError, match="writer="):
                write()
    writer.buffer.close()


@pytest.mark.nightly
def test_what_a_plan_reads_stays_mapped(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "all", "w", 1, (5,), None, 1)
    writer.extend(0, 5, itertools.count(), ends=True)
    with db.ReplayBuffer(tmp_path / "all", mode="r") as learner:
        learner.columns.write("score", learner.steps(), np.arange(5))
        store = learner._multi_writer
        assert store is not None
        (held,) = store.columns._held.values()
        mapped, planned = weakref.ref(held.mapped), store.maps.epoch
        del held
        learner.columns.remove("score")
        gc.collect()
        assert mapped() is not None
        del planned
        gc.collect()
        assert mapped() is None
    writer.buffer.close()
